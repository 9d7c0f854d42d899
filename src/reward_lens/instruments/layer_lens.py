"""The lens: how the margin forms over depth, read along the head's direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.data import as_pairs
from reward_lens.evidence import Evidence
from reward_lens.evidence.intervals import cluster_t
from reward_lens.instruments.sides import Sides
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.depth import depth_readings
from reward_lens.signals.identity import observation
from reward_lens.signals.intervening import refuse_replaced_stream

READINGS = ("frozen", "applied")
#: A final margin below this share of the largest score is what float32 leaves of equal scores.
_DEGENERATE = 1e-6

Floats = npt.NDArray[np.float64]


def lens(
    signal: ClassifierRM,
    pairs: Any,
    *,
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """Read the margin off the residual stream at every depth.

    Depth 0 is the embedding, depth ``l + 1`` the stream after layer ``l``. Two readings are always
    given together, because they answer different questions and can disagree by most of a network:

    - ``frozen``: norms held at their value on the item (and a head that is not linear at its
      direction there); partial sums of what the layers write, ending in the score.
    - ``applied``: head and norm applied to the stream at that depth, as if the network ended there
      (the logit-lens reading).

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
    readout : str
    position : {"native", "last"}, optional
    progress : callable, optional
        Told the number of finished items of each batch.

    Returns
    -------
    Evidence
        Value float64 ``[reading, pair, depth]``: margins in reward units. Tables: ``curve`` (per
        reading and depth: mean margin with a cluster-t interval, median share of the final margin,
        share of pairs that already have the final sign), ``crystallization`` (per reading) and
        ``crossings`` (per reading and pair).

    Raises
    ------
    CapabilityError
        If the trunk was not looked into.
    AnatomyError
        If the stream is normed inside blocks that did not verify.

    Notes
    -----
    The crossing is the first depth at which the margin reaches half its final value; the stable one
    is the depth after which it never falls below that again. Margins that are zero at the end have
    neither: they are NaN and counted as degenerate.
    """
    require(signal, Capability.ACTIVATIONS, "lens")
    refuse_replaced_stream(signal, "lens")
    given = as_pairs(pairs)
    sides = Sides.of(signal, given, position, truncate)
    chosen = signal.bound(readout, sides.encoded, batch_tokens)
    values = depth_readings(signal, sides.encoded, sides.read, chosen, batch_tokens, progress)
    layers = signal.meta.n_layers
    margins = sides.split(values)[2].transpose(1, 0, 2)
    # Decided once for both readings, on the scores themselves.
    bad = np.abs(margins[0, :, -1]) <= _DEGENERATE * np.abs(values[:, 0, -1]).max()
    crossings = {r: crossing_depths(margins[k], bad) for k, r in enumerate(READINGS)}
    return observation(
        signal,
        "lens",
        value=xr.DataArray(
            margins,
            dims=("reading", "pair", "depth"),
            coords={
                "reading": list(READINGS),
                "depth": np.arange(layers + 1),
                "fraction": ("depth", np.arange(layers + 1) / layers),
                **sides.pair_coords(),
            },
            name="margin",
        ),
        data=given.fingerprint,
        readout=chosen,
        position=position,
        parameters={"readout": readout, "truncate": truncate, "batch_tokens": batch_tokens},
        cost=float(len(sides.encoded)),
        uncertainty=tuple(
            cluster_t(f"{r}.first", c["first"][ok], given.lineages[ok])
            for r, c in crossings.items()
            if (ok := ~np.isnan(c["first"])).any()
        ),
        tables={
            "curve": _curve(margins, given.lineages, ~bad),
            "crystallization": _summary(crossings),
            "crossings": _per_pair(crossings, given.ids),
        },
    )


def crossing_depths(margins: Floats, bad: npt.NDArray[np.bool_]) -> dict[str, Floats]:
    """Where each pair's margin reaches half its final value.

    Parameters
    ----------
    margins : ndarray, [pair, depth]
    bad : ndarray of bool, [pair]
        Pairs whose final margin is degenerate.

    Returns
    -------
    dict
        ``first`` and ``stable``: depth ``[pair]``, NaN where the final margin is degenerate;
        ``flips``: 1.0 where the margin has the other sign at some depth after the first crossing.
    """
    final = margins[:, -1]
    share = margins / np.where(bad, 1.0, final)[:, None]
    reached = share >= 0.5
    first = reached.argmax(1).astype(float)
    below = ~reached[:, ::-1]
    stable = np.where(below.any(1), margins.shape[1] - below.argmax(1), 0).astype(float)
    after = np.arange(margins.shape[1])[None] > first[:, None]
    flips = ((share < 0) & after).any(1).astype(float)
    return {k: np.where(bad, np.nan, v) for k, v in
            {"first": first, "stable": stable, "flips": flips}.items()}  # fmt: skip


def _curve(
    margins: Floats, lineages: npt.NDArray[np.object_], real: npt.NDArray[np.bool_]
) -> pd.DataFrame:
    rows = []
    for reading, curve in zip(READINGS, margins, strict=True):
        final = curve[:, -1]
        for depth in range(curve.shape[1]):
            mean = cluster_t("mean", curve[:, depth], lineages)
            rows.append(
                {
                    "reading": reading,
                    "depth": depth,
                    "mean_margin": mean.estimate,
                    "low": mean.low,
                    "high": mean.high,
                    "median_share": float(np.median(curve[real, depth] / final[real]))
                    if real.any()
                    else np.nan,
                    "share_with_final_sign": float(
                        (np.sign(curve[real, depth]) == np.sign(final[real])).mean()
                    )
                    if real.any()
                    else np.nan,
                }
            )
    return pd.DataFrame(rows)


def _summary(crossings: dict[str, dict[str, Floats]]) -> pd.DataFrame:
    rows = []
    for reading, c in crossings.items():
        ok = ~np.isnan(c["first"])
        rows.append(
            {
                "reading": reading,
                "median_first": float(np.median(c["first"][ok])) if ok.any() else np.nan,
                "median_stable": float(np.median(c["stable"][ok])) if ok.any() else np.nan,
                "share_sign_change_after_first": float(c["flips"][ok].mean())
                if ok.any()
                else np.nan,
                "pairs": int(ok.sum()),
                "degenerate": int((~ok).sum()),
            }
        )
    return pd.DataFrame(rows)


def _per_pair(crossings: dict[str, dict[str, Floats]], ids: list[str]) -> pd.DataFrame:
    frames = [pd.DataFrame({"reading": r, "pair": ids, **c}) for r, c in crossings.items()]
    return pd.concat(frames, ignore_index=True)
