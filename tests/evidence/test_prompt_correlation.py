"""Correlation within prompts: invariances, counts, and what has no interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_lens.errors import DataError, NumericsError
from reward_lens.evidence.intervals import jackknife_correlation
from reward_lens.evidence.prompt_correlation import (
    centre_by_prompt,
    prompt_correlation,
    prompt_rank_correlation,
)

RNG = np.random.default_rng(0)
PROMPT = np.repeat(np.arange(40), 3).astype(str)
X = RNG.normal(size=120)
Y = X + RNG.normal(size=120)


def both(x=X, y=Y, prompt=PROMPT, lineage=PROMPT):
    return prompt_correlation("rho", x, y, prompt, lineage)


def test_it_is_the_correlation_of_what_is_left_of_each_prompt():
    x, y = (v - np.repeat(v.reshape(-1, 3).mean(1), 3) for v in (X, Y))
    found = both()
    assert found.estimate == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert found.low < found.estimate < found.high
    assert (found.n, found.clusters) == (120, 40)
    assert found.n_effective <= 80


def test_it_agrees_with_the_plain_jackknife_on_light_tails():
    plain = jackknife_correlation("rho", X, Y, PROMPT, centre=True)
    found = both()
    assert found.estimate == pytest.approx(plain.estimate)
    assert found.se == pytest.approx(plain.se, rel=0.01)
    assert 1 <= (found.high - found.low) / (plain.high - plain.low) < 1.15


def test_heavy_tails_widen_it():
    x, y = X.copy(), Y.copy()
    x[:3], y[:3] = [30, 0, -30], [-20, 5, 15]
    plain = jackknife_correlation("rho", x, y, PROMPT, centre=True)
    found = both(x, y)
    wide = np.diff(np.arctanh([found.low, found.high])).item()
    assert wide > 1.05 * np.diff(np.arctanh([plain.low, plain.high])).item()


@settings(max_examples=15, deadline=None)
@given(scale=st.floats(0.01, 1000), seed=st.integers(0, 100))
def test_scale_and_a_shift_per_prompt_do_not_matter(scale, seed):
    shift = np.random.default_rng(seed).normal(scale=5, size=40).repeat(3)
    a, b = both(), both(y=scale * Y + shift)
    for name in ("estimate", "low", "high", "n_effective"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), abs=1e-6)
    assert both(y=-Y).estimate == pytest.approx(-a.estimate)


def test_prompts_of_one_response_are_dropped_and_counted():
    x, y = np.append(X, [100.0, 100.0]), np.append(Y, [-100.0, 5.0])
    labels = np.append(PROMPT, ["lone", "other"])
    found = both(x, y, labels, labels)
    assert found.estimate == pytest.approx(both().estimate)
    assert found.note.startswith("2 prompts of one response dropped")
    (a, b), lineage, dropped = centre_by_prompt("x", [x, y], labels, labels)
    assert len(a) == len(b) == len(lineage) == 120
    assert dropped == 2


def test_lineages_that_hold_several_prompts_are_the_independent_data():
    doubled = (np.arange(120) // 30).astype(str)
    found = both(lineage=doubled)
    assert found.clusters == 4
    assert found.estimate == pytest.approx(both().estimate)
    assert "fewer than 15 lineages" in found.note


@pytest.mark.parametrize(
    ("change", "point", "reason"),
    [
        ({"y": 2 * X + 1}, 1.0, "a perfect correlation gives no interval"),
        ({"y": -X}, -1.0, "a perfect correlation gives no interval"),
        ({"x": np.repeat(np.arange(40.0), 3)}, math.nan, "the first signal's scores do not vary"),
        ({"prompt": np.arange(120), "lineage": np.arange(120)}, math.nan,
         "120 prompts of one response dropped; no prompt has two responses"),
        ({"lineage": ["a"] * 60 + ["b"] * 60}, None, "fewer than three lineages"),
    ],
)  # fmt: skip
def test_what_has_no_interval_says_why(change, point, reason):
    found = both(**change)
    assert math.isnan(found.low)
    assert reason in found.note
    if point is not None:
        assert found.estimate == pytest.approx(point, nan_ok=True)


def test_ranks_within_prompts():
    found = prompt_rank_correlation("rho", X, Y**3, PROMPT, PROMPT)
    assert 0 < found.estimate < 1
    assert found.method == "jackknife-t spearman within prompts"
    assert found.n_effective <= 80
    assert prompt_rank_correlation("rho", X, np.exp(X), PROMPT, PROMPT).estimate > 0.8


def test_what_is_refused():
    with pytest.raises(DataError, match="columns of 120, 1 rows"):
        both(y=[1.0])
    with pytest.raises(NumericsError, match="row 0 is NaN"):
        both(x=np.append(np.nan, X[1:]))
    with pytest.raises(DataError, match="120 rows, 1 lineages"):
        both(lineage=["a"])
