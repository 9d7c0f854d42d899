"""What attribution patching says of itself: agreement with the exact grid, what a screen misses."""

from __future__ import annotations

import numpy as np
import pytest
from families import PAIRS, make_signal
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reward_lens.data import as_pairs
from reward_lens.evidence.intervals import cluster_t
from reward_lens.instruments.gradient_patching import attribution_patching
from reward_lens.instruments.patching_grid import patch_grid
from reward_lens.instruments.rank_agreement import mean_agreement, rank_correlation
from reward_lens.organisms import saturated_softmax

SIDES = ("noise", "denoise")


def estimated(ev):
    return ev.value.sel(quantity="estimate").values


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


@pytest.fixture(scope="module")
def grid(signal):
    return patch_grid(signal, PAIRS).value.sel(quantity="effect")


def test_exact_effects_are_those_of_the_grid_on_the_sample_and_the_screened(signal, grid):
    ev = attribution_patching(signal, PAIRS, sample=2, screen=2, seed=1)
    sampled = ev.tables["pairs"]["sampled"].to_numpy()
    assert sampled.sum() == 2
    assert list(as_pairs(PAIRS).sample(2, 1).ids) == list(ev.value["pair"].values[sampled])
    sizes = np.abs(estimated(ev)).mean((0, 1))
    top = ev.value["component"].values[np.argsort(-sizes)[:2]]
    exact = ev.value.sel(quantity="exact")
    known = exact.notnull()
    screened = ev.value["component"].isin(top)
    assert (known == (ev.value["pair"].isin(ev.value["pair"][sampled]) | screened)).all()
    gap = np.abs(exact - grid)  # NaN where it was not run
    assert gap.dims == exact.dims
    assert float(gap.max()) <= 2e-5 * float(np.abs(grid).max())
    table = ev.tables["screened"].set_index(["direction", "component"])
    assert set(table.index) == {(d, c) for d in SIDES for c in top}
    for (direction, component), row in table.iterrows():
        mean = float(exact.sel(direction=direction, component=component).mean())
        assert row["mean"] == pytest.approx(mean)
    means = ev.tables["components"].set_index(["direction", "component"])["mean"]
    for d, direction in enumerate(SIDES):
        np.testing.assert_allclose(means[direction], estimated(ev)[d].mean(0))


def test_agreement_is_the_mean_of_the_pairs_rank_correlations(signal):
    ev = attribution_patching(signal, PAIRS, sample=4)
    table = ev.tables["agreement"].set_index("direction")
    lineages = as_pairs(PAIRS).lineages
    for direction in SIDES:
        a, b = (ev.value.sel(quantity=q, direction=direction).values
                for q in ("estimate", "exact"))  # fmt: skip
        rho = [stats.spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
        row, expected = table.loc[direction], cluster_t("x", rho, lineages)
        assert row["rank_correlation"] == pytest.approx(np.mean(rho))
        assert row["low"] == pytest.approx(max(expected.low, -1))
        assert row["high"] == pytest.approx(min(expected.high, 1))
        assert (row["pairs"], row["undefined"]) == (4, 0)
        assert row["of_means"] == pytest.approx(stats.spearmanr(a.mean(0), b.mean(0)).statistic)
        assert row["worst_gap"] == pytest.approx(np.abs(a - b).max() / np.abs(b).max())
        found = ev.interval(f"{direction}.rank_correlation")
        assert (found.estimate, found.clusters) == (pytest.approx(np.mean(rho)), 3)
    assert not np.allclose(table.loc["noise", "worst_gap"], 0)  # it is an estimate


def test_ranks_see_no_rounding():
    writes = [1.0, 0.5, -2.0, 0.0, 0.0, 0.0]
    noisy = np.array(writes) + 1e-8 * np.array([1, -1, 1, 2, -3, 1])
    assert rank_correlation(writes, noisy) == pytest.approx(1)
    assert stats.spearmanr(writes, noisy).statistic < 0.95
    assert rank_correlation([1, 2, 3, 4], [1, 2, 4, 3.9999]) == pytest.approx(
        stats.spearmanr([1, 2, 3, 4], [1, 2, 4, 3]).statistic
    )
    for x, y in (([1, 2], [2, 3]), ([1, 2, np.nan], [1, 2, 3]), ([0, 0, 0], [1, 2, 3]),
                 ([5, 5 + 1e-7, 5], [1, 2, 3])):  # fmt: skip
        assert np.isnan(rank_correlation(x, y))
    assert mean_agreement("x", [np.nan, np.nan], np.array(["a", "b"], dtype=object)) is None


@given(st.lists(st.integers(-50, 50), min_size=3, max_size=12, unique=True), st.randoms())
def test_ranks_depend_on_neither_order_nor_scale(values, random):
    x = np.array(values, dtype=float)
    y = x**3 + np.arange(len(x)) * 7
    order = random.sample(range(len(x)), len(x))
    assert rank_correlation(x[order] * 1e-4, y[order] * 1e6) == pytest.approx(
        rank_correlation(x, y), nan_ok=True
    )
    assert rank_correlation(x, -x) == pytest.approx(-1)


# What a screen could have missed.


def test_a_screen_says_what_it_missed(signal, grid):
    ev = attribution_patching(signal, PAIRS, sample=3, screen=3, seed=2)
    known = ev.tables["pairs"]["sampled"].to_numpy()
    names = ev.value["component"].values
    order = np.argsort(-np.abs(estimated(ev)).mean((0, 1)))
    inside = np.isin(np.arange(len(names)), order[:3])
    for d, row in ev.tables["missed"].iterrows():
        sizes = np.abs(ev.value.sel(quantity="exact", direction=SIDES[d]).values[known]).mean(0)
        worst = int(np.where(inside, -1, sizes).argmax())
        assert (row["direction"], row["pairs"], row["screened"]) == (SIDES[d], 3, 3)
        assert row["share_covered"] == pytest.approx(sizes[inside].sum() / sizes.sum())
        assert row["missed_component"] == names[worst]
        assert row["largest_missed"] == pytest.approx(sizes[worst])
        assert row["share_of_largest"] == pytest.approx(sizes[worst] / sizes.max())
        assert row["rank_by_estimate"] == 1 + list(order).index(worst) > 3
        assert row["found_of_true_top"] == inside[np.argsort(-sizes)[:3]].sum()


def test_a_screen_misses_a_saturated_softmax_and_says_so():
    key = saturated_softmax(n=4)
    (row,) = (
        attribution_patching(key.signal, key.pairs, direction="noise", sample=4, screen=3)
        .tables["missed"]
        .to_dict("records")
    )
    assert row["missed_component"] == "L0.mlp_out"
    assert row["largest_missed"] == pytest.approx(1, abs=1e-5)
    assert row["found_of_true_top"] < 3
    assert row["share_covered"] < 0.75


def test_a_screen_of_everything_misses_nothing_and_without_a_sample_nothing_is_known(signal):
    everything = attribution_patching(signal, PAIRS[:2], screen=99).tables["missed"]
    assert (everything["share_covered"] == 1).all()
    assert (everything["found_of_true_top"] == 7).all()
    assert everything["largest_missed"].isna().all()
    assert list(everything["missed_component"]) == ["", ""]
    ev = attribution_patching(signal, PAIRS[:2], screen=2, sample=0)
    unknown = ev.tables["missed"]
    assert list(unknown["pairs"]) == [0, 0]
    measures = ["share_covered", "largest_missed", "share_of_largest", "found_of_true_top"]
    assert unknown[measures].isna().all(axis=None)
    assert "agreement" not in ev.tables
    assert ev.uncertainty == ()
