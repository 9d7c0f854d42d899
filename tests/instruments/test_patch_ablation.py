"""Ablation in the patch grid: each kind by plain hooks, its reference items and its seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families import PAIRS, make_signal
from patch_kit import hooked

from reward_lens.errors import DataError
from reward_lens.instruments.patching_grid import patch_grid


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


def test_zero_ablation_by_plain_hooks(signal):
    grid = patch_grid(signal, PAIRS, ablation="zero", components=["L1.mlp_out"])
    assert list(grid.value["direction"].values) == ["ablation"]
    mlp = signal.trunk.model.model.layers[1].mlp
    for k, (prompt, a, b) in enumerate(PAIRS):
        s = signal.score([(prompt, a), (prompt, b)]).value.values
        cut = [hooked(signal, (prompt, r), mlp, slice(None), 0.0, -1) for r in (a, b)]
        got = float(grid.value.sel(quantity="effect").isel(direction=0, component=0, pair=k))
        assert got == pytest.approx((s[0] - s[1]) - (cut[0] - cut[1]), abs=2e-5)


@pytest.mark.parametrize("positions", ["final", "all"])
def test_mean_ablation_by_plain_hooks(signal, positions):
    reference = [("Say hi.", "No"), ("Count.", "One, two and three.")]
    grid = patch_grid(signal, PAIRS, ablation="mean", reference=reference, positions=positions,
                      components=["L1.mlp_out"])  # fmt: skip
    states = signal.capture(reference, ["L1.mlp_out"], position=positions)["L1.mlp_out"]
    mean = torch.cat(list(states)).reshape(-1, 32).mean(0)
    mlp, at = signal.trunk.model.model.layers[1].mlp, -1 if positions == "final" else slice(None)
    for k, (prompt, a, b) in enumerate(PAIRS):
        s = signal.score([(prompt, a), (prompt, b)]).value.values
        cut = [hooked(signal, (prompt, r), mlp, slice(None), mean, at) for r in (a, b)]
        got = float(grid.value.sel(quantity="effect").isel(direction=0, component=0, pair=k))
        assert got == pytest.approx((s[0] - s[1]) - (cut[0] - cut[1]), abs=2e-5)
    said = grid.subject.interventions
    how = "mean (over 2 items of the reference) ablation of both sides"
    assert said == (f"each component at {positions}: {how}",)
    assert grid.provenance.cost_forwards == 2 + grid.tables["engine"]["forwards"][0]


def test_the_mean_over_the_pairs_own_items_is_the_default(signal):
    own = patch_grid(signal, PAIRS, by="head", ablation="mean")
    items = [(p, r) for p, a, b in PAIRS for r in (a, b)]
    given = patch_grid(signal, PAIRS, by="head", ablation="mean", reference=items)
    np.testing.assert_allclose(own.value, given.value, atol=1e-5)
    assert own.provenance.parameters["reference"] is None
    assert given.provenance.parameters["reference"] is not None


@pytest.mark.parametrize("positions", ["final", "aligned", "all", (-2, None)])
def test_resampling_is_seeded(signal, positions):
    run = [patch_grid(signal, PAIRS, by="head", layers=[1], ablation="resample", seed=seed,
                      positions=positions) for seed in (0, 0, 1)]  # fmt: skip
    assert run[0].value.equals(run[1].value)
    assert not run[0].value.equals(run[2].value)
    assert run[0].provenance.seeds == (0,)
    assert run[2].provenance.seeds == (1,)
    assert run[0].value.notnull().all()


def test_resampling_from_one_item_puts_its_activation_in_place(signal):
    reference = [("Count.", "One, two and three.")]
    grid = patch_grid(signal, PAIRS[:1], ablation="resample", reference=reference,
                      components=["L1.mlp_out"])  # fmt: skip
    value = signal.capture(reference, ["L1.mlp_out"])["L1.mlp_out"][0]
    mlp, (prompt, a, b) = signal.trunk.model.model.layers[1].mlp, PAIRS[0]
    s = signal.score([(prompt, a), (prompt, b)]).value.values
    cut = [hooked(signal, (prompt, r), mlp, slice(None), value, -1) for r in (a, b)]
    got = float(grid.value.sel(quantity="effect").squeeze())
    assert got == pytest.approx((s[0] - s[1]) - (cut[0] - cut[1]), abs=2e-5)


def test_resampling_within_one_lineage_is_refused(signal):
    with pytest.raises(DataError, match="items of another lineage .* give reference="):
        patch_grid(signal, PAIRS[:1], ablation="resample")
