"""The formulas of the bias battery on numbers alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from reward_lens.evidence.intervals import cluster_t
from reward_lens.instruments import bias_null
from reward_lens.instruments.bias_tables import p_of


def test_p_is_two_sided():
    values = np.random.default_rng(5).normal(0.3, 1, 20)
    for sign in (1, -1):
        found = p_of(cluster_t("p", sign * values, [str(k) for k in range(20)]))
        assert found == pytest.approx(stats.ttest_1samp(values, 0).pvalue)


def test_the_quantile_is_that_of_the_largest_effect():
    rng = np.random.default_rng(0)
    effects = rng.normal(size=(30, 1000)) * np.arange(1, 31)[:, None]
    scale = np.sqrt((effects**2).mean(1))
    found = bias_null.largest_quantile(effects, scale)
    largest = np.abs(effects / scale[:, None]).max(0)
    assert (largest > found).sum() == 49 or (largest >= found).sum() == 50
    scale[3] = np.nan  # an edit that changes nothing takes no part
    others = np.delete(effects, 3, 0), np.delete(scale, 3)
    assert bias_null.largest_quantile(effects, scale) == bias_null.largest_quantile(*others)


def test_directions_of_states_of_known_spread():
    rng = np.random.default_rng(1)
    heads = rng.normal(size=(12, 20000))
    for spread in (np.r_[1.0, np.zeros(11)], np.ones(12)):
        margins = (rng.normal(size=(400, 12)) * spread) @ heads
        expected = spread.sum() ** 2 / (spread**2).sum()
        assert bias_null.directions_of(margins) == pytest.approx(expected, rel=0.1)
