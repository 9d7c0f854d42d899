"""Attribution patching: gradient times difference, by hand and on a linear network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import zoo
from engine_kit import ids_item
from families import PAIRS, make_signal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import reward_lens as rl
from reward_lens.backbone import Target
from reward_lens.data import Pair, Pairs, as_pairs
from reward_lens.errors import AnatomyError, CapabilityError, DataError
from reward_lens.evidence import Tier, Units
from reward_lens.instruments import estimates
from reward_lens.instruments.gradient_patching import attribution_patching
from reward_lens.instruments.patching_grid import patch_grid
from reward_lens.instruments.token_alignment import align_tokens
from reward_lens.organisms import linear_rule


def equal_pairs(n=3, length=9, seed=0):
    """Pairs of random ids, equally long and different at every token."""
    rows = [(ids_item(seed + k, length), ids_item(seed + 50 + k, length)) for k in range(n)]
    return Pairs([Pair(a, b, id=f"p{k}", lineage=f"q{k}") for k, (a, b) in enumerate(rows)])


def estimated(ev, **where):
    return ev.value.sel(quantity="estimate", **where).values


def by_hand(signal, pairs, names, where, **options):
    """Gradient of one site at a time times the difference of captured activations."""
    n, items = len(pairs), [*pairs.chosen, *pairs.rejected]
    out = np.empty((2, n, len(names)))
    for t, name in enumerate(names):
        target, site = Target.parse(name), str(Target.parse(name).source)
        slopes, values = (
            [target.of(x, signal.trunk.anatomy).double() for x in found]
            for found in (signal.gradient(items, site, **options),
                          signal.capture(items, [site], position="all")[site])
        )  # fmt: skip
        for k in range(n):
            i, j = (list(x) for x in where(k))
            move = values[k][i] - values[n + k][j]
            for d, run in enumerate((slopes[k][i], slopes[n + k][j])):
                out[d, k, t] = float((run * move).sum())
    return out


COMPONENTS = ["embed", "L0.attn_out", "L1.mlp_out", "L2.attn_out", "L2.mlp_out"]
HEADS = ["L0.H0", "L1.H3", "L2.H1"]


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


@pytest.mark.parametrize("positions", ["final", "aligned", "all", -2, (1, -1), (3, None)], ids=str)
def test_the_estimate_is_gradient_times_difference(signal, positions):
    pairs = equal_pairs() if positions in ("all", (1, -1), (3, None)) else as_pairs(PAIRS)
    encoded = signal.encode([*pairs.chosen, *pairs.rejected])
    ids, n = [e.ids for e in encoded], len(pairs)
    where = {
        "final": lambda k: ([-1], [-1]),
        "all": lambda k: (range(9), range(9)),
        -2: lambda k: ([-2], [-2]),
        (1, -1): lambda k: (range(1, 8), range(1, 8)),
        (3, None): lambda k: (range(3, 9), range(3, 9)),
        "aligned": lambda k: (
            (a := align_tokens(ids[k], ids[n + k])).chosen, a.rejected
        ),
    }[positions]  # fmt: skip
    for by, names in (("component", COMPONENTS), ("head", HEADS)):
        ev = attribution_patching(signal, pairs, by=by, positions=positions, sample=0)
        found = ev.value.sel(quantity="estimate", component=names).values
        expected = by_hand(signal, pairs, names, where)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        if positions in (-2, (1, -1)):  # only the last token reads the last writes
            assert (found[..., names.index(names[-1])] == 0).all()
        else:
            assert (np.abs(expected).max((0, 1)) > 1e-3).all()
        assert ev.value.sel(quantity="exact").isnull().all()
    table = ev.tables["pairs"].set_index("pair")
    for k, pair in enumerate(pairs.ids):
        patched, lengths = len(list(where(k)[0])), (len(ids[k]), len(ids[n + k]))
        row = table.loc[pair, ["patched", "untouched_chosen", "untouched_rejected", "moved"]]
        assert list(row) == [patched, lengths[0] - patched, lengths[1] - patched, 0]


@pytest.mark.parametrize("lengths", ["equal", "different"])
@pytest.mark.parametrize("positions", ["final", "aligned"])
def test_a_linear_network_is_estimated_exactly(lengths, positions):
    key = linear_rule(n=4, lengths=lengths)
    for by in ("component", "head"):
        for steps in (0, 2):
            ev = attribution_patching(
                key.signal, key.pairs, by=by, positions=positions, steps=steps, sample=4
            )
            found, exact = (ev.value.sel(quantity=q).values for q in ("estimate", "exact"))
            np.testing.assert_allclose(found, exact, atol=1e-5)
            assert np.abs(exact).max() > 0.3
            table = ev.tables["agreement"]
            np.testing.assert_allclose(table[["rank_correlation", "of_means"]], 1, atol=1e-12)
            assert (table["worst_gap"] < 1e-5).all()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gpt_neox"])
def test_along_the_way_the_embeddings_estimate_becomes_the_margin(family):
    signal = make_signal(family)
    pairs = equal_pairs()

    def gap(steps):
        ev = attribution_patching(signal, pairs, positions="all", steps=steps, sample=0)
        margin = ev.tables["pairs"]["margin"].to_numpy()
        assert list(ev.tables["pairs"]["moved"]) == [9 if steps else 0] * 3
        return np.abs(estimated(ev, component="embed") - margin).max() / np.abs(margin).max()

    gaps = [gap(steps) for steps in (0, 4, 32)]
    assert gaps[0] > 0.05
    assert gaps[2] < 0.02
    assert gaps[1] < gaps[0]


def test_on_sides_of_unequal_length_only_aligned_tokens_move(signal):
    """By hand: the embeddings of aligned tokens, moved, in a view of the signal."""
    pairs = as_pairs([("p", "a long answer!", "a long, longer answer?")])
    a, b = (e.ids for e in signal.encode([*pairs.chosen, *pairs.rejected]))
    way = align_tokens(a, b)
    values = signal.capture([*pairs.chosen, *pairs.rejected], ["embed"], position="all")["embed"]
    middle = values[1].clone()  # of one point: half the way from the rejected to the chosen side
    middle[list(way.rejected)] = (values[0][list(way.chosen)] + values[1][list(way.rejected)]) / 2
    with signal.intervene(rl.replace("embed", middle, "all")) as view:
        (slope,) = view.gradient(pairs.rejected, "L1.mlp_out")
    writes = signal.capture([*pairs.chosen, *pairs.rejected], ["L1.mlp_out"])["L1.mlp_out"]
    expected = float(slope[-1].double() @ (writes[0] - writes[1]).double())
    ev = attribution_patching(signal, pairs, steps=1, direction="denoise", sample=0)
    found = float(estimated(ev, component="L1.mlp_out")[0, 0])
    assert found == pytest.approx(expected, rel=1e-4)
    clean = attribution_patching(signal, pairs, direction="denoise", sample=0)
    assert found != pytest.approx(float(estimated(clean, component="L1.mlp_out")[0, 0]), rel=0.01)
    assert list(ev.tables["pairs"]["moved"]) == [len(way) - way.same]
    assert 0 < len(way) - way.same < len(way)


# What it says of itself, and what changes nothing.


def test_the_record(signal):
    ev = attribution_patching(signal, PAIRS, sample=2, screen=2, seed=7, steps=2)
    assert ev.tier is Tier.CAUSAL
    assert dict(ev.quantity_units) == {"estimate": Units.REWARD, "exact": Units.REWARD}
    assert len(ev.provenance.parents) == 2  # the sample's exact grid, and the screened components'
    sampled = as_pairs(PAIRS).sample(2, 7)
    runs = patch_grid(signal, sampled, batch_tokens=1024)
    assert ev.provenance.seeds == (7,)
    assert ev.subject.interventions == (
        "components exchanged between the sides, to first order, at final",
    )
    alone = attribution_patching(signal, PAIRS, sample=0)
    assert alone.provenance.cost_forwards == 2 * 8  # a forward and a backward of each side
    assert alone.provenance.seeds == ()
    steps = attribution_patching(signal, PAIRS, sample=0, steps=3, direction="noise")
    assert steps.provenance.cost_forwards == 2 * (8 + 3 * 4)
    assert ev.provenance.cost_forwards > runs.provenance.cost_forwards + 2 * (8 + 2 * 8)


def test_progress_counts_every_item(signal):
    told = []
    attribution_patching(signal, PAIRS, sample=0, batch_tokens=60, progress=told.append)
    assert sum(told) == 8
    assert len(told) > 1


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    order=st.permutations(range(4)), batch_tokens=st.integers(1, 400), steps=st.sampled_from([0, 2])
)
def test_neither_batch_nor_order_matters(signal, order, batch_tokens, steps):
    options = {"positions": "aligned", "steps": steps, "sample": 0}
    pairs = as_pairs(PAIRS)
    expected = attribution_patching(signal, pairs, **options).value
    found = attribution_patching(
        signal, pairs.select(order), batch_tokens=batch_tokens, **options
    ).value.sel(pair=pairs.ids)
    limit = 1e-5 * float(np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=limit)


def test_gradients_of_a_batch_are_let_go(signal, monkeypatch):
    """No more items' gradients are held at a time for many pairs than for few."""
    alive, most = [0], [0]

    def watched(*args, **options):
        for one in estimates_sweep(*args, **options):
            alive[0] += 1
            most[0] = max(most[0], alive[0])
            weak = next(iter(one.values.values()))
            torch.utils.weak.weakref.finalize(weak, lambda: alive.__setitem__(0, alive[0] - 1))
            yield one

    estimates_sweep = estimates.gradient_sweep
    monkeypatch.setattr(estimates, "gradient_sweep", watched)
    held = []
    for n in (8, 24):
        most[0] = 0
        attribution_patching(signal, equal_pairs(n), sample=0, batch_tokens=40)
        held.append(most[0])
    assert held[0] == held[1] < 16


def test_bfloat16_is_near_float32():
    pairs, options = equal_pairs(), {"positions": "all", "sample": 3}
    full = attribution_patching(make_signal("llama"), pairs, **options)
    half = attribution_patching(make_signal("llama", dtype=torch.bfloat16), pairs, **options)
    a, b = estimated(full).ravel(), estimated(half).ravel()
    assert half.value.dtype == np.float64
    assert np.corrcoef(a, b)[0, 1] > 0.98
    assert half.tables["agreement"]["rank_correlation"].notna().all()


def test_identical_sides_have_no_effect_and_no_rank(signal, monkeypatch):
    def rounded(*args, **options):
        """Two rows of a batch can differ by rounding."""
        for one in sweep(*args, **options):
            values = {site: v + 1e-6 * one.item for site, v in one.values.items()}
            yield replace(one, score=one.score + 1e-7 * one.item, values=values)

    sweep = estimates.gradient_sweep
    monkeypatch.setattr(estimates, "gradient_sweep", rounded)
    pairs = as_pairs([("one", "the same", "the same"), *PAIRS[:2]])
    ev = attribution_patching(signal, pairs, positions="aligned", screen=1)
    assert (ev.value.isel(pair=0) == 0).all()
    assert list(ev.tables["agreement"]["undefined"]) == [1, 1]
    assert ev.tables["agreement"]["rank_correlation"].notna().all()
    alone = attribution_patching(signal, pairs.select([0]))
    assert alone.uncertainty == ()
    assert alone.tables["agreement"]["rank_correlation"].isna().all()
    assert alone.tables["components"]["share_of_margin"].isna().all()


def test_a_row_of_a_head_is_estimated_by_its_own_gradient():
    signal, pairs = make_signal("llama", num_labels=3), as_pairs(PAIRS[:2])
    for readout in ("reward", "criterion:1"):
        ev = attribution_patching(signal, pairs, sample=0, readout=readout)
        expected = by_hand(signal, pairs, COMPONENTS, lambda k: ([-1], [-1]), readout=readout)
        found = ev.value.sel(quantity="estimate", component=COMPONENTS).values
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_response_of_one_token(signal):
    ev = attribution_patching(signal, [("p", "a", "b"), ("q", "a", "b c")], positions="final")
    assert ev.value.notnull().all()
    assert list(ev.tables["pairs"]["patched"]) == [1, 1]


@pytest.mark.parametrize("name", ["eurobert, mean", "modernbert, mean"])
def test_a_trunk_that_looks_both_ways_and_a_head_that_averages(name):
    signal = rl.wrap_hf_model(zoo.make(name), zoo.tokenizer_for(name))
    pairs = as_pairs(PAIRS[:2])
    with pytest.raises(CapabilityError, match="reads the mean over all tokens"):
        attribution_patching(signal, pairs)
    ids = [e.ids for e in signal.encode([*pairs.chosen, *pairs.rejected])]

    def where(k):
        aligned = align_tokens(ids[k], ids[2 + k])
        return aligned.chosen, aligned.rejected

    ev = attribution_patching(signal, pairs, positions="aligned", sample=1)
    names = ["embed", "L0.attn_out", "L1.mlp_out"]
    expected = by_hand(signal, pairs, names, where)
    found = ev.value.sel(quantity="estimate", component=names).values
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert ev.tables["agreement"]["rank_correlation"].notna().all()


def test_the_mean_can_be_read_of_any_head(signal):
    pairs = as_pairs(PAIRS[:2])
    ev = attribution_patching(signal, pairs, positions=-1, position="mean", sample=0)
    expected = by_hand(signal, pairs, COMPONENTS, lambda k: ([-1], [-1]), position="mean")
    found = ev.value.sel(quantity="estimate", component=COMPONENTS).values
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_wrong_use(signal):
    cases = [
        ({"by": "layer_position"}, CapabilityError, "by='layer_position': choose one of component"),
        ({"direction": "left"}, CapabilityError, "direction='left': choose noise, denoise or both"),
        ({"steps": -1}, DataError, "steps=-1: give a whole number, 0 or more"),
        ({"sample": 1.5}, DataError, "sample=1.5: give a whole number, 0 or more"),
        ({"screen": 0}, DataError, "screen=0: give a whole number, 1 or more"),
        ({"screen": True}, DataError, "screen=True"),
        ({"positions": "middle"}, CapabilityError, "positions='middle': choose"),
        ({"positions": "all"}, DataError, "pair '.*': positions='all' needs sides of equal length"),
        ({"positions": (0, 500)}, DataError, "reaches beyond"),
        ({"readout": "taste"}, CapabilityError, "no readout 'taste'"),
        ({"position": "middle"}, CapabilityError, "position='middle'"),
    ]
    for options, error, said in cases:
        with pytest.raises(error, match=said):
            attribution_patching(signal, PAIRS, **options)
    with pytest.raises(DataError):
        attribution_patching(signal, [])


@pytest.mark.parametrize(
    ("name", "by", "said"),
    [
        ("deberta-v2, convolution", "component", "L1.link: .* writes do not add up"),
        ("diffllama", "head", "L0.head_in"),
    ],
)
def test_what_did_not_verify_is_refused(name, by, said):
    signal = rl.wrap_hf_model(zoo.make(name), zoo.tokenizer_for(name))
    with pytest.raises(AnatomyError, match=said):
        attribution_patching(signal, PAIRS[:1], by=by)


def test_no_way_where_the_embedding_enters_twice():
    zamba = rl.wrap_hf_model(zoo.make("zamba"), zoo.tokenizer_for("zamba"))
    with pytest.raises(AnatomyError, match="steps=2: the embedding also enters block 1 .* steps=0"):
        attribution_patching(zamba, PAIRS[:1], steps=2)


def test_a_trunk_that_norms_the_stream_itself():
    bert = rl.wrap_hf_model(zoo.make("bert"), zoo.tokenizer_for("bert"))
    names = ["embed", "L0.attn_out", "L1.mlp_out"]
    pairs = as_pairs(PAIRS[:1])
    ev = attribution_patching(bert, pairs, positions=0, sample=0)  # it reads the first token
    expected = by_hand(bert, pairs, names, lambda k: ([0], [0]))
    found = ev.value.sel(quantity="estimate", component=names).values
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
