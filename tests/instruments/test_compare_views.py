"""Attribution against patching: where they must agree, and what the tables say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from families import PAIRS, make_signal
from scipy import stats

import reward_lens as rl
from reward_lens.data import as_pairs
from reward_lens.errors import CapabilityError, DataError
from reward_lens.evidence import Tier, Units
from reward_lens.instruments.patching_grid import patch_grid
from reward_lens.instruments.view_gap import ALL_PAIRS, compare_views

ROWS = [
    {"prompt": p, "chosen": a, "rejected": b, "subset": "odd" if k % 2 else "even"}
    for k, (p, a, b) in enumerate(PAIRS)
]


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


@pytest.fixture(scope="module")
def views(signal):
    return compare_views(signal, ROWS)


@pytest.fixture(scope="module")
def parents(signal):
    return rl.attribution(signal, as_pairs(ROWS)), patch_grid(signal, as_pairs(ROWS))


def test_every_correlation_is_that_of_the_two_instruments(views, parents):
    written, patched = parents
    names = list(patched.value["component"].values)
    for direction in ("noise", "denoise"):
        for k in range(len(ROWS)):
            w = written.value.sel(side="margin", write=names).isel(pair=k)
            e = patched.value.sel(quantity="effect", direction=direction).isel(pair=k)
            rho = stats.spearmanr(w, e).statistic
            assert float(views.value.sel(direction=direction)[k]) == pytest.approx(rho)


def test_the_record_names_both_parents(views, parents):
    assert views.provenance.parents == tuple(e.id for e in parents)
    assert views.tier is Tier.CAUSAL
    assert views.units is Units.RANK
    assert views.subject.interventions == parents[1].subject.interventions
    cost = sum(e.provenance.cost_forwards for e in parents)
    assert views.provenance.cost_forwards == cost


def test_agreement_is_given_over_all_pairs_and_by_subset(views):
    table = views.tables["agreement"].set_index(["direction", "subset"])
    rho = views.value.sel(direction="noise")
    for subset, rows in {ALL_PAIRS: [0, 1, 2, 3], "even": [0, 2], "odd": [1, 3]}.items():
        row = table.loc["noise", subset]
        assert row["mean"] == pytest.approx(float(rho[rows].mean()))
        assert (row["pairs"], row["undefined"]) == (len(rows), 0)
        assert -1 <= row["low"] <= row["mean"] <= row["high"] <= 1
    interval = views.interval("agreement.noise")
    assert interval.estimate == table.loc["noise", ALL_PAIRS]["mean"]
    assert interval.clusters == 3  # two of the four pairs have the same prompt


def test_the_gap_is_attribution_less_patching(views, parents):
    table = views.tables["components"]
    assert isinstance(table, pd.DataFrame)
    np.testing.assert_allclose(table["gap"], table["attribution"] - table["patching"], atol=1e-12)
    written, patched = parents
    last = table[(table["component"] == "L2.mlp_out") & (table["direction"] == "denoise")].iloc[0]
    w = written.value.sel(side="margin", write="L2.mlp_out")
    e = patched.value.sel(quantity="effect", direction="denoise", component="L2.mlp_out")
    assert last["gap"] == pytest.approx(float((w - e).mean()))
    ranks = table[table["direction"] == "noise"]["rank_patching"]
    assert sorted(ranks) == list(range(1, 8))


def test_of_mean_effects_is_the_correlation_of_the_means(views):
    means = views.tables["components"]
    means = means[means["direction"] == "noise"]
    rho = stats.spearmanr(means["attribution"], means["patching"]).statistic
    table = views.tables["agreement"].set_index(["direction", "subset"])
    assert table.loc["noise", ALL_PAIRS]["of_mean_effects"] == pytest.approx(rho)


def test_heads_are_compared_with_heads(signal):
    views = compare_views(signal, PAIRS, by="head", direction="noise")
    assert len(views.tables["components"]) == 12
    assert views.value.notnull().all()
    assert list(views.tables["agreement"]["subset"]) == [ALL_PAIRS]


def test_identical_sides_are_undefined_and_counted(signal):
    views = compare_views(signal, [("one", "the same", "the same"), *PAIRS])
    assert views.value.isel(pair=0).isnull().all()
    assert (views.tables["agreement"]["undefined"] == 1).all()
    nothing = compare_views(signal, [("one", "the same", "the same")])
    assert nothing.uncertainty == ()
    assert nothing.tables["agreement"]["mean"].isna().all()
    assert set(nothing.tables["agreement"]["note"]) == {"no pair has a correlation"}


def test_a_later_reader_makes_the_views_differ(signal):
    """At all tokens patching has effects by way of attention that attribution cannot see."""
    final = compare_views(signal, PAIRS, direction="noise")
    wider = compare_views(signal, PAIRS, direction="noise", positions="aligned")
    embed = {
        name: ev.tables["components"].set_index("component").loc["embed"]
        for name, ev in {"final": final, "aligned": wider}.items()
    }
    assert embed["final"]["attribution"] == pytest.approx(embed["aligned"]["attribution"])
    assert embed["final"]["patching"] != pytest.approx(embed["aligned"]["patching"], rel=0.01)


def test_a_grid_of_layers_is_no_view_of_components(signal):
    with pytest.raises(CapabilityError, match="choose one of component, head"):
        compare_views(signal, PAIRS, by="layer_position")


def test_what_was_measured_before_is_not_run_again(signal, views, parents, monkeypatch):
    written, patched = parents
    with monkeypatch.context() as patch:
        patch.setattr(type(signal.trunk), "forward", None)  # nothing may run
        again = compare_views(signal, ROWS, attribution=written, grid=patched)
    assert again.value.identical(views.value)
    assert again.provenance.parents == views.provenance.parents
    assert again.provenance.cost_forwards == 0.0
    for name, table in views.tables.items():
        pd.testing.assert_frame_equal(again.tables[name], table)


def test_views_of_different_samples_are_compared_where_both_speak(signal, parents):
    few = as_pairs(ROWS).select([3, 1, 0])
    grid = patch_grid(signal, few)
    found = compare_views(signal, ROWS, attribution=parents[0], grid=grid)
    assert list(found.value["pair"].values) == [i for i in as_pairs(ROWS).ids if i in few.ids]
    alone = compare_views(signal, as_pairs(ROWS).select([0, 1, 3]))
    np.testing.assert_allclose(found.value.values, alone.value.values, atol=1e-6)


def test_a_view_of_something_else_is_refused(signal, parents):
    written, patched = parents
    other = [{**row, "chosen": row["chosen"] + "!"} for row in ROWS]
    cases = [
        (ROWS, {"attribution": patched}, "is evidence of patch_grid, not of attribution"),
        (ROWS, {"grid": patched, "by": "head"}, "with by='component', not 'head'"),
        (ROWS, {"grid": patched, "position": "last"}, "read at position 'native'"),
        (ROWS[:2], {"grid": patched}, "pairs that are not here"),
        (other, {"attribution": written}, "other texts under the same ids"),
        (ROWS, {"grid": patch_grid(signal, ROWS, ablation="zero")}, "is an ablation"),
    ]
    for rows, options, said in cases:
        with pytest.raises(DataError, match=said):
            compare_views(signal, rows, **options)
    with pytest.raises(DataError, match="another signal"):
        compare_views(make_signal("llama", seed=1), ROWS, grid=patched)
