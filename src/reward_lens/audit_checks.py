"""What an audit says of itself: the conformance table, and how exact half precision is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from reward_lens.data import Pairs
from reward_lens.evidence import Evidence, Units
from reward_lens.instruments import preference
from reward_lens.progress import Progress
from reward_lens.signals import ClassifierRM, ConformanceReport
from reward_lens.signals.identity import observation


def conformance_evidence(signal: ClassifierRM, report: ConformanceReport) -> Evidence:
    """The conformance table as evidence: value bool ``[check]``."""
    names = [c.name for c in report.checks]
    return observation(
        signal,
        "conformance",
        value=xr.DataArray(
            np.array([c.passed for c in report.checks]),
            dims=("check",),
            coords={"check": names},
            name="passed",
        ),
        data="built-in probes",
        readout=signal.readout(),
        position=None,
        units=Units.SHARE,
        parameters={},
        cost=0.0,
        tables={
            "checks": pd.DataFrame(
                {
                    "check": names,
                    "passed": [c.passed for c in report.checks],
                    "measured": [c.measured for c in report.checks],
                    "allowed": [c.allowed for c in report.checks],
                    "meaning": [c.meaning for c in report.checks],
                }
            )
        },
    )


def batch_effect(
    signal: ClassifierRM,
    pairs: Pairs,
    scores: Evidence,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Evidence:
    """How much a score in half precision depends on what else is in the batch.

    Parameters
    ----------
    scores : Evidence
        Of :func:`~reward_lens.instruments.preference`, batched.

    Returns
    -------
    Evidence
        Value float64 ``[pair]``: margin in a batch minus margin alone. Table ``summary``: the
        median and largest size as shares of the median |margin|, and how many pairs change sign.
    """
    alone = preference(signal, pairs, **{**options, "batch_tokens": 1}, progress=progress)
    batched = scores.value.sel(pair=pairs.ids, side="margin").values.astype(float)
    single = alone.value.sel(side="margin").values.astype(float)
    gap, scale = batched - single, float(np.median(np.abs(single)))
    summary = {
        "median_share": [float(np.median(np.abs(gap))) / scale if scale else np.nan],
        "largest_share": [float(np.abs(gap).max()) / scale if scale else np.nan],
        "sign_changes": [int((np.sign(batched) != np.sign(single)).sum())],
        "could_flip": [int((np.abs(single) <= np.abs(gap).max()).sum())],
        "pairs": [len(pairs)],
    }
    return observation(
        signal,
        "batch_effect",
        value=xr.DataArray(gap, dims=("pair",), coords={"pair": pairs.ids}, name="batch_effect"),
        data=pairs.fingerprint,
        readout=signal.readout(options["readout"]),
        position=None,
        parameters=options,
        cost=float(2 * len(pairs)),
        parents=(scores, alone),
        tables={"summary": pd.DataFrame(summary)},
    )
