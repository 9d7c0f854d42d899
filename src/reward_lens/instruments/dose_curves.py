"""The arithmetic of dose curves: where they are straight, how steep, and what chance would give."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: How far a curve may leave its tangent, as a share of what the tangent changes over the range.
BEND = 0.10

Floats = npt.NDArray[np.float64]


def linear_range(doses: Floats, change: Floats, tangent: float) -> float:
    """Largest range of doses in which a curve keeps to its tangent at 0.

    Parameters
    ----------
    doses : ndarray, [dose]
    change : ndarray, [dose]
        The curve less its value at dose 0.
    tangent : float
        Its derivative at dose 0.

    Returns
    -------
    float
        The largest ``D`` among the sizes of the doses such that no dose from ``−D`` to ``D``
        departs from the tangent by more than :data:`BEND` ``· |tangent| · D``; 0 if there is none.
    """
    departure = np.abs(change - tangent * doses)
    for size in sorted({abs(float(d)) for d in doses if d != 0}, reverse=True):
        if departure[np.abs(doses) <= size].max() <= BEND * abs(tangent) * size:
            return size
    return 0.0


def within(doses: Floats, size: float) -> npt.NDArray[np.bool_]:
    """The doses that a slope is fitted to.

    Those of the linear range; where there is none, of the smallest range that the doses make.
    """
    sizes = np.abs(doses)
    inside: npt.NDArray[np.bool_] = sizes <= (size or sizes[sizes > 0].min())
    return inside


def slopes(doses: Floats, scores: Floats) -> Floats:
    """Least-squares slopes of scores ``[dose, ...]`` on doses ``[dose]``, with an intercept."""
    centred = doses - doses.mean()
    found: Floats = np.tensordot(centred, scores, axes=1) / (centred @ centred)
    return found


@dataclass(frozen=True)
class Band:
    """What one more random direction would give with a probability of 95 %.

    Attributes
    ----------
    low, high : ndarray, [...]
    """

    low: Floats
    high: Floats


def random_band(values: Floats, opposite: Floats | None = None, level: float = 0.95) -> Band:
    """Prediction interval for one more draw.

    Parameters
    ----------
    values : ndarray, [direction, ...]
        Of at least two random directions.
    opposite : ndarray, [direction, ...], optional
        What their opposites give, where it is known: a direction and its opposite are equally
        likely, so that the middle need not be guessed from a few draws.
    level : float

    Returns
    -------
    Band
        ``mean ± t · s · √(1 + 1/R)`` with the t quantile of ``R − 1`` degrees of freedom; with
        opposites, the mean over both, ``± t · s`` with ``R`` degrees of freedom. To first order
        what a random direction does is its product with one fixed vector, which in many dimensions
        is close to normal; a quantile of twenty draws would be too narrow.
    """
    from scipy import stats

    count = len(values)
    if opposite is None:
        reach = float(stats.t.ppf(0.5 + level / 2, count - 1)) * math.sqrt(1 + 1 / count)
        middle, spread = values.mean(0), values.std(0, ddof=1)
    else:
        both = np.concatenate([values, opposite])
        reach = float(stats.t.ppf(0.5 + level / 2, count))
        middle, spread = both.mean(0), both.std(0)
    return Band(middle - reach * spread, middle + reach * spread)


def mirrored(doses: Floats) -> bool:
    """Whether rising doses are the same below 0 as above."""
    return bool((doses == -doses[::-1]).all())


def random_units(count: int, width: int, rng: np.random.Generator) -> Floats:
    """Unit vectors drawn evenly from the sphere: float64 ``[count, width]``."""
    drawn = rng.standard_normal((count, width))
    units: Floats = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return units
