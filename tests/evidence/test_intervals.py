from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from reward_lens.errors import DataError, NumericsError
from reward_lens.evidence.intervals import (
    accuracy,
    cluster_t,
    cluster_t_slope,
    jackknife_correlation,
)


def clustered(rng, groups=40, size=4, between=1.0):
    lineage = np.repeat([f"g{k}" for k in range(groups)], size)
    shared = np.repeat(rng.normal(0, between, groups), size)
    return shared + rng.normal(size=groups * size), lineage


def test_cluster_t_is_the_textbook_formula():
    y, lineage = clustered(np.random.default_rng(0))
    found = cluster_t("m", y, lineage)
    sums = np.array([(y - y.mean())[lineage == g].sum() for g in np.unique(lineage)])
    groups = len(sums)
    se = np.sqrt((sums**2).sum() * groups / (groups - 1)) / len(y)
    assert found.estimate == pytest.approx(y.mean())
    assert found.se == pytest.approx(se)
    reach = stats.t.ppf(0.975, groups - 1) * se
    assert found.low == pytest.approx(y.mean() - reach)
    assert found.high == pytest.approx(y.mean() + reach)
    iid = y.std(ddof=1) / np.sqrt(len(y))
    assert found.n_effective == pytest.approx(min(len(y), len(y) * (iid / se) ** 2))
    assert found.n_effective < 0.6 * found.n


def test_clustered_intervals_cover_and_unclustered_do_not():
    rng = np.random.default_rng(1)
    inside = naive = 0
    for _ in range(200):
        y, lineage = clustered(rng, groups=25, size=6)
        i = cluster_t("m", y, lineage)
        inside += i.low <= 0 <= i.high
        reach = 1.96 * y.std(ddof=1) / np.sqrt(len(y))
        naive += abs(y.mean()) <= reach
    assert 0.90 <= inside / 200 <= 0.985
    assert naive / 200 < 0.80


def test_copies_of_a_row_add_nothing():
    rng = np.random.default_rng(2)
    y = rng.normal(size=30)
    lineage = np.array([str(k) for k in range(30)])
    once, thrice = cluster_t("m", y, lineage), cluster_t("m", np.tile(y, 3), np.tile(lineage, 3))
    assert thrice.n == 90
    assert thrice.n_effective == pytest.approx(30, rel=0.05)
    assert thrice.high - thrice.low == pytest.approx(once.high - once.low, rel=0.05)


def test_all_right_counts_lineages():
    found = cluster_t("accuracy", np.ones(20, bool), np.repeat(["a", "b", "c", "d", "e"], 4))
    assert (found.low, found.high) == pytest.approx((0.025 ** (1 / 5), 1.0))
    assert found.n_effective == 5
    assert found.method == "Clopper–Pearson"
    wrong = cluster_t("accuracy", np.zeros(20, bool), np.repeat(["a", "b", "c", "d", "e"], 4))
    assert (wrong.low, wrong.high) == pytest.approx((0.0, 1 - 0.025 ** (1 / 5)))


def test_what_gives_no_interval_says_why():
    one = cluster_t("m", [1.0, 2.0], ["a", "a"])
    assert np.isnan(one.low)
    assert "one lineage" in one.note
    flat = cluster_t("m", [2.0, 2.0], ["a", "b"])
    assert (flat.low, flat.high) == (2.0, 2.0)
    assert "same value" in flat.note
    few = cluster_t("m", [1.0, 2.0, 4.0], ["a", "b", "c"])
    assert "fewer than 15" in few.note
    y = np.r_[np.zeros(199), 100.0]
    assert "dominate" in cluster_t("m", y, [str(k) for k in range(200)]).note


def test_bad_rows_are_named():
    with pytest.raises(NumericsError, match="row 1"):
        cluster_t("m", [0.0, np.nan], ["a", "b"])
    with pytest.raises(DataError, match="no rows"):
        cluster_t("m", [], [])
    with pytest.raises(DataError, match="2 rows, 1 lineages"):
        cluster_t("m", [1.0, 2.0], ["a"])


def test_slope_is_recovered_within_and_across_lineages():
    rng = np.random.default_rng(3)
    lineage = np.repeat([str(k) for k in range(50)], 4)
    x = rng.normal(size=200)
    confounded = np.repeat(rng.normal(size=50), 4)
    y = 2 * x + 3 * confounded + 0.1 * rng.normal(size=200)
    across = cluster_t_slope("s", x + confounded, y, lineage)
    within = cluster_t_slope("s", x + confounded, y, lineage, within=True)
    assert within.low < 2 < within.high
    assert across.low > 2.1
    dropped = cluster_t_slope("s", [*x, 5.0], [*y, 0.0], [*lineage, "single"], within=True)
    assert dropped.estimate == pytest.approx(
        cluster_t_slope("s", x, y, lineage, within=True).estimate
    )
    assert "1 lineages of one row dropped" in dropped.note
    assert "does not vary" in cluster_t_slope("s", np.ones(200), y, lineage).note


@pytest.mark.parametrize("method", ["pearson", "spearman"])
def test_jackknife_is_leaving_one_lineage_out(method):
    rng = np.random.default_rng(4)
    lineage = np.repeat([str(k) for k in range(20)], 3)
    x = rng.normal(size=60)
    y = 0.5 * x + rng.normal(size=60)
    found = jackknife_correlation("r", x, y, lineage, method=method)
    a, b = (x, y) if method == "pearson" else (stats.rankdata(x), stats.rankdata(y))
    z = [
        np.arctanh(np.corrcoef(a[lineage != g], b[lineage != g])[0, 1]) for g in np.unique(lineage)
    ]
    se = np.sqrt(19 / 20 * ((z - np.mean(z)) ** 2).sum())
    rho = np.corrcoef(a, b)[0, 1]
    assert found.estimate == pytest.approx(rho)
    assert found.low == pytest.approx(np.tanh(np.arctanh(rho) - stats.t.ppf(0.975, 19) * se))


def test_degenerate_correlations_say_why():
    x = np.arange(20.0)
    lineage = [str(k) for k in range(20)]
    perfect = jackknife_correlation("r", x, -x, lineage)
    assert perfect.estimate == pytest.approx(-1)
    assert np.isnan(perfect.low)
    assert "perfect" in perfect.note
    assert "does not vary" in jackknife_correlation("r", x, np.ones(20), lineage).note


def test_a_tie_is_half_and_counted():
    found, ties = accuracy("accuracy", [1.0, -1.0, 0.0, 2.0], ["a", "b", "c", "d"])
    assert ties == 1
    assert found.estimate == 0.625
    assert "1 ties" in found.note
    found, ties = accuracy("accuracy", [1.0, -1.0], ["a", "b"])
    assert (ties, found.estimate) == (0, 0.5)
    with pytest.raises(NumericsError, match="row 0 is NaN"):
        accuracy("accuracy", [np.nan], ["a"])
