"""Reading the evidence of ``preference``, and making evidence that was computed from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.errors import EvidenceError
from reward_lens.evidence import Evidence, Interval, Units

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.object_]


def margins_of(preferred: Evidence, asked: str) -> tuple[Floats, Labels, Labels]:
    """Margins float64, lineages and subsets, each ``[pair]``."""
    if preferred.instrument != "preference":
        raise EvidenceError(
            f"{asked} reads the evidence of preference, this is of {preferred.instrument}; pass "
            f"preference(signal, pairs)"
        )
    value = preferred.value
    return (
        np.asarray(value.sel(side="margin").values, dtype=np.float64),
        np.asarray(value["lineage"].values, dtype=object),
        np.asarray(value["subset"].values, dtype=object),
    )


def subset_name(subset: str, total: str) -> str:
    """What a subset's row is called beside one of all pairs; ``subset=…`` where both would be."""
    return f"subset={subset}" if subset == total else subset


def derived(
    preferred: Evidence,
    instrument: str,
    value: xr.DataArray,
    *,
    units: Units,
    parameters: Mapping[str, Any] | None = None,
    seeds: tuple[int, ...] = (),
    uncertainty: tuple[Interval, ...] = (),
    tables: Mapping[str, pd.DataFrame],
) -> Evidence:
    """Evidence computed from that of ``preference``: the same subject, no forward."""
    given = preferred.provenance
    return dataclasses.replace(
        preferred,
        value=value,
        instrument=instrument,
        version="1",
        units=units,
        provenance=dataclasses.replace(
            given,
            parents=(preferred.id,),
            seeds=seeds,
            cost_forwards=0.0,
            parameters={**given.parameters, **(parameters or {})},
        ),
        uncertainty=uncertainty,
        tables=tables,
        quantity_units={},
        calibration=None,
    ).with_parents(preferred)
