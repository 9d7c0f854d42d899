"""Attribution: what every write to the residual stream adds to score and margin, exactly."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.data import as_pairs
from reward_lens.errors import NumericsError
from reward_lens.evidence import Evidence
from reward_lens.evidence.intervals import cluster_t
from reward_lens.instruments.sides import SIDES, Sides
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.decomposition import decompose
from reward_lens.signals.identity import observation
from reward_lens.signals.segment import margin_directions

_ROUNDING_WARNS, _ROUNDING_REFUSES = 0.01, 0.10  # of the median absolute margin

Floats = npt.NDArray[np.float64]


def attribution(
    signal: ClassifierRM,
    pairs: Any,
    *,
    by: str = "component",
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """Split score and margin into what each write to the residual stream adds.

    The final norm is frozen at its value on each item, so that the split is linear and complete.
    Its scale differs between the two sides, so a write that is the same on both sides (the
    embedding of the same token, say) has a share of the margin that is not zero. Norms that the
    stream passes inside post-norm blocks are frozen in the same way.

    A head that is not linear is taken at its gradient: for a score the one at the item, with the
    rest as the write ``head_constant``; for a margin the mean one along the segment between the two
    head inputs, whose products add up to it (what quadrature leaves is its ``head_constant``). Then
    the margin row is not the difference of the two side rows. A head that is applied to every token
    and averaged after has no such segment; there the margin is that difference, ``head_constant``
    included.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
    by : {"component", "head"}
        Attention and MLP per layer; or attention split by query head.
    readout : str
    position : {"native", "last"}, optional

    Returns
    -------
    Evidence
        Value float64 ``[side, pair, write]`` in reward units, sides ``chosen``, ``rejected``,
        ``margin``. The last writes are ``bias`` (norm and head) and ``rounding`` (what the trunk's
        arithmetic loses). Table ``writes``: mean share of the margin with a cluster-t interval, and
        the share of the total signed towards the final margin. Table ``completeness``.

    Raises
    ------
    CapabilityError, AnatomyError
        If the signal's writes are not available.
    NumericsError
        If the writes do not add up, or rounding exceeds a tenth of the median absolute margin.

    Warns
    -----
    UserWarning
        If rounding exceeds a hundredth of the median absolute margin.
    """
    require(signal, Capability.ACTIVATIONS, "attribution")
    given = as_pairs(pairs)
    sides = Sides.of(signal, given, position, truncate)
    chosen = signal.bound(readout, sides.encoded, batch_tokens)
    run = partial(decompose, signal, sides.encoded, sides.read, chosen, by=by,
                  batch_tokens=batch_tokens, progress=progress)  # fmt: skip
    found = run()
    found.refuse_if_incomplete(signal.meta.dtype, signal.interventions)
    values = sides.split(found.shares)
    margins = sides.split(found.score)[2]
    cost = 1.0
    if not chosen.affine:
        directions = margin_directions(signal, sides.encoded, sides.read, chosen, batch_tokens)
        if directions is not None:
            values[2] = sides.split(run(directions=directions).shares)[2]
        cost = 3.0
    rounding = _judge_rounding(signal, values[2, :, -1], margins)
    return observation(
        signal,
        "attribution",
        value=xr.DataArray(
            values,
            dims=("side", "pair", "write"),
            coords={"side": list(SIDES), "write": found.names, **sides.pair_coords()},
            name="contribution",
        ),
        data=given.fingerprint,
        readout=chosen,
        position=position,
        parameters={
            "by": by,
            "readout": readout,
            "truncate": truncate,
            "batch_tokens": batch_tokens,
        },
        cost=cost * len(sides.encoded),
        tables={
            "writes": _write_table(found.names, values[2], margins, given.lineages),
            "completeness": pd.DataFrame(
                {
                    "completeness": [found.completeness],
                    "closure": [found.closure],
                    "median_rounding_share": [rounding],
                }
            ),
        },
    )


def _judge_rounding(signal: ClassifierRM, rounding: Floats, margins: Floats) -> float:
    """Median |rounding| over the median |margin|; warn or refuse where it is large."""
    scale = float(np.median(np.abs(margins)))
    if scale == 0:
        return 0.0
    share = float(np.median(np.abs(rounding))) / scale
    said = (
        f"rounding in {signal.meta.dtype} is {share:.1%} of the median |margin| (median over "
        f"{len(margins)} pairs)"
    )
    if share > _ROUNDING_REFUSES:
        raise NumericsError(
            f"{said}: too coarse to attribute a margin; "
            + (
                "its stream is so large that float32 rounds the margin away"
                if signal.meta.dtype == "float32"
                else "load the model with dtype=float32"
            )
        )
    if share > _ROUNDING_WARNS:
        warnings.warn(f"{said}; dtype=float32 is exact", UserWarning, stacklevel=3)
    return share


def _write_table(
    names: list[str], margin_shares: Floats, margins: Floats, lineages: npt.NDArray[np.object_]
) -> pd.DataFrame:
    total = float(np.abs(margins).sum())
    rows = []
    for k, name in enumerate(names):
        mean = cluster_t(name, margin_shares[:, k], lineages)
        signed = float((margin_shares[:, k] * np.sign(margins)).sum())
        rows.append(
            {
                "write": name,
                "mean": mean.estimate,
                "low": mean.low,
                "high": mean.high,
                "mean_size": float(np.abs(margin_shares[:, k]).mean()),
                "share_of_margin": signed / total if total else np.nan,
            }
        )
    return pd.DataFrame(rows)
