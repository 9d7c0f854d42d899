"""Arguments that many functions take, and how many of so many pass."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from reward_lens.errors import DataError
from reward_lens.evidence.arguments import checked_count, checked_seed
from reward_lens.evidence.pass_rule import least_covered, least_share, most_within, upper_rate


@pytest.mark.parametrize("seed", [-1, 1.0, "1", None, True, np.int64(-3), np.float64(2)])
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(DataError, match=r"^seed=.*: give a whole number, 0 or more$"):
        checked_seed(seed)


@pytest.mark.parametrize("seed", [0, 7, np.int32(7), np.uint64(2**63), 2**80])
def test_a_whole_number_is_a_seed(seed):
    found = checked_seed(seed)
    assert type(found) is int
    assert found == seed


def test_the_least_count_is_named():
    assert checked_count("bins", 3, 3) == 3
    with pytest.raises(DataError, match=r"^bins=2: give a whole number, 3 or more$"):
        checked_count("bins", 2, 3)


def test_the_upper_end_is_clopper_pearson():
    for k, n in [(0, 60), (1, 60), (30, 60), (60, 60)]:
        ends = binomtest(k, n).proportion_ci(confidence_level=0.9)
        assert upper_rate(k, n) == pytest.approx(ends.high, abs=1e-9)


def test_one_more_would_not_pass():
    assert most_within(60, 0.1) == 1
    assert upper_rate(1, 60) <= 0.1 < upper_rate(2, 60)
    assert most_within(3, 0.1) == 0  # of so few none is few enough; nobody is told otherwise


def test_one_fewer_would_not_pass():
    assert [least_share(n, 0.9) for n in (20, 21, 30)] == [18, 19, 27]
    fewest = least_covered(60, 0.95)
    assert binomtest(fewest, 60, 0.95, "less").pvalue >= 0.01
    assert binomtest(fewest - 1, 60, 0.95, "less").pvalue < 0.01


def test_what_else_can_be_given_is_said():
    with pytest.raises(DataError, match=r"^n=None: give a whole number, 1 or more \(or so\)$"):
        checked_count("n", None, 1, "or so")
