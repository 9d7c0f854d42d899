"""Best of N and what margins say, on scores set by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from families import PAIRS, make_signal

import reward_lens as rl
from reward_lens.errors import DataError, EvidenceError
from reward_lens.evidence import Units
from reward_lens.instruments.best_of import best_of_n
from reward_lens.instruments.margin_reports import (
    margin_distribution,
    reliability_curve,
    worst_errors,
)
from reward_lens.instruments.sections import section_accuracy


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


@pytest.fixture
def scored(signal, monkeypatch):
    """Let the signal give these scores, in the order of the items."""
    plain = signal.score

    def give(scores):
        def score(items, **more):
            ev = plain(items, **more)
            value = ev.value.copy(data=np.array(scores, dtype=np.float32))
            return dataclasses.replace(ev, value=value)

        monkeypatch.setattr(signal, "score", score)
        return signal

    return give


def row(id_, subset, correct, wrong):
    return {
        "id": id_,
        "subset": subset,
        "prompt": f"{id_}?",
        "chosen": [f"right {k}" for k in range(correct)],
        "rejected": [f"wrong {k}" for k in range(wrong)],
    }


TABLE = [
    (row("0", "Math", 1, 3), [2, 1, 1, 0], 1),
    (row("1", "Math", 1, 3), [1, 1, 0, 0], 1 / 2),
    (row("2", "Focus", 1, 3), [1, 1, 1, 1], 1 / 4),
    (row("3", "Focus", 1, 3), [0, 1, 0, 0], 0),
    (row("ref:0", "Ties", 1, 1), [3, 1], 1),
    (row("tied:0", "Ties", 2, 1), [5, 4, 2], 1),
    (row("ref:1", "Ties", 1, 2), [1, 1, 0], 0),
    (row("tied:1", "Ties", 2, 1), [3, 3, 3], 0),
]


def test_rewardbench_2_on_a_hand_made_table(scored):
    signal = scored([s for _, scores, _ in TABLE for s in scores])
    ev = best_of_n(signal, [r for r, _, _ in TABLE])
    np.testing.assert_array_equal(ev.value, [credit for *_, credit in TABLE])
    assert ev.units is Units.PROBABILITY
    assert ev.provenance.cost_forwards == 16 + 11
    ties = 0.3 / 2 + 0.3 / 2 + 0.2 / 2 + 0.2 / 2 + 0.01 * math.tanh(1) / 2
    assert ev.interval("ties.score").estimate == pytest.approx(ties)
    assert ev.interval("best_of_n[subset=Math]").estimate == 3 / 4
    overall = ev.interval("best_of_n")
    assert overall.estimate == pytest.approx((3 / 4 + 1 / 8 + ties) / 3)
    assert "without RewardBench 2's Factuality, Precise IF, Safety" in overall.note
    table = ev.tables["accuracy"].set_index("subset")
    assert list(table["rule"]) == ["best of N", "best of N", "ties"]
    assert list(table["chance"])[:2] == [1 / 4, 1 / 4]
    assert list(table["level_at_the_top"]) == [1, 1, 2]
    assert list(ev.tables["ties"]["value"])[:4] == [0.5] * 4
    responses = ev.tables["responses"]
    assert responses["correct"].sum() == 4 + 1 + 2 + 1 + 2
    assert list(responses["score"])[:4] == [2, 1, 1, 0]


def test_without_the_ties_rule_every_subset_is_best_of_n(scored):
    signal = scored([s for _, scores, _ in TABLE for s in scores])
    ev = best_of_n(signal, [r for r, _, _ in TABLE], ties=None)
    assert set(ev.value["rule"].values) == {"best of N"}
    assert ev.interval("best_of_n[subset=Ties]").estimate == (1 + 1 + 1 / 2 + 2 / 3) / 4


def test_ids_of_another_form_are_refused_in_the_ties_subset(scored):
    rows = [row("a", "ties", 1, 1), row("b", "ties", 2, 1)]
    with pytest.raises(DataError, match="neither ref:<number> nor tied:<number>"):
        best_of_n(scored([1, 0, 2, 1, 0]), rows)


def test_real_scores_are_those_of_the_items(signal):
    choices = [r for r, _, _ in TABLE]
    ev = best_of_n(signal, choices)
    items = [(r["prompt"], t) for r in choices for t in (*r["chosen"], *r["rejected"])]
    np.testing.assert_array_equal(ev.tables["responses"]["score"], signal.score(items).value)


# RewardBench 1: (subset, margins)
MARGINS = [
    ("alpacaeval-easy", [1, 0]),
    ("mt-bench-med", [1, 1]),
    ("math-prm", [1, -1, -1, 1]),
    ("hep-cpp", [1, 1]),
    ("shp", [1, -1, -1, -1]),
    ("summarize", [1, 1, 1, 0]),
    ("mine", [-1, -1]),
]


@pytest.fixture
def preferred(scored):
    rows = [
        {"prompt": f"{s} {k}", "chosen": "a", "rejected": "b", "subset": s}
        for s, margins in MARGINS
        for k in range(len(margins))
    ]
    flat = [float(m) for _, margins in MARGINS for m in margins]
    return rl.preference(scored([*flat, *[0.0] * len(flat)]), rows), rows, np.array(flat)


def test_rewardbench_sections_on_a_hand_made_table(preferred):
    ev = section_accuracy(preferred[0])
    found = dict(zip(ev.value["group"].values, ev.value.values, strict=True))
    assert found == pytest.approx(
        {
            "Chat": (100 * 0.5 + 40 * 1) / 140,  # the tie is a loss
            "Reasoning": (984 * 0.5 + 164 * 1) / 1148,
            "Prior Sets": (0.25 + 0.75) / 2,
            "overall": 41 / 70,  # (9/14 + 4/7 + 0.5 · 1/2) / 2.5
        }
    )
    note = ev.interval("accuracy[overall]").note
    assert "without Chat Hard, Safety, of which there are no pairs" in note
    table = ev.tables["subsets"].set_index("subset")
    assert table.loc["mine", "section"] == "(none)"
    assert np.isnan(table.loc["mine", "weight_overall"])
    assert table["weight_overall"].sum() == pytest.approx(1)
    assert ev.tables["sections"].set_index("group").loc["overall", "ties"] == 2
    assert ev.provenance.parents == (preferred[0].id,)
    assert ev.provenance.cost_forwards == 0


def test_ties_can_count_half(preferred):
    ev = section_accuracy(preferred[0], ties="half")
    chat = ev.interval("accuracy[section=Chat]").estimate
    assert chat == pytest.approx((100 * 0.75 + 40) / 140)
    with pytest.raises(DataError, match="ties='win'"):
        section_accuracy(preferred[0], ties="win")


def test_sections_of_ones_own_count_their_subsets_alike(preferred):
    ev = section_accuracy(preferred[0], {"x": ["mine", "shp"], "y": ["hep-cpp"], "z": ["absent"]})
    assert list(ev.value.values) == [0.125, 1.0, (0.125 + 1) / 2]
    with pytest.raises(DataError, match="none of the subsets"):
        section_accuracy(preferred[0], {"z": ["absent"]})


def test_margins_spread_per_subset(preferred):
    ev, _, flat = preferred
    found = margin_distribution(ev)
    np.testing.assert_allclose(
        found.value.sel(subset="all"), np.quantile(flat, found.value["quantile"])
    )
    summary = found.tables["summary"].set_index("subset")
    assert summary.loc["shp", "mean"] == -0.5
    assert summary.loc["all", "ties"] == 2
    assert found.interval("margin[subset=shp]").estimate == -0.5
    histogram = found.tables["histogram"]
    counts = histogram.groupby("subset")["pairs"].sum()
    assert counts["all"] == len(flat)
    assert counts.drop("all").sum() == len(flat)


def test_reliability_is_that_of_the_margins(preferred):
    ev, _, flat = preferred
    found = reliability_curve(ev, bins=5)
    p = 1 / (1 + math.exp(-1))
    at = int((p - 0.5) / 0.1)
    right, wrong = (flat > 0).sum(), (flat < 0).sum()
    assert found.value.sel(quantity="predicted").values[at] == pytest.approx(p)
    assert found.value.sel(quantity="observed").values[at] == pytest.approx(right / (right + wrong))
    assert found.value.sel(quantity="observed").values[0] == 0.5
    ece = (right + wrong) / len(flat) * abs(right / (right + wrong) - p)
    assert found.interval("ece").estimate == pytest.approx(ece)
    assert list(found.tables["ece"]["quantity"])[1] == "debiased"


def test_worst_errors_come_with_their_texts(signal):
    ev = rl.preference(signal, PAIRS)
    margins = ev.value.sel(side="margin").values
    found = worst_errors(ev, PAIRS, count=2)
    table = found.tables["errors"]
    order = [k for k in np.argsort(margins) if margins[k] < 0][:2]
    assert len(table) == len(order) > 0
    for (_, shown), k in zip(table.iterrows(), order, strict=True):
        assert (shown["prompt"], shown["chosen"], shown["rejected"]) == PAIRS[k]
        assert shown["margin"] == pytest.approx(margins[k])
        assert shown["confidence"] == pytest.approx(1 / (1 + math.exp(margins[k])))
        assert shown["score_chosen"] < shown["score_rejected"]
    turned = [(p, b, a) for p, a, b in PAIRS]
    with pytest.raises(EvidenceError, match="not the pairs"):
        worst_errors(ev, turned)


def test_no_errors_is_an_empty_table(scored):
    pairs = [(f"p{k}", "a", "b") for k in range(3)]
    ev = rl.preference(scored([1.0, 2.0, 0.0, 0.0, 0.0, 0.0]), pairs)  # the last is a tie
    found = worst_errors(ev, pairs)
    assert found.value.shape == (0,)
    assert len(found.tables["errors"]) == 0
    assert found.id  # it can be hashed, and so kept


def test_reports_refuse_other_evidence(signal):
    ev = rl.lens(signal, PAIRS)
    for report in (margin_distribution, reliability_curve, section_accuracy):
        with pytest.raises(EvidenceError, match=r"reads the evidence of preference, .* of lens"):
            report(ev)


def test_a_subset_called_all_does_not_take_the_place_of_all_pairs(scored):
    rows = [{"prompt": f"p{k}", "chosen": "a", "rejected": "b", "subset": s}
            for k, s in enumerate(["all", "all", "z"])]  # fmt: skip
    found = margin_distribution(rl.preference(scored([1.0, 2.0, 6.0, 0.0, 0.0, 0.0]), rows))
    table = found.tables["summary"]
    assert list(table["subset"]) == list(found.value["subset"]) == ["all", "subset=all", "z"]
    assert list(table["pairs"]) == [3, 2, 1]
    assert list(table["mean"]) == pytest.approx([3, 1.5, 6])
    assert found.interval("margin").n == 3
    assert found.interval("margin[subset=all]").n == 2


def test_a_section_called_overall_does_not_take_the_place_of_the_overall_score(preferred):
    with pytest.raises(DataError, match="a section is called 'overall'"):
        section_accuracy(preferred[0], sections={"overall": ["math-prm"]})


def test_a_subset_called_as_a_part_of_the_ties_formula_is_another(scored):
    ties = [row("ref:0", "Ties", 1, 2), row("tied:0", "Ties", 2, 1)]
    scores = [3.0, 0.0, 1.0, 3.0, 2.0, 0.0]
    found = [
        best_of_n(scored([*scores, 0.0, 1.0]), [*ties, row("x", subset, 1, 1)])
        for subset in ("Focus", "preferred")
    ]
    one, other = (e.interval("best_of_n").estimate for e in found)
    assert one == pytest.approx(found[0].interval("ties.score").estimate / 2)
    assert other == one
