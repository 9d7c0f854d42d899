"""Which tokens of two sides stand beside each other, and which can be patched."""

from __future__ import annotations

import pytest
from families import PAIRS, make_signal
from hypothesis import given
from hypothesis import strategies as st

from reward_lens.backbone import Position
from reward_lens.data import as_pairs
from reward_lens.errors import CapabilityError, DataError
from reward_lens.instruments.sides import Sides
from reward_lens.instruments.token_alignment import (
    align_tokens,
    as_position,
    patched_tokens,
    shared_prefix,
)

IDS = st.lists(st.integers(0, 3), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


def sides_of(signal, pairs):
    return Sides.of(signal, as_pairs(pairs), None, "error")


def ids(*pairs):
    """Pairs given as ids."""
    return [{"input_ids_chosen": a, "input_ids_rejected": b} for a, b in pairs]


@pytest.mark.parametrize(
    ("a", "b", "beside", "same"),
    [
        ([1, 2, 3], [1, 2, 3], [(0, 0), (1, 1), (2, 2)], 3),
        ([1, 2, 3], [1, 3], [(0, 0), (2, 1)], 2),  # one is left out
        ([1, 2, 3], [1, 9, 3], [(0, 0), (1, 1), (2, 2)], 2),  # one for one
        ([1, 2, 2, 3], [1, 9, 3], [(0, 0), (3, 2)], 2),  # two for one: no partner
        ([1, 2], [3, 4, 5], [], 0),
        ([7, 7], [7, 7, 7], [(0, 0), (1, 1)], 2),
        ([1, 5, 6, 2, 8, 3], [1, 2, 9, 3], [(0, 0), (3, 1), (4, 2), (5, 3)], 3),
    ],
)
def test_alignment_on_paper(a, b, beside, same):
    found = align_tokens(a, b)
    assert list(zip(found.chosen, found.rejected, strict=True)) == beside
    assert found.same == same


@given(IDS, IDS)
def test_alignment_rises_and_pairs_equal_runs_only(a, b):
    found = align_tokens(a, b)
    for side, length in ((found.chosen, len(a)), (found.rejected, len(b))):
        assert sorted(set(side)) == list(side)
        assert all(0 <= i < length for i in side)
    prefix = shared_prefix(a, b)
    assert found.chosen[:prefix] == found.rejected[:prefix] == tuple(range(prefix))
    assert found.same == sum(
        a[i] == b[j] for i, j in zip(found.chosen, found.rejected, strict=True)
    )


@given(IDS)
def test_a_row_is_aligned_with_itself_whole(a):
    found = align_tokens(a, a)
    assert found.chosen == found.rejected == tuple(range(len(a)))
    assert found.same == len(a) == shared_prefix(a, a)


@given(IDS, IDS, st.lists(st.integers(10, 13), min_size=1, max_size=4))
def test_a_shared_end_of_other_tokens_is_aligned(a, b, end):
    found = align_tokens(a + end, b + end)
    tail = list(zip(found.chosen, found.rejected, strict=True))[-len(end) :]
    assert tail == [(len(a) + k, len(b) + k) for k in range(len(end))]


def test_shared_prefix_on_paper():
    assert shared_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert shared_prefix([1], [2]) == 0
    assert shared_prefix([1, 2], [1, 2, 3]) == 2


def test_final_is_each_sides_own_read_token(signal):
    sides = sides_of(signal, PAIRS)
    for k, found in enumerate(patched_tokens(sides, "final")):
        assert found.chosen == (len(sides.encoded[k].ids) - 1,)
        assert found.rejected == (len(sides.encoded[len(PAIRS) + k].ids) - 1,)


def test_spans_and_indices_count_from_either_end(signal):
    sides = sides_of(signal, ids(([1, 2, 3, 4], [5, 6, 7])))
    for positions, chosen, rejected in [
        ((1, 3), (1, 2), (1, 2)),
        ((-2, None), (2, 3), (1, 2)),
        ((-3, -1), (1, 2), (0, 1)),
        (0, (0,), (0,)),
        (-1, (3,), (2,)),
        (Position("span", 0, 2), (0, 1), (0, 1)),
        (Position("index", -2), (2,), (1,)),
    ]:
        (found,) = patched_tokens(sides, positions)
        assert (found.chosen, found.rejected) == (chosen, rejected), positions


def test_all_is_every_token_of_equal_sides(signal):
    (found,) = patched_tokens(sides_of(signal, ids(([1, 2, 3], [1, 5, 3]))), "all")
    assert (found.chosen, found.rejected, found.same) == ((0, 1, 2), (0, 1, 2), 2)


def test_all_names_the_pair_whose_sides_differ_in_length(signal):
    pairs = ids(([1, 2], [3, 4]), ([1, 2, 3], [1, 2]))
    name = as_pairs(pairs).ids[1]
    with pytest.raises(DataError, match=f"pair {name!r}: positions='all' .* 3 and 2 tokens"):
        patched_tokens(sides_of(signal, pairs), "all")


@pytest.mark.parametrize("positions", [(1, 4), (-4, -1), (2, 2), 3, -5])
def test_tokens_that_a_side_lacks_name_pair_and_side(signal, positions):
    sides = sides_of(signal, ids(([1, 2, 3, 4], [5, 6, 7])))
    with pytest.raises(DataError, match=r"pair '.*', the (chosen|rejected) side has \d tokens"):
        patched_tokens(sides, positions)


def test_a_span_that_is_longer_on_one_side_is_refused(signal):
    sides = sides_of(signal, ids(([1, 2, 3, 4], [5, 6, 7])))
    with pytest.raises(DataError, match="is 3 tokens of the chosen side and 2 of the rejected"):
        patched_tokens(sides, (1, None))


@pytest.mark.parametrize("wrong", ["everywhere", 1.5, (1, 2, 3), None, Position("span"), True])
def test_unknown_positions_say_what_there_is(wrong):
    with pytest.raises(CapabilityError, match="choose 'final', 'aligned', 'all', a token index"):
        as_position(wrong)


def test_a_mean_has_no_final_token(signal):
    given = as_pairs(PAIRS)
    sides = Sides.of(signal, given, "mean", "error")
    with pytest.raises(CapabilityError, match="reads the mean over all tokens.*'aligned'"):
        patched_tokens(sides, "final")
    assert len(patched_tokens(sides, "aligned")) == len(PAIRS)
