from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit

from reward_lens.errors import DataError, NumericsError
from reward_lens.evidence.reliability import bradley_terry_reliability

LOGIT = math.log(3)  # confidence 0.75


def names(n, each=1):
    return [f"l{k // each}" for k in range(n)]


def test_three_of_four_right_at_confidence_three_quarters_is_calibrated():
    margins = np.tile([LOGIT, LOGIT, LOGIT, -LOGIT], 20)
    found = bradley_terry_reliability(margins, names(80), bins=3)
    row = found.curve[found.curve["pairs"] > 0]
    assert len(row) == 1
    assert row["predicted"].item() == pytest.approx(0.75)
    assert row["observed"].item() == 0.75
    assert found.ece.estimate == pytest.approx(0, abs=1e-12)
    assert found.overconfidence.estimate == pytest.approx(0, abs=1e-12)
    assert found.curve.loc[found.curve["pairs"] == 0, "predicted"].isna().all()


def test_error_by_hand_in_two_bins():
    # confidence 0.75: 1 of 2 right; confidence 0.9: 3 of 3 right
    margins = np.array([LOGIT, -LOGIT, *[math.log(9)] * 3])
    found = bradley_terry_reliability(margins, names(5), bins=3)
    assert found.ece.estimate == pytest.approx((2 * 0.25 + 3 * 0.1) / 5)
    assert found.overconfidence.estimate == pytest.approx((2 * 0.25 - 3 * 0.1) / 5)
    assert list(found.curve["pairs"]) == [0, 2, 3]


def test_ties_are_half_right_at_confidence_one_half():
    found = bradley_terry_reliability(np.zeros(30), names(30))
    assert found.ece.estimate == found.overconfidence.estimate == 0
    for i in (found.ece, found.overconfidence):
        assert np.isnan([i.low, i.high]).all()
        assert "all 30 pairs are ties, counted half: nothing was preferred" in i.note
    assert found.curve["observed"][0] == 0.5


def test_bins_take_in_both_ends():
    found = bradley_terry_reliability(np.array([0.0, 800.0, -800.0]), names(3), bins=3)
    assert list(found.curve["pairs"]) == [1, 0, 2]


def draw(rng, n, each, truth=1.0):
    size = np.abs(rng.normal(0, 1.5, n))
    shared = rng.random(n)[(np.arange(n) // each) * each]
    u = np.where(rng.random(n) < 0.5, shared, rng.random(n)) if each > 1 else rng.random(n)
    return np.where(u < expit(truth * size), size, -size), size


@pytest.mark.parametrize(("each", "truth"), [(1, 1.0), (1, 0.2), (3, 0.5)])
def test_intervals_cover_calibrated_and_overconfident_signals(each, truth):
    rng = np.random.default_rng(each)
    inside, runs, n = 0, 60, 120
    for _ in range(runs):
        margins, size = draw(rng, n, each, truth)
        found = bradley_terry_reliability(margins, names(n, each))
        at = np.clip(np.digitize(expit(size), np.linspace(0.5, 1, 11)) - 1, 0, 9)
        gap = np.bincount(at, weights=expit(truth * size) - expit(size), minlength=10)
        true = np.abs(gap).sum() / n
        inside += found.ece.low <= true <= found.ece.high
    assert inside / runs >= 0.88  # 0.95 stated; three standard errors of 60 runs


def test_noise_raises_the_error_and_the_figures_beside_it_say_so():
    rng = np.random.default_rng(4)
    plain, debiased, mean = [], [], []
    for _ in range(20):
        margins, _ = draw(rng, 100, 1)
        found = bradley_terry_reliability(margins, names(100))
        plain.append(found.ece.estimate)
        debiased.append(found.debiased)
        mean.append(found.null_mean)
        assert found.debiased <= found.ece.estimate
    assert np.mean(plain) > 0.05  # the truth is 0
    assert np.mean(debiased) < 0.75 * np.mean(plain)
    assert np.mean(mean) == pytest.approx(np.mean(plain), rel=0.25)


def test_pairs_that_are_all_right_have_the_exact_interval_of_that():
    found = bradley_terry_reliability(np.full(40, 9.0), names(40))
    over, sure = found.overconfidence, float(expit(9.0))
    least = 0.025 ** (1 / 40)  # Clopper and Pearson's, of 40 out of 40
    assert over.estimate == pytest.approx(sure - 1)
    assert (over.low, over.high) == pytest.approx((sure - 1, sure - least))
    assert found.ece.high == pytest.approx(1 - sure + 1 - least)
    assert "fewer than 10 independent rows" in over.note
    assert (over.n, over.clusters, over.n_effective) == (40, 40, 40)
    # Copies of a row are no further data, and one large lineage is not worth many.
    copies = bradley_terry_reliability(np.full(120, 9.0), names(120, 3)).overconfidence
    assert (copies.low, copies.high) == pytest.approx((over.low, over.high))
    unequal = ["one"] * 81 + names(39)
    wide = bradley_terry_reliability(np.full(120, 9.0), unequal).overconfidence
    assert wide.n_effective == pytest.approx(120**2 / (81**2 + 39))
    # Wrong throughout is the mirror image.
    wrong = bradley_terry_reliability(np.full(40, -9.0), names(40)).overconfidence
    assert (wrong.low, wrong.high) == pytest.approx((sure - 1 + least, sure))


def test_ties_take_their_share_and_say_nothing():
    plain = bradley_terry_reliability(np.full(20, 9.0), names(20)).overconfidence
    tied = bradley_terry_reliability(np.repeat([9.0, 0.0], 20), names(40)).overconfidence
    for bound in ("estimate", "low", "high"):
        assert getattr(tied, bound) == pytest.approx(getattr(plain, bound) / 2)
    assert "20 ties add nothing" in tied.note
    few = bradley_terry_reliability([9.0, 0.0, 0.0], names(3))
    for i in (few.ece, few.overconfidence):
        assert np.isnan([i.low, i.high]).all()
        assert "only one lineage is not tied" in i.note
    three = bradley_terry_reliability(np.full(3, 0.1), names(3))
    assert (three.ece.low, three.ece.high) == (0, 1)


@pytest.mark.parametrize("mean", [3.0, 4.0, 9.0])
@pytest.mark.parametrize("truth", [None, 0.95])
def test_intervals_cover_where_errors_are_rare(mean, truth):
    rng = np.random.default_rng(int(10 * mean))
    inside, runs = np.zeros(2), 50
    for _ in range(runs):
        size = np.abs(rng.normal(mean, 0.7, 40))
        right = expit(size) if truth is None else np.full(40, truth)
        margins = np.where(rng.random(40) < right, size, -size)
        found = bradley_terry_reliability(margins, names(40))
        gap = expit(size) - right
        at = np.clip(np.digitize(expit(size), np.linspace(0.5, 1, 11)) - 1, 0, 9)
        true = np.abs(np.bincount(at, weights=gap)).sum() / 40
        for k, (i, value) in enumerate(((found.overconfidence, gap.mean()), (found.ece, true))):
            inside[k] += i.low - 1e-12 <= value <= i.high + 1e-12
    assert (inside / runs >= 0.86).all()  # 0.95 stated; three standard errors of 50 runs


@pytest.mark.parametrize(("each", "lineages", "right"), [(1, 40, 40), (10, 40, 30)])
def test_the_null_is_the_larger_of_two(each, lineages, right):
    # One bin at confidence 3/4. Rows that all agree have a small spread, and stated outcomes a
    # larger one; whole lineages that are right or wrong have a larger one than stated outcomes.
    signs = np.repeat(np.where(np.arange(lineages) < right, 1, -1), each)
    found = bradley_terry_reliability(LOGIT * signs, names(lineages * each, each), bins=1)
    spread = math.sqrt(0.75 * 0.25 / lineages)
    assert found.null_limit == pytest.approx(1.96 * spread, rel=0.12)
    assert found.null_mean == pytest.approx(math.sqrt(2 / math.pi) * spread, rel=0.12)


def test_an_overconfident_signal_is_beyond_the_null():
    rng = np.random.default_rng(5)
    margins = 4 * rng.choice([-1.0, 1.0], size=100)
    found = bradley_terry_reliability(margins, names(100))
    assert found.ece.estimate > found.null_limit
    assert found.ece.low > 0.3
    assert found.overconfidence.low > 0.3
    assert "noise" not in found.ece.note


def test_draws_are_seeded():
    margins, _ = draw(np.random.default_rng(6), 50, 1)
    one, same = (bradley_terry_reliability(margins, names(50), seed=3) for _ in range(2))
    assert one.null_limit == same.null_limit
    assert bradley_terry_reliability(margins, names(50), seed=4).null_limit != one.null_limit


def test_refusals():
    with pytest.raises(DataError, match="one lineage says nothing"):
        bradley_terry_reliability([1.0, 2.0], ["a", "a"])
    for bins in (0, 2.5, True):
        with pytest.raises(DataError, match=f"bins={bins}: give a whole number, 1 or more"):
            bradley_terry_reliability([1.0, 2.0], ["a", "b"], bins=bins)
    with pytest.raises(DataError, match="seed=-1: give a whole number, 0 or more"):
        bradley_terry_reliability([1.0, 2.0], ["a", "b"], seed=-1)
    with pytest.raises(NumericsError, match="row 1 is NaN"):
        bradley_terry_reliability([1.0, np.nan], ["a", "b"])
