"""Evidence of pairs whose values are known: scores, layer curves, token maps."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import xarray as xr

from reward_lens.evidence import Evidence, GaugeStatus, Provenance, Subject, Tier, Units

RAN = Provenance(
    versions={}, dtype="float32", device="cpu", kernel="sdpa", seeds=(), parents=(),
    cost_forwards=0.0, parameters={},
)  # fmt: skip


def known(instrument, value, **tables):
    """Evidence with values that are known."""
    return Evidence(
        value=value, instrument=instrument, version="1", subject=Subject("s", "d", "reward"),
        tier=Tier.OBSERVATIONAL, gauge=GaugeStatus.INVARIANT, units=Units.REWARD, provenance=RAN,
        tables=tables,
    )  # fmt: skip


def preference(pairs, chosen, rejected):
    """What is read of scores, of scores that are given."""
    both = np.array([chosen, rejected], dtype=np.float32)
    characters = [
        [float(len(i.response)) if i.response else math.nan for i in side]
        for side in (pairs.chosen, pairs.rejected)
    ]
    table = pd.DataFrame({
        "pair": pairs.ids, "subset": pairs.subsets, "characters_chosen": characters[0],
        "characters_rejected": characters[1], "chosen": both[0], "rejected": both[1],
        "margin": both[0] - both[1],
    })  # fmt: skip
    value = xr.DataArray(
        np.stack([*both, both[0] - both[1]]), dims=("side", "pair"),
        coords={"side": ["chosen", "rejected", "margin"], "pair": pairs.ids}, name="score",
    )  # fmt: skip
    return known("preference", value, scores=table)


def drawn(pairs, seed=0):
    return preference(pairs, *np.random.default_rng(seed).normal(size=(2, len(pairs))))


def lens_of(ids, depths=31):
    values = np.random.default_rng(1).normal(size=(2, len(ids), depths))
    coords = {"reading": ["frozen", "applied"], "pair": ids, "depth": np.arange(depths)}
    return known("lens", xr.DataArray(values, coords, ("reading", "pair", "depth"), "margin"))


def map_of(ids, length=40):
    """A token map of so many tokens a side, the response being the last ten."""
    side, pair, at = (a.ravel() for a in np.meshgrid(
        ["chosen", "rejected"], np.array(ids, dtype=object), np.arange(length), indexing="ij",
    ))  # fmt: skip
    values = np.random.default_rng(2).normal(size=len(at))
    table = pd.DataFrame({
        "side": side, "pair": pair, "position": at, "token": [f" tok{k}" for k in at],
        "read": at == length - 1, "response": at >= length - 10, "prefix": values,
        "gradient": values[::-1],
    })  # fmt: skip
    value = xr.DataArray(np.zeros(len(ids)), {"pair": ids}, ("pair",), "contribution")
    empty = pd.DataFrame({"items": [], "rank_correlation": []})
    return known("token_map", value, tokens=table, agreement=empty)
