"""What is said of pairs does not depend on the form they come in."""

from __future__ import annotations

import numpy as np
import pytest
from families import PAIRS, make_signal
from scipy.stats import spearmanr

import reward_lens as rl
from reward_lens.data import Item, Pair, Pairs
from reward_lens.instruments.pair_scores import length_slope


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


def test_accuracy_and_margins_by_hand(signal):
    ev = rl.preference(signal, PAIRS)
    scores = [signal.score([(p, a), (p, b)]).value.values for p, a, b in PAIRS]
    margins = np.array([a - b for a, b in scores])
    np.testing.assert_allclose(ev.value.sel(side="margin"), margins, atol=1e-6)
    assert ev.interval("accuracy").estimate == (margins > 0).mean()


def test_ids_have_no_response_length_and_say_so(signal):
    encoded = signal.encode([(p, r) for p, a, b in PAIRS for r in (a, b)])
    rows = [
        {"input_ids_chosen": c.ids.tolist(), "input_ids_rejected": r.ids.tolist()}
        for c, r in zip(encoded[::2], encoded[1::2], strict=True)
    ]
    texts, ids = rl.preference(signal, PAIRS), rl.preference(signal, rows)
    np.testing.assert_allclose(texts.value, ids.value, atol=1e-6)
    assert np.isfinite(texts.interval("length.correlation").estimate)
    for name in ("length.correlation", "length.slope"):
        assert np.isnan(ids.interval(name).estimate)
        assert "where the response begins" in ids.interval(name).note
    audit = rl.audit(signal, rows)
    assert audit.passed
    from reward_lens.report import Page, render

    assert "where the response begins" in render(
        Page("m", "f", "c", "e"), audit.evidence, audit.shown
    )


def test_score_and_length_of_the_whole_text_by_hand(signal):
    """Every token counts, also where nothing says where the response begins."""
    encoded = signal.encode(
        [(p, r) for side in (1, 2) for p, r in ((t[0], t[side]) for t in PAIRS)]
    )
    scores = signal.score(
        [(p, r) for side in (1, 2) for p, r in ((t[0], t[side]) for t in PAIRS)]
    ).value.values
    n, half = [len(e.ids) for e in encoded], len(PAIRS)
    rows = [
        {"input_ids_chosen": encoded[k].ids.tolist(),
         "input_ids_rejected": encoded[k + half].ids.tolist()}
        for k in range(half)
    ]  # fmt: skip
    for given in (PAIRS, rows):
        found = rl.preference(signal, given).interval("length.whole_text")
        assert found.estimate == pytest.approx(spearmanr(n, scores).statistic)
        assert found.n == 2 * half


def two_prompts_a_lineage(lengths):
    """Pairs of two prompts a lineage, whose second prompt has the longer and better answers."""
    rows = []
    for k, (a, b) in enumerate(lengths):
        chosen, rejected = (
            Item.of(f"prompt {k}", "x" * n + end) for n, end in ((a, "a"), (b, "b"))
        )
        rows.append(Pair(chosen, rejected, str(k), f"l{k // 2}"))
    return Pairs(rows)


def test_the_length_slope_is_within_prompts_and_counts_lineages(signal):
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 30, size=(40, 2)) + 100 * (np.arange(40) % 2)[:, None]
    pairs = two_prompts_a_lineage(lengths)
    x = np.log(lengths.T.reshape(-1) + 1.0)
    better = np.tile(50.0 * (np.arange(40) % 2), 2)  # of whole prompts: not of length
    exact = length_slope(pairs, x, 2 * x + better)
    assert exact.estimate == pytest.approx(2)
    noisy = 2 * x + better + rng.normal(size=80)
    found = length_slope(pairs, x, noisy)
    prompts, lineages = np.tile(np.arange(40), 2), np.tile(pairs.lineages, 2)
    cx, cy = (v - np.bincount(prompts, weights=v)[prompts] / 2 for v in (x, noisy))
    assert found.estimate == pytest.approx(cx @ cy / (cx @ cx))
    assert (found.n, found.clusters) == (80, 20)
    assert found.low < 2 < found.high
    scores = cx * (cy - found.estimate * cx)
    sums = [scores[lineages == name].sum() for name in set(lineages)]
    sandwich = np.sqrt(20 / 19 * np.square(sums).sum()) / (cx @ cx)
    assert found.se == pytest.approx(sandwich, rel=0.01)
    # Both instruments that report it do so.
    unit = np.median(np.abs(rl.preference(signal, pairs).value.sel(side="margin").values))
    slopes = [
        make(signal, pairs).interval("length.slope").estimate
        for make in (rl.preference, rl.style_accuracy)
    ]
    by_hand = rl.preference(signal, pairs).value.values[:2].reshape(-1).astype(float)
    by_hand -= np.bincount(prompts, weights=by_hand)[prompts] / 2
    assert slopes[0] == pytest.approx(cx @ by_hand / (cx @ cx), rel=1e-6)
    assert slopes[1] == pytest.approx(slopes[0] / unit, rel=1e-4)


def test_length_that_differs_between_prompts_only_has_no_slope(signal):
    pairs = two_prompts_a_lineage([(5 + 100 * (k % 2),) * 2 for k in range(8)])
    for make in (rl.preference, rl.style_accuracy):
        found = make(signal, pairs).interval("length.slope")
        assert np.isnan([found.estimate, found.low, found.high]).all()
        assert found.note == "length varies within no prompt"


def test_identical_sides_are_ties_and_degenerate_in_both_readings(signal):
    pairs = [(f"prompt {k}", "the same", "the same") for k in range(3)]
    assert rl.preference(signal, pairs).tables["accuracy"]["ties"][0] == 3
    table = rl.lens(signal, pairs).tables["crystallization"]
    assert list(table["degenerate"]) == [3, 3]
    assert table["median_first"].isna().all()


def test_parts_are_on_record_by_what_is_in_them(signal):
    def recorded(parts):
        return rl.preference(signal, PAIRS, parts=parts).provenance.parameters["parts"]

    one = recorded({"train": ["0", "1"], "test": ["2"]})
    assert set(one) == {"train", "test"}
    assert one == recorded({"test": ["2"], "train": ["1", "0"]})
    assert one["train"] != recorded({"train": ["0"]})["train"]
    assert recorded(None) is None


def test_a_subset_is_called_as_it_is_brackets_and_all(signal):
    rows = [{"prompt": p, "chosen": a, "rejected": b, "subset": s}
            for (p, a, b), s in zip(PAIRS, ["[a]", "b]", "all"], strict=False)]  # fmt: skip
    groups = rl.preference(signal, rows).tables["accuracy"]["group"]
    assert list(groups) == ["all", "subset=[a]", "subset=b]", "subset=all"]
