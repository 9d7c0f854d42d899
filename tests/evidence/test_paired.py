"""Two signals' accuracies on the same pairs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reward_lens.errors import DataError, NumericsError
from reward_lens.evidence.paired import paired_accuracy, sign_flip_p


def test_one_pair_a_lineage_is_mcnemars_exact_test():
    a = np.array([1.0] * 9 + [-1.0] * 2 + [1.0] * 10)
    b = np.array([-1.0] * 9 + [1.0] * 2 + [1.0] * 10)
    found = paired_accuracy("gap", a, b, np.arange(21))
    assert (found.only_a, found.only_b) == (9, 2)
    assert found.p == pytest.approx(stats.binomtest(9, 11).pvalue)
    assert found.difference.estimate == pytest.approx(7 / 21)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8))
def test_the_exact_p_counts_all_choices_of_signs(halves):
    sums = np.array(halves) / 2
    seen = abs(sums.sum())
    flips = [abs(float(np.dot(s, sums))) for s in itertools.product((-1, 1), repeat=len(sums))]
    assert sign_flip_p(sums) == pytest.approx(np.mean([f >= seen - 1e-12 for f in flips]))


def test_lineages_are_flipped_as_wholes():
    """Ten pairs of one source show no more than one."""
    one = paired_accuracy("gap", np.ones(10), -np.ones(10), ["a"] * 10)
    assert one.p == 1.0
    assert math.isnan(one.difference.low)
    many = paired_accuracy("gap", np.ones(10), -np.ones(10), np.arange(10))
    assert many.p == pytest.approx(2 / 2**10)


def test_a_tie_is_neither_a_win_nor_a_loss():
    found = paired_accuracy("gap", [0.0, 1.0, 0.0], [1.0, 1.0, 0.0], list("abc"))
    assert found.difference.estimate == pytest.approx(-0.5 / 3)
    assert (found.ties_a, found.ties_b) == (2, 1)
    assert (found.only_a, found.only_b) == (0, 1)


def test_signals_that_never_differ_have_no_interval():
    found = paired_accuracy("gap", np.ones(30), np.ones(30), np.arange(30))
    assert found.difference.estimate == 0
    assert math.isnan(found.difference.low)
    assert found.difference.note == "the two signals never differ on these pairs"
    assert found.p == 1.0


def test_few_lineages_point_to_the_exact_p():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 8))
    found = paired_accuracy("gap", a, b, np.arange(8)).difference
    assert "go by the exact p value" in found.note
    assert -1 <= found.low <= found.high <= 1


def test_the_interval_is_that_of_paired_differences():
    """What both signals have in common does not widen it."""
    rng = np.random.default_rng(1)
    common = rng.normal(size=200)
    a, b = common + 0.1 * rng.normal(size=200), common + 0.1 * rng.normal(size=200)
    paired = paired_accuracy("gap", a, b, np.arange(200)).difference
    other = paired_accuracy("gap", a, rng.permutation(b), np.arange(200)).difference
    assert paired.se < 0.6 * other.se


def test_what_is_refused():
    with pytest.raises(DataError, match="2 margins of the first signal, 1 of the second"):
        paired_accuracy("gap", [1.0, 2.0], [1.0], ["a", "b"])
    with pytest.raises(NumericsError, match="margin b of row 0 is NaN"):
        paired_accuracy("gap", [1.0], [np.nan], ["a"])
    with pytest.raises(DataError, match="multiples of one half"):
        sign_flip_p([0.3])
