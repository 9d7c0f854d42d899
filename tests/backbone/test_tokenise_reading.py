"""Read rules on one row, and the index an encoder gives by each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenise_kit import encoder, llama

from reward_lens.backbone.reading import MEAN, RULES, Encoded, read_index
from reward_lens.data import Item
from reward_lens.errors import TokenizeError

#: A prompt turn and a response, each ended by 2, which is the pad id too.
TWO_TURNS = [1, 5, 2, 6, 7, 2]


@pytest.mark.parametrize(
    ("rule", "pad", "index"),
    [
        ("rightmost_non_pad", 2, 4),
        ("rightmost_non_pad", 0, 5),
        ("rightmost_non_pad", None, 5),
        ("last", 2, 5),
        ("before_first_pad", 2, 1),
        ("before_first_pad", 0, 5),
        ("before_first_pad", None, 5),
        ("first", 2, 0),
        ("mean", 2, MEAN),
    ],
)
def test_two_turns_that_end_in_the_pad_id(rule, pad, index):
    assert read_index(TWO_TURNS, rule, pad) == index
    assert encoder(llama(), pad, rule=rule).encode([Item(ids=tuple(TWO_TURNS))])[0].native == index


def test_a_pad_id_at_the_start_is_followed_round_to_the_end():
    assert read_index([2, 5, 6], "before_first_pad", 2) == 2


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.sampled_from(list(RULES)))
def test_rules_do_what_their_words_say(ids, rule):
    pad = 0
    if rule == "rightmost_non_pad" and set(ids) == {pad}:
        with pytest.raises(TokenizeError, match=r"consist of padding only \(id 0\)"):
            read_index(ids, rule, pad)
        return
    index = read_index(np.array(ids), rule, pad)
    if rule == "rightmost_non_pad":
        assert ids[index] != pad
        assert set(ids[index + 1 :]) <= {pad}
    elif rule == "before_first_pad":
        cut = ids.index(pad) if pad in ids else len(ids)
        assert index == (cut - 1 if cut else len(ids) - 1)
    else:
        assert index == {"last": len(ids) - 1, "first": 0, "mean": MEAN}[rule]


def test_what_cannot_be_read():
    with pytest.raises(TokenizeError, match="'middle' is unknown; choose one of rightmost_non_pad"):
        read_index([1], "middle", None)
    with pytest.raises(TokenizeError, match="no tokens to read"):
        read_index([], "last", None)
    with pytest.raises(TokenizeError, match="rule='middle': choose one of"):
        encoder(llama(), rule="middle")
    given_ids = Item(ids=(2, 2), id="p7")
    with pytest.raises(TokenizeError, match=r"item 'p7': the tokens consist of padding only"):
        encoder(llama(), 2).encode([given_ids])
    assert encoder(llama(), 2, rule="last").encode([given_ids])[0].native == 1


def test_positions_of_an_encoded_item():
    encoded = Encoded(np.array(TWO_TURNS), 4)
    reads = {p: encoded.read(p) for p in ("native", "last", "first", "mean")}
    assert reads == {"native": 4, "last": 5, "first": 0, "mean": MEAN}
    with pytest.raises(TokenizeError, match="position='middle': choose one of native, last"):
        encoded.read("middle")
