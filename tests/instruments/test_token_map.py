"""Token map: every reading against what it says it is, and against the others where they agree."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import zoo
from families import FAMILIES, PAIRS, make_signal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from summing_kit import summing

import reward_lens as rl
from reward_lens.data import as_pairs
from reward_lens.errors import (
    AnatomyError,
    CapabilityError,
    DataError,
    NumericsError,
)
from reward_lens.evidence import Tier, Units
from reward_lens.instruments import token_maps, token_methods
from reward_lens.instruments.token_maps import METHODS, token_map
from reward_lens.instruments.token_units import sentence_spans

CHEAP = ("prefix", "gradient", "leave_one_out")
SHORT = [("Why?", "Air. Blue.", "So it is.")]


def texts(pairs=PAIRS):
    """Chosen, then rejected items, as the instrument has them."""
    return [(p, a) for p, a, _ in pairs] + [(p, b) for p, _, b in pairs]


def read(ev, reading, k):
    """The values of item k, chosen ones first."""
    side, pair = divmod(k, len(ev.value["pair"]))
    return ev.value.sel(reading=reading).isel(side=side, pair=pair).values


def responses(signal, items):
    return [signal.encoder.align(item, "error").response for item in rl.data.as_items(items)]


@torch.no_grad()
def score_of(signal, ids):
    """The model's own score of ids."""
    return float(signal.trunk.model(input_ids=torch.tensor([list(ids)])).logits[0, 0])


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


@pytest.fixture(scope="module")
def tokens(signal):
    return token_map(signal, PAIRS, methods=CHEAP)


def test_where_the_score_is_a_sum_over_tokens_all_readings_are_its_terms():
    signal, worth = summing()
    ev = token_map(signal, PAIRS, baseline="zero", steps=1)
    assert list(ev.value["reading"].values) == list(METHODS)
    for k, (encoded, (start, stop)) in enumerate(
        zip(signal.encode(texts()), responses(signal, texts()), strict=True)
    ):
        terms = worth[encoded.ids].astype(float)
        for reading in METHODS:
            found = read(ev, reading, k)[: len(terms)]
            assert np.isnan(read(ev, reading, k)[len(terms) :]).all()
            first = {"prefix": 1, "gradient": 0}.get(reading, start)
            last = stop if reading in ("integrated", "leave_one_out") else len(terms)
            np.testing.assert_allclose(found[first:last], terms[first:last], atol=2e-6)
            assert np.isnan(found[:first]).all()
            assert np.isnan(found[last:]).all()
    np.testing.assert_allclose(ev.tables["agreement"]["rank_correlation"], 1, atol=1e-12)
    assert (ev.tables["completeness"]["share"] < 1e-5).all()
    mean = token_map(signal, PAIRS, methods=["gradient", "integrated"], steps=1)
    shift = read(mean, "gradient", 0) - read(mean, "integrated", 0)
    assert np.nanstd(shift) < 1e-6 < abs(np.nanmean(shift))  # less the mean of the response
    np.testing.assert_allclose(mean.tables["agreement"]["rank_correlation"], 1, atol=1e-12)


# Each reading by hand.


def test_prefix_changes_are_differences_of_scores_of_cut_ids(signal, tokens):
    for k in (0, 3, 6):
        ids = signal.encode(texts())[k].ids
        expected = np.diff([score_of(signal, ids[: t + 1]) for t in range(len(ids))])
        found = read(tokens, "prefix", k)[1 : len(ids)]
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    curves = rl.token_curves(signal, PAIRS, batch_tokens=1024)
    assert tokens.provenance.parents == (curves.id,)
    np.testing.assert_array_equal(
        tokens.tables["tokens"]["prefix_score"], curves.tables["tokens"]["score"]
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_reading_is_gradient_times_embedding(family):
    signal = make_signal(family)
    ev = token_map(signal, PAIRS[:2], methods="gradient")
    items = texts(PAIRS[:2])
    slopes = signal.gradient(items, "embed")
    values = signal.capture(items, ["embed"], position="all")["embed"]
    for k, (slope, value) in enumerate(zip(slopes, values, strict=True)):
        expected = (slope.double() * value.double()).sum(-1).numpy()
        found = read(ev, "gradient", k)[: len(expected)]
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.filterwarnings("ignore:integrated gradients with steps=5")
@pytest.mark.parametrize("baseline", ["mean", "zero"])
def test_integrated_gradients_by_hand(signal, baseline):
    """Five points of the way, by autograd through the model's own ``inputs_embeds``."""
    model, items = signal.trunk.model, texts(SHORT)
    ev = token_map(signal, SHORT, methods="integrated", steps=5, baseline=baseline)
    nodes, weights = np.polynomial.legendre.leggauss(5)

    def state(embeddings, at):
        return model.score(model.base_model(inputs_embeds=embeddings[None])[0][0, at])[0]

    for k, (encoded, span) in enumerate(
        zip(signal.encode(items), responses(signal, items), strict=True)
    ):
        full = model.model.embed_tokens(torch.from_numpy(encoded.ids)).detach()
        inside, start = slice(*span), full.clone()
        start[inside] = 0 if baseline == "zero" else full[inside].mean(0)
        mean = torch.zeros_like(full)
        for node, weight in zip(nodes, weights, strict=True):
            point = (start + (node + 1) / 2 * (full - start)).requires_grad_()
            (slope,) = torch.autograd.grad(state(point, encoded.native), point)
            mean += weight / 2 * slope
        expected = ((full - start) * mean).sum(-1)[inside].numpy()
        found = read(ev, "integrated", k)[inside]
        np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
        row = ev.tables["completeness"].iloc[k]
        assert (row["side"], row["pair"]) == (("chosen", "rejected")[k], ev.value["pair"][0])
        with torch.no_grad():
            assert row["baseline_score"] == pytest.approx(float(state(start, encoded.native)), 1e-4)
        assert row["score"] == pytest.approx(score_of(signal, encoded.ids), abs=1e-4)
        assert row["total"] == pytest.approx(np.nansum(found))
        assert row["gap"] == pytest.approx(row["total"] - row["score"] + row["baseline_score"])
        assert row["share"] == pytest.approx(abs(row["gap"]) / np.nansum(np.abs(found)))


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gpt_neox", "qwen3"])
def test_completeness_goes_to_nothing_with_steps(family, monkeypatch):
    monkeypatch.setattr(token_maps, "_GAP_WARNS", 1.0)
    monkeypatch.setattr(token_maps, "_GAP_REFUSES", 1.0)
    signal, worst = make_signal(family), []
    for steps in (1, 3, 16):
        ev = token_map(signal, SHORT, methods=["integrated"], steps=steps)
        worst.append(float(ev.tables["completeness"]["share"].max()))
    assert worst[2] < 1e-4
    assert worst[2] < worst[1] < worst[0]


def test_what_does_not_add_up_is_said_or_not_handed_out():
    options = {"baseline": "zero", "methods": ["gradient", "integrated"]}
    gpt2, gemma2 = make_signal("gpt2"), make_signal("gemma2")
    with pytest.warns(UserWarning, match=r"steps=2 miss .* by 6\.3% .* more steps, or baseline='m"):
        token_map(gpt2, SHORT, steps=2, **options)
    with pytest.raises(NumericsError, match="steps=8 miss .* too far to hand out; take more steps"):
        token_map(gemma2, SHORT, steps=8, **options)
    ev = token_map(gemma2, SHORT, steps=8, baseline="zero")  # not asked for by name: left out
    assert list(ev.value["reading"].values) == ["prefix", "gradient", "leave_one_out"]
    table = ev.tables["methods"].set_index("method")
    assert "too far to hand out" in table.loc["integrated", "reason"]
    assert not table.loc["integrated", "given"]
    assert len(ev.tables["agreement"]) == 3
    assert "integrated" not in ev.tables["tokens"]
    assert (ev.tables["completeness"]["share"] > 0.03).all()


@pytest.mark.parametrize("unit", ["token", "sentence"])
def test_what_is_left_out_is_run_again_without(signal, unit):
    pairs = [("Why?", "One. Two!  Three", "It is so.\nBecause it is…")]
    ev = token_map(signal, pairs, methods=["leave_one_out"], unit=unit)
    for k, item in enumerate(rl.data.as_items(texts(pairs))):
        aligned = signal.encoder.align(item, "error")
        ids, (start, stop) = signal.encode([item])[0].ids, aligned.response
        cuts = [(t, t + 1) for t in range(start, stop)]
        if unit == "sentence":
            cuts = sentence_spans(aligned, aligned.response)
            assert [b for _, b in cuts[:-1]] == [a for a, _ in cuts[1:]]
            assert (cuts[0][0], cuts[-1][1]) == (start, stop)
        expected = [score_of(signal, ids) - score_of(signal, [*ids[:a], *ids[b:]]) for a, b in cuts]
        found = read(ev, "leave_one_out", k)
        np.testing.assert_allclose(found[~np.isnan(found)], expected, atol=1e-5 * np.ptp(expected))
    assert ev.provenance.cost_forwards == 2 + int(ev.value.notnull().sum())


# What it says of itself.


def test_the_record(signal, tokens):
    assert tokens.tier is Tier.OBSERVATIONAL
    assert tokens.units is Units.REWARD
    left = int(tokens.value.sel(reading="leave_one_out").notnull().sum())
    assert tokens.provenance.cost_forwards == 8 + 2 * 8 + 8 + left
    both = token_map(signal, PAIRS, methods=("gradient", "integrated"), steps=32)
    assert both.provenance.cost_forwards == 8 * (2 * (1 + 32) + 1)
    table = tokens.tables["methods"].set_index("method")
    assert list(table["given"]) == [True, True, False, True]
    assert table.loc["integrated", "reason"] == "not asked for"
    alone = token_map(signal, SHORT, methods="integrated", unit="sentence")
    assert "gradient" not in alone.tables["tokens"]  # it was computed on the way
    rows = tokens.tables["tokens"]
    assert len(rows) == sum(len(e.ids) for e in signal.encode(texts()))
    assert rows["read"].sum() == 8
    for reading in CHEAP:
        laid = np.concatenate([
            read(tokens, reading, k)[: len(e.ids)] for k, e in enumerate(signal.encode(texts()))
        ])  # fmt: skip
        np.testing.assert_array_equal(rows[reading], laid)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(order=st.permutations(range(4)), batch_tokens=st.integers(1, 500))
def test_neither_batch_nor_order_matters(signal, order, batch_tokens):
    pairs, options = as_pairs(PAIRS), {"methods": ("prefix", "gradient", "integrated"), "steps": 4}
    expected = token_map(signal, pairs, **options).value
    found = token_map(signal, pairs.select(order), batch_tokens=batch_tokens, **options)
    gap = np.abs(found.value.sel(pair=pairs.ids) - expected)
    assert (gap.notnull() == expected.notnull()).all()
    assert float(gap.max()) < 1e-5 * float(np.abs(expected).max())


def test_gradients_of_a_batch_are_let_go(signal, monkeypatch):
    alive, held = [], []

    def watched(*args, **options):
        for one in sweep(*args, **options):
            for tensor in one.slopes.values():
                alive.append(1)
                torch.utils.weak.weakref.finalize(tensor, alive.pop)
            held[-1] = max(held[-1], len(alive))
            yield one

    sweep = token_methods.gradient_sweep
    monkeypatch.setattr(token_methods, "gradient_sweep", watched)
    for n in (3, 9):
        held.append(0)
        pairs = [(f"q{k}", "some answer", "another one") for k in range(n)]
        token_map(signal, pairs, methods=["integrated"], steps=16, batch_tokens=70)
    assert held[0] == held[1] <= 4


@pytest.mark.parametrize("name", ["bert", "modernbert, mean"])
def test_a_trunk_that_looks_both_ways(name):
    """No prefix scores; types, where there are some, go with the ids that are left out."""
    signal = rl.wrap_hf_model(zoo.make(name), zoo.tokenizer_for(name))
    ev = token_map(signal, SHORT, steps=16)
    assert list(ev.value["reading"].values) == ["gradient", "integrated", "leave_one_out"]
    reason = ev.tables["methods"].set_index("method").loc["prefix", "reason"]
    assert reason.startswith("needs PREFIX_SCORES, which")
    with pytest.raises(CapabilityError, match="token_map by 'prefix' needs PREFIX_SCORES"):
        token_map(signal, SHORT, methods="prefix")
    encoded, (start, stop) = signal.encode(texts(SHORT))[0], responses(signal, texts(SHORT))[0]
    found = read(ev, "leave_one_out", 0)
    for t in range(start, stop):
        scores = []
        for keep in (slice(None), np.arange(len(encoded.ids)) != t):
            ids = torch.from_numpy(encoded.ids[keep])[None]
            types = encoded.types
            more = {} if types is None else {"token_type_ids": torch.from_numpy(types[keep])[None]}
            with torch.no_grad():
                scores.append(float(signal.trunk.model(input_ids=ids, **more).logits[0, 0]))
        assert found[t] == pytest.approx(scores[0] - scores[1], abs=1e-5)
    assert (found[start:stop] != 0).any()


def test_readings_are_of_the_token_that_is_read(signal):
    mean = token_map(signal, SHORT, position="mean", methods=["gradient", "leave_one_out"])
    slope = signal.gradient(texts(SHORT), "embed", position="mean")[0].double()
    value = signal.capture(texts(SHORT), ["embed"], position="all")["embed"][0].double()
    found = read(mean, "gradient", 0)[: len(slope)]
    np.testing.assert_allclose(found, (slope * value).sum(-1), atol=1e-6)
    ids, (start, _) = signal.encode(texts(SHORT))[0].ids, responses(signal, texts(SHORT))[0]
    whole, rest = (
        float(signal.score([rl.Item(ids=tuple(i))], position="mean").value[0])
        for i in (ids, np.delete(ids, start))
    )
    assert read(mean, "leave_one_out", 0)[start] == pytest.approx(whole - rest, abs=1e-5)
    for position in ("mean", "first"):
        table = token_map(signal, SHORT, position=position, steps=64).tables["methods"]
        reason = table.set_index("method").loc["prefix", "reason"]
        assert reason.endswith(f"and not at position={position!r}")
        with pytest.raises(AnatomyError, match="'prefix' is not available here: a prefix is read"):
            token_map(signal, SHORT, position=position, methods=["prefix"])
    assert "prefix" in token_map(signal, SHORT, position="last", methods="prefix").value["reading"]


def test_where_the_embedding_enters_twice_it_has_no_gradient_alone():
    zamba = rl.wrap_hf_model(zoo.make("zamba"), zoo.tokenizer_for("zamba"))
    table = token_map(zamba, SHORT).tables["methods"].set_index("method")
    assert list(table["given"]) == [True, False, False, True]
    assert table.loc["gradient", "reason"].startswith("the embedding also enters block")
    with pytest.raises(AnatomyError, match="token_map by 'integrated' is not available here: the"):
        token_map(zamba, SHORT, methods=["integrated"])


def test_small_texts(signal):
    """One token, and ids without a place for the response: every token counts as one of it."""
    one = token_map(signal, [("p", "a", "b")])
    assert one.tables["agreement"]["rank_correlation"].isna().all()
    assert (one.tables["agreement"]["undefined"] == 2).all()
    last = one.value.isel(position=-1)
    assert last.notnull().all()
    assert (last.sel(reading="integrated") == 0).all()  # its own mean
    ids = token_map(signal, [{"input_ids_chosen": [5, 6, 7], "input_ids_rejected": [8]}])
    found = ids.value.sel(side="chosen").isel(pair=0)
    assert found.sel(reading=["gradient", "integrated", "leave_one_out"]).notnull().all()
    alone = ids.value.sel(side="rejected", reading="leave_one_out").isel(pair=0)
    assert alone.isnull().all()  # nothing is left to read
    same = token_map(signal, [("p", "the same", "the same")])
    chosen, rejected = (same.value.sel(side=s) for s in ("chosen", "rejected"))
    # Two rows of a batch differ by float32's rounding of the scores, which are this large.
    np.testing.assert_allclose(chosen, rejected, atol=1e-6 * float(np.abs(chosen).max()))


def test_what_a_gate_is_read_at_cannot_be_left_out(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "signals")
    from heads_on_disk import CASES, write

    write(tmp_path, next(c for c in CASES if c.composite is not None))
    signal = rl.load_signal(tmp_path)
    ids, start = [40, 41, *signal.gate.pattern, 42, 43, 44], 2
    stop = start + len(signal.gate.pattern)
    pair = [{"input_ids_chosen": ids, "input_ids_rejected": [*ids, 45]}]
    ev = token_map(signal, pair, readout="composite", methods="leave_one_out")
    found = read(ev, "leave_one_out", 0)[: len(ids)]
    assert np.isnan(found[start:stop]).all()
    for t in (*range(start), *range(stop, len(ids))):
        rest = [rl.Item(ids=tuple(i)) for i in (ids, ids[:t] + ids[t + 1 :])]
        a, b = signal.score(rest, readout="composite").value.values
        assert found[t] == pytest.approx(a - b, abs=1e-5)


def test_bfloat16_is_near_float32(signal):
    options = {"methods": ["gradient", "integrated"], "steps": 32}
    half = make_signal("llama", dtype=torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # in half precision it does not quite add up
        found = token_map(half, SHORT, **options).value
    expected = token_map(signal, SHORT, **options).value
    assert found.dtype == np.float64
    for reading in options["methods"]:
        a, b = (v.sel(reading=reading).values.ravel() for v in (found, expected))
        assert np.corrcoef(a[~np.isnan(a)], b[~np.isnan(b)])[0, 1] > 0.98


def test_wrong_use(signal):
    cases = [
        ({"unit": "word"}, CapabilityError, "unit='word': choose one of token, sentence"),
        ({"baseline": "noise"}, CapabilityError, "baseline='noise': choose one of mean, zero"),
        ({"steps": 0}, DataError, "steps=0: give a whole number, 1 or more"),
        ({"methods": ["lime"]}, CapabilityError, "method 'lime' is unknown: choose from prefix"),
        ({"methods": []}, CapabilityError, "no method was asked for: choose from prefix"),
        ({"readout": "taste"}, CapabilityError, "no readout 'taste'"),
        ({"position": "middle"}, CapabilityError, "position='middle'"),
    ]
    for options, error, said in cases:
        with pytest.raises(error, match=said):
            token_map(signal, SHORT, **options)
    with pytest.raises(DataError):
        token_map(signal, [])
