"""Where the line between rule and chance is drawn, and which organisms are made."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom, norm

from reward_lens.errors import DataError
from reward_lens.evidence.scorecard import MAX_FALSE_POSITIVES, MIN_NULLS, MIN_ORGANISMS
from reward_lens.organisms.calibration_draws import (
    FIXING,
    NULLS,
    ORGANISMS,
    Design,
    fresh_nulls,
    threshold_of,
)

KINDS = ["attention write", "head write", "two hops"]


def above(threshold, rows):
    """Share of nulls with so many independent normal rows whose largest reading lies above."""
    return 1 - (2 * norm.cdf(threshold) - 1) ** rows


@pytest.mark.parametrize("rows", [4, 13, 60])
def test_few_new_nulls_lie_above_the_threshold_and_a_right_instrument_passes(rows):
    rng = np.random.default_rng(rows)
    rates = np.array([
        above(threshold_of(np.abs(rng.standard_normal((FIXING, rows))).max(1)), rows)
        for _ in range(200)
    ])  # fmt: skip
    assert np.median(rates) < 0.002
    assert np.quantile(rates, 0.98) < 0.02
    may = max(k for k in range(NULLS) if beta.ppf(0.95, k + 1, NULLS - k) <= MAX_FALSE_POSITIVES)
    assert may == 2
    assert binom.cdf(may, NULLS, rates).mean() > 0.99


def test_there_are_enough_of_everything_by_default():
    design = Design()
    tested = list(design.tested(KINDS))
    for dose in (0.5, 1.0, 2.0):
        at = [d.kind for d in tested if d.dose == dose]
        assert len(at) == ORGANISMS >= MIN_ORGANISMS
        assert {at.count(kind) for kind in KINDS} == {ORGANISMS // 3}
    assert sum(d.dose == 0 for d in tested) == NULLS >= MIN_NULLS
    assert {d.kind for d in design.fixed("mlp write")} == {"mlp write"}
    everything = [*tested, *design.fixed("mlp write"), *fresh_nulls(KINDS, NULLS)]
    assert len({d.seed(0) for d in everything}) == len(everything)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.01, 100), st.integers(0, 99))
def test_the_threshold_follows_the_unit(scale, seed):
    found = np.random.default_rng(seed).gumbel(5.0, 1.0, 12)
    assert threshold_of(scale * found) == pytest.approx(scale * threshold_of(found), rel=1e-3)
    assert threshold_of(found) >= found.max()


def test_where_nothing_varies_the_threshold_is_what_was_read_and_never_nothing():
    assert threshold_of([0.25] * 5) == 0.25
    assert threshold_of([0.0] * 5) == 0.001


@pytest.mark.parametrize("doses", [1.0, "1", (), (0.5, 0.0), ("x",), None])
def test_doses_are_a_list_of_positive_numbers(doses):
    with pytest.raises(DataError, match="give a list of positive numbers"):
        Design(doses)
