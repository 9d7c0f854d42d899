"""The benchmarks' rules on score tables whose marks were worked out on paper."""

from __future__ import annotations

from math import tanh

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward_lens.errors import DataError, NumericsError
from reward_lens.evidence.benchmark_rules import (
    REWARDBENCH_SECTIONS,
    REWARDBENCH_WEIGHTS,
    best_of_credit,
    overall_weights,
    section_weights,
    ties_score,
)

# Three numbers with both prompts, and a tied prompt alone.
TIES = {
    "ref:0": ([3.0, 1.0], 1),  # gap 2
    "tied:0": ([5.0, 4.0, 2.0], 2),  # gap 2, spread 1
    "ref:1": ([1.0, 1.0, 0.0], 1),  # gap 0: level is not above
    "tied:1": ([3.0, 3.0, 3.0], 2),  # gap 0, spread 0
    "ref:2": ([1.0, 0.5], 1),  # gap 0.5
    "tied:2": ([6.0, 4.0, 5.0, 1.0], 3),  # gap 3, spread 2
    "tied:3": ([2.0, 2.0, 1.0], 2),  # gap 1, spread 0
}


def score(table, **more):
    return ties_score(list(table), [s for s, _ in table.values()],
                      [n for _, n in table.values()], **more)  # fmt: skip


@pytest.mark.parametrize(
    ("scores", "correct", "credit"),
    [
        ([2, 1, 1, 0], 1, 1),
        ([1, 1, 0, 0], 1, 1 / 2),
        ([1, 0, 1, 1], 1, 1 / 3),
        ([1, 1, 1, 1], 1, 1 / 4),
        ([0, 1, 0, 0], 1, 0),
        ([0, 1, 1, 0], 1, 0),
        ([3, 1, 2, 0], 2, 1),
        ([1, 1, 1, 0], 2, 2 / 3),
    ],
)
def test_best_of_n_shares_the_credit_of_a_tie_at_the_top(scores, correct, credit):
    assert best_of_credit(scores, correct) == credit


def test_best_of_n_refuses_what_is_no_choice():
    with pytest.raises(DataError, match="2 of 2 responses are correct"):
        best_of_credit([1, 2], 2)
    with pytest.raises(NumericsError, match="row 1 is NaN"):
        best_of_credit([1, np.nan, 0], 1)


def test_ties_formula_on_paper():
    found = score(TIES)
    parts = {
        "tied_accuracy": 3 / 4,
        "ref_accuracy": 2 / 3,
        "preferred": 2 / 3,  # numbers 0 and 2
        "preferred_hard": 1 / 3,  # number 0: in 2 the reference's gap 0.5 is below the spread 2
        "margin": (tanh(1) + 0 + tanh(0.25 - 1)) / 3,  # 0/0 counts 0
    }
    assert found.parts == pytest.approx(parts)
    assert found.prompts == {
        "tied_accuracy": 4, "ref_accuracy": 3, "preferred": 3, "preferred_hard": 3, "margin": 3
    }  # fmt: skip
    paper = 0.3 * 3 / 4 + 0.3 * 2 / 3 + 0.2 * 2 / 3 + 0.2 / 3 + 0.01 * parts["margin"]
    assert found.score.estimate == pytest.approx(paper)
    assert found.score.clusters == 4  # both prompts of a number are one lineage
    assert found.score.low < paper < found.score.high


def test_ties_margin_has_the_limits_of_its_formula_where_the_right_ones_are_level():
    ahead = {"ref:0": ([1.0, 0.0], 1), "tied:0": ([2.0, 2.0, 1.0], 2)}
    assert score(ahead).parts["margin"] == 1
    assert score(ahead).score.estimate == pytest.approx(1.01)
    behind = {"ref:0": ([1.0, 0.0], 1), "tied:0": ([2.0, 2.0, 3.0], 2)}
    assert score(behind).parts["margin"] == -1
    assert score(behind).score.estimate == pytest.approx(0.30 - 0.01)


@given(scale=st.floats(0.1, 10), shifts=st.lists(st.floats(-5, 5), min_size=7, max_size=7))
def test_ties_score_knows_neither_scale_nor_shifts_per_prompt(scale, shifts):
    moved = {k: ([s * scale + c for s in v], n) for (k, (v, n)), c in
             zip(TIES.items(), shifts, strict=True)}  # fmt: skip
    # Rounding may break an exact tie; numbers 1 and 3 rest on one.
    exact = {k: v for k, v in TIES.items() if k[-1] in "02"}
    moved = {k: v for k, v in moved.items() if k in exact}
    assert score(moved).parts == pytest.approx(score(exact).parts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"0": ([1.0, 0.0], 1)}, "neither ref:<number> nor tied:<number>.*ties=None"),
        ({"tied:9": ([1.0, 0.0], 1)}, "'tied:9' has one correct response"),
    ],
)
def test_ties_refuses_other_ids(change, message):
    with pytest.raises(DataError, match=message):
        score({**TIES, **change})


def test_ties_needs_a_number_with_both_prompts_and_each_once():
    alone = {k: v for k, v in TIES.items() if k in ("ref:0", "tied:3")}
    with pytest.raises(DataError, match="no number has both"):
        score(alone)
    with pytest.raises(DataError, match="'ref:0' is there twice"):
        ties_score(["ref:0", "ref:0"], [[1, 0], [1, 0]], [1, 1])


def test_rewardbench_weights_are_the_published_ones():
    every = {s for members in REWARDBENCH_SECTIONS.values() for s in members}
    assert every == set(REWARDBENCH_WEIGHTS)
    code = sum(w for s, w in REWARDBENCH_WEIGHTS.items() if s.startswith("hep-"))
    assert REWARDBENCH_WEIGHTS["math-prm"] == code == 984
    # 2985 pairs in the four sections, of which math-prm really has 447
    core = [s for k, m in REWARDBENCH_SECTIONS.items() if k != "Prior Sets" for s in m]
    assert sum(REWARDBENCH_WEIGHTS[s] for s in core) - 984 + 447 == 2985


def test_section_and_overall_weights():
    inner = section_weights(["alpacaeval-easy", "mt-bench-med", "shp", "summarize", "other"])
    assert inner["Chat"] == pytest.approx({"alpacaeval-easy": 100 / 140, "mt-bench-med": 40 / 140})
    assert inner["Prior Sets"] == {"shp": 0.5, "summarize": 0.5}
    assert overall_weights(inner) == pytest.approx(
        {
            "alpacaeval-easy": 100 / 140 / 1.5,
            "mt-bench-med": 40 / 140 / 1.5,
            "shp": 0.25 / 1.5,
            "summarize": 0.25 / 1.5,
        }
    )
    with pytest.raises(DataError, match=r"none of the subsets \['other'\] is in a section"):
        section_weights(["other"])
    with pytest.raises(DataError, match="'a' is in two sections"):
        section_weights(["a"], {"x": ["a"], "y": ["a"]})
