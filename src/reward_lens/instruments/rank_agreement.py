"""Agreement of two ways to rank the parts of something: of a trunk, or of a text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reward_lens.evidence import Interval
from reward_lens.evidence.intervals import cluster_t

Floats = npt.NDArray[np.float64]

_LEAST = 3  # two values are always in perfect agreement or perfect disagreement
_GRAIN = 1e-5  # of the largest size


def rank_correlation(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Spearman's rank correlation over the places where both have a value.

    Values nearer to each other than 1e-5 of the largest size are ties.

    Parameters
    ----------
    x, y : array of float, [n]
        NaN where there is no value.

    Returns
    -------
    float
        NaN where fewer than three places are left or one of the two does not vary over them.
    """
    from scipy import stats

    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    both = np.isfinite(a) & np.isfinite(b)
    a, b = _tied(a[both]), _tied(b[both])
    if len(a) < _LEAST or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(stats.spearmanr(a, b).statistic)


def _tied(values: Floats) -> Floats:
    """The number of the group that each value is in; groups are 1e-5 of the largest size apart.

    Effects are differences of float32 scores: parts that do nothing differ by what rounding leaves
    (some 1e-8 of the scores), and ranks would order that as if it were found. Values are joined
    where neighbours are near, since a fixed grid would part equal ones that lie about an edge.
    """
    order = np.argsort(values)
    apart = np.diff(values[order]) > _GRAIN * np.abs(values).max(initial=0.0)
    groups = np.zeros(len(values))
    groups[order[1:]] = np.cumsum(apart)
    return groups


def mean_agreement(
    name: str, correlations: Sequence[float] | Floats, lineages: npt.NDArray[np.object_]
) -> Interval | None:
    """Mean of rank correlations, one a pair (or an item), with a cluster-t interval.

    Ranking is done inside each pair, so that pairs with large effects do not decide alone; what is
    independent are the pairs' lineages, not the parts that were ranked.

    Parameters
    ----------
    correlations : sequence of float, [n]
        NaN where undefined: left out.
    lineages : ndarray of str, [n]

    Returns
    -------
    Interval or None
        Its ends are kept within ±1. ``None`` where no correlation is defined.
    """
    rho = np.asarray(correlations, dtype=np.float64)
    ok = np.isfinite(rho)
    if not ok.any():
        return None
    found = cluster_t(name, rho[ok], lineages[ok])
    if np.ptp(rho[ok]) == 0 and found.n > 1:  # their spread is not known, and it is not zero
        note = f"all {found.n} correlations are the same: nothing is known of their spread"
        return dataclasses.replace(found, low=math.nan, high=math.nan, note=note)
    low, high = max(found.low, -1.0), min(found.high, 1.0)  # NaN stays: max and min keep the first
    return dataclasses.replace(found, low=low, high=high)
