from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
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
    with pytest.raises(NumericsError, match="row 1 is NaN"):
        cluster_t("m", [0.0, np.nan], ["a", "b"])
    with pytest.raises(NumericsError, match="m: x row 1 is inf"):
        cluster_t_slope("m", [0.0, np.inf], [0.0, 1.0], ["a", "b"])
    with pytest.raises(NumericsError, match="m: y row 0 is NaN"):
        jackknife_correlation("m", [0.0, 1.0], [np.nan, 1.0], ["a", "b"])
    with pytest.raises(DataError, match="no rows"):
        cluster_t("m", [], [])
    with pytest.raises(DataError, match="2 rows, 1 lineages"):
        cluster_t("m", [1.0, 2.0], ["a"])
    with pytest.raises(DataError, match="row 1 has no lineage"):
        cluster_t("m", [1.0, 2.0], ["a", None])
    with pytest.raises(DataError, match=r"shape \(1, 2\)"):
        cluster_t("m", [[1.0, 2.0]], ["a"])
    with pytest.raises(DataError, match="level=95"):
        cluster_t("m", [1.0, 2.0], ["a", "b"], level=95)
    with pytest.raises(DataError, match="x has 2 rows, y 1"):
        cluster_t_slope("m", [1.0, 2.0], [1.0], ["a"])
    with pytest.raises(DataError, match="choose 'pearson' or 'spearman'"):
        jackknife_correlation("m", [1.0], [1.0], ["a"], method="kendall")


def test_a_number_that_never_varies_is_no_yes_or_no():
    shares = cluster_t("share", np.ones(20), [str(k) for k in range(20)])
    assert (shares.low, shares.high, shares.method) == (1.0, 1.0, "cluster-t")
    assert "booleans" in shares.note


def test_one_lineage_that_is_always_right():
    found = cluster_t("accuracy", np.ones(9, bool), ["a"] * 9)
    assert (found.low, found.high) == pytest.approx((0.025, 1.0))
    assert found.n_effective == 1


def test_lineages_that_balance_are_doubted():
    found = cluster_t("m", np.tile([0.1, 0.7], 30), np.repeat(np.arange(30), 2))
    assert (found.low, found.high) == (found.estimate, found.estimate)
    assert "balance" in found.note


def test_one_large_lineage_is_doubted():
    y = np.random.default_rng(0).normal(size=200)
    lineage = [*["big"] * 100, *map(str, range(100))]
    assert "unequal" in cluster_t("m", y, lineage).note


@given(st.permutations(range(24)))
def test_the_order_of_rows_and_the_names_of_lineages_do_not_count(order):
    y, lineage = clustered(np.random.default_rng(7), groups=8, size=3)
    x = np.random.default_rng(8).normal(size=24)
    renamed = np.array([f"other {g}" for g in lineage])
    order = list(order)
    for measure in (
        lambda k, g: cluster_t("m", y[k], g[k]),
        lambda k, g: cluster_t_slope("m", x[k], y[k], g[k]),
        lambda k, g: jackknife_correlation("m", x[k], y[k], g[k]),
        lambda k, g: jackknife_correlation("m", x[k], y[k], g[k], centre=True),
    ):
        one, other = measure(slice(None), lineage), measure(order, renamed)
        for field in ("estimate", "low", "high", "se", "n_effective"):
            assert getattr(other, field) == pytest.approx(getattr(one, field), rel=1e-9)


def test_slope_is_the_sandwich_by_hand():
    rng = np.random.default_rng(5)
    y, lineage = clustered(rng, groups=30, size=3)
    x = rng.normal(size=90)
    found = cluster_t_slope("s", x, y, lineage, level=0.9)
    X = np.column_stack([np.ones(90), x])
    bread = np.linalg.inv(X.T @ X)
    beta = bread @ X.T @ y
    e = y - X @ beta
    scores = np.array([X[lineage == g].T @ e[lineage == g] for g in np.unique(lineage)])
    se = np.sqrt((bread @ (scores.T @ scores * 30 / 29 * 89 / 88) @ bread)[1, 1])
    assert found.estimate == pytest.approx(beta[1])
    assert found.se == pytest.approx(se)
    assert found.high - found.estimate == pytest.approx(stats.t.ppf(0.95, 29) * se)
    iid = np.sqrt(e @ e / 88 * bread[1, 1])
    assert found.n_effective == pytest.approx(min(90, 90 * (iid / se) ** 2))


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


def test_x_that_is_constant_in_each_lineage_has_no_slope_within():
    x = np.repeat([0.1, 0.2, 0.3, 0.7], 3)  # three times 0.1 has a mean that is not quite 0.1
    y, lineage = clustered(np.random.default_rng(6), groups=4, size=3)
    found = cluster_t_slope("s", x, y, lineage, within=True)
    assert np.isnan(found.estimate)
    assert "x does not vary within any lineage" in found.note
    alone = cluster_t_slope("s", x, y, [str(k) for k in range(12)], within=True)
    assert "12 lineages of one row dropped" in alone.note
    assert alone.n == 0


def test_a_line_through_every_row_and_a_slope_of_two_lineages():
    x = np.arange(20.0)
    found = cluster_t_slope("s", x, 3 * x + 1, x.astype(str))
    assert (found.low, found.high) == pytest.approx((3, 3))
    assert "passes through every row" in found.note
    two = cluster_t_slope("s", x, x**2, np.repeat(["a", "b"], 10))
    assert two.estimate == pytest.approx(19)
    assert np.isnan(two.low)
    assert "fewer than three lineages" in two.note


def test_two_centred_rows_are_worth_one():
    rng = np.random.default_rng(9)
    lineage = np.repeat(np.arange(500), 2)
    x, y = rng.normal(size=1000), rng.normal(size=1000)
    assert cluster_t_slope("s", x, y, lineage, within=True).n_effective == pytest.approx(
        500, rel=0.15
    )
    found = jackknife_correlation("r", x, y, lineage, centre=True)
    assert found.n_effective == pytest.approx(500, rel=0.15)


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


def test_a_centred_correlation_forgets_what_a_lineage_shares():
    rng = np.random.default_rng(10)
    lineage = [*np.repeat([str(k) for k in range(40)], 3), "single"]
    x, y = rng.normal(size=121), rng.normal(size=121)
    y[:120] += 0.7 * x[:120]
    shift = np.append(np.repeat(rng.normal(0, 50, 40), 3), 7.0)
    plain = jackknife_correlation("r", x, y, lineage, centre=True)
    shifted = jackknife_correlation("r", x, y + shift, lineage, centre=True)
    for field in ("estimate", "low", "high"):
        assert getattr(shifted, field) == pytest.approx(getattr(plain, field), rel=1e-9)
    assert "1 lineages of one row dropped" in plain.note
    groups = np.array(lineage[:120])
    a, b = (v[:120] - np.repeat(v[:120].reshape(40, 3).mean(1), 3) for v in (x, y))
    assert plain.estimate == pytest.approx(np.corrcoef(a, b)[0, 1])
    z = [np.arctanh(np.corrcoef(a[groups != g], b[groups != g])[0, 1]) for g in set(groups)]
    se = np.sqrt(39 / 40 * ((z - np.mean(z)) ** 2).sum())
    reach = stats.t.ppf(0.975, 39) * se
    assert plain.high == pytest.approx(np.tanh(np.arctanh(plain.estimate) + reach))


def test_a_correlation_interval_covers():
    rng = np.random.default_rng(11)
    lineage, inside = np.repeat(np.arange(30), 4), 0
    for _ in range(200):
        u, v = (np.repeat(rng.normal(size=30), 4) for _ in range(2))
        x, y = u + rng.normal(size=120), 0.6 * u + 0.8 * v + rng.normal(size=120)
        found = jackknife_correlation("r", x, y, lineage)
        inside += found.low <= 0.3 <= found.high  # cov 0.6, both variances 2
    assert 0.90 <= inside / 200 <= 0.99


def test_thousands_of_lineages_are_quick():
    rng = np.random.default_rng(12)
    lineage = np.repeat(np.arange(3000), 2)
    x, y = rng.normal(size=(2, 6000))
    began = time.process_time()
    jackknife_correlation("r", x, y, lineage)
    assert time.process_time() - began < 1


def test_degenerate_correlations_say_why():
    x = np.arange(20.0)
    lineage = [str(k) for k in range(20)]
    perfect = jackknife_correlation("r", x, -x, lineage)
    assert perfect.estimate == pytest.approx(-1)
    assert np.isnan(perfect.low)
    assert "perfect" in perfect.note
    assert "y does not vary" in jackknife_correlation("r", x, np.ones(20), lineage).note
    assert "x does not vary" in jackknife_correlation("r", np.ones(20), x, lineage).note
    two = jackknife_correlation("r", x, x**2 % 7, np.repeat(["a", "b"], 10))
    assert np.isfinite(two.estimate)
    assert "fewer than three lineages" in two.note
    outlier = np.r_[np.zeros(19), 1.0]
    assert "without one lineage" in jackknife_correlation("r", outlier, x, lineage).note
    strong = jackknife_correlation("r", x, x + 3 * np.sin(x), lineage, method="spearman")
    assert "strong rank correlation" in strong.note


def test_a_tie_is_half_and_counted():
    found, ties = accuracy("accuracy", [1.0, -1.0, 0.0, 2.0], ["a", "b", "c", "d"])
    assert ties == 1
    assert found.estimate == 0.625
    assert "1 ties, counted half" in found.note
    assert ties.strict.estimate == 0.5
    assert ties.strict.name == "accuracy.strict"
    found, ties = accuracy("accuracy", [1.0, -1.0], ["a", "b"])
    assert (ties, found.estimate, found.name) == (0, 0.5, "accuracy")
    assert found.low == ties.strict.low
    with pytest.raises(NumericsError, match="margin of row 0 is NaN"):
        accuracy("accuracy", [np.nan], ["a"])


def test_nothing_but_ties_gives_no_interval():
    found, ties = accuracy("accuracy", np.zeros(20), np.arange(20))
    assert (ties, found.estimate, ties.strict.estimate) == (20, 0.5, 0.0)
    assert np.isnan(found.low)
    assert "all 20 pairs are ties" in found.note


def test_no_ties_and_all_right_counts_lineages():
    found, ties = accuracy("accuracy", np.ones(10), np.repeat(np.arange(5), 2))
    assert ties == 0
    assert (found.method, found.n_effective) == ("Clopper–Pearson", 5)


def test_an_accuracy_interval_stays_a_share():
    few, _ = accuracy("accuracy", [1.0, 1.0, -1.0], ["a", "b", "c"])
    assert 0 < few.low < few.estimate < few.high < 1
    assert "worth fewer than 10 independent rows of the rarer outcome" in few.note
    tied, ties = accuracy("accuracy", [1.0, 1.0, 1.0, 1.0, 0.0], list("abcde"))
    assert tied.high <= 1.0
    assert ties.strict.high <= 1.0
