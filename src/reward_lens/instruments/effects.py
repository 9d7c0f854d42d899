"""Effects of changes to a trunk: their share of the margin, and what they are on average."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from reward_lens.evidence.intervals import cluster_t

#: A margin below this share of the largest score is what float32 leaves of equal scores.
DEGENERATE = 1e-6

Floats = npt.NDArray[np.float64]


def degenerate_margins(scores: Floats) -> npt.NDArray[np.bool_]:
    """Pairs whose two scores are equal to float32: ``[2, pair]`` to bool ``[pair]``."""
    margins = np.abs(scores[0] - scores[1])
    bad: npt.NDArray[np.bool_] = margins <= DEGENERATE * np.abs(scores).max()
    return bad


def real_margins(scores: Floats) -> Floats:
    """Margins ``[pair]`` of scores ``[2, pair]``, exactly 0 where they are degenerate."""
    return np.where(degenerate_margins(scores), 0.0, scores[0] - scores[1])


def margin_shares(effects: Floats, scores: Floats) -> Floats:
    """Effects as shares of each pair's margin, NaN where the margin is degenerate.

    Parameters
    ----------
    effects : ndarray, [direction, pair, ...]
    scores : ndarray, [2, pair]
        Of the chosen and the rejected side.
    """
    margins = real_margins(scores)
    margins = np.where(margins == 0, np.nan, margins)
    return effects / margins.reshape(1, -1, *(1,) * (effects.ndim - 2))


def effect_rows(
    labels: Iterable[dict[str, Any]],
    effects: Floats,
    margins: Floats,
    lineages: npt.NDArray[np.object_],
    flips: Floats | None = None,
) -> pd.DataFrame:
    """Average effects over pairs.

    Parameters
    ----------
    labels : iterable of dict
        The first columns of each row.
    effects : ndarray, [row, pair]
        In reward units; NaN where a pair has none.
    margins : ndarray, [pair]
        As :func:`real_margins` gives them.
    lineages : ndarray of str, [pair]
    flips : ndarray, [row, pair], optional
        Router choices that changed.

    Returns
    -------
    DataFrame
        ``pairs`` (that have an effect), ``mean`` with the ends of its cluster-t interval and its
        ``note``, ``mean_size`` (mean absolute effect), ``share_of_margin``
        (``Σ effect · sign(margin) / Σ |margin|`` over these pairs; NaN where all margins are 0) and
        ``mean_flips``.
    """
    rows = []
    for k, (label, effect) in enumerate(zip(labels, effects, strict=True)):
        ok = ~np.isnan(effect)
        row = {**label, "pairs": int(ok.sum())}
        if ok.any():
            mean = cluster_t("mean", effect[ok], lineages[ok])
            total = float(np.abs(margins[ok]).sum())
            signed = float((effect[ok] * np.sign(margins[ok])).sum())
            row |= {
                "mean": mean.estimate,
                "low": mean.low,
                "high": mean.high,
                "mean_size": float(np.abs(effect[ok]).mean()),
                "share_of_margin": signed / total if total else np.nan,
            }
            if flips is not None:
                row["mean_flips"] = float(flips[k][ok].mean())
            row["note"] = mean.note
        else:
            row |= dict.fromkeys(("mean", "low", "high", "mean_size", "share_of_margin"), np.nan)
            if flips is not None:
                row["mean_flips"] = np.nan
            row["note"] = "no pair has these tokens"
        rows.append(row)
    return pd.DataFrame(rows)
