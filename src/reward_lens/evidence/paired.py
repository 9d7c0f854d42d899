"""Two signals on the same pairs: the difference of their accuracies, pair by pair."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reward_lens.errors import DataError
from reward_lens.evidence.clusters import (
    FEW_CLUSTERS,
    Floats,
    checked_rows,
    join,
    lineage_codes,
    totals,
)
from reward_lens.evidence.intervals import cluster_t
from reward_lens.evidence.parts import Interval


@dataclass(frozen=True)
class PairedAccuracy:
    """How two signals' accuracies differ on the same pairs.

    Attributes
    ----------
    difference : Interval
        Accuracy of the first minus that of the second, with a cluster-t interval.
    p : float
        Two-sided, exact: see :func:`sign_flip_p`.
    only_a, only_b : int
        Pairs that only the first, or only the second, has right.
    ties_a, ties_b : int
        Pairs whose sides the signal scores alike; each counts half.
    """

    difference: Interval
    p: float
    only_a: int
    only_b: int
    ties_a: int
    ties_b: int


def paired_accuracy(
    name: str,
    margins_a: npt.ArrayLike,
    margins_b: npt.ArrayLike,
    lineage: npt.ArrayLike,
    level: float = 0.95,
) -> PairedAccuracy:
    """Compare the accuracies of two signals on the same pairs.

    Parameters
    ----------
    name : str
    margins_a, margins_b : array of float, [n]
        Chosen score minus rejected score. A margin of exactly 0 is a tie: neither a win nor a
        loss, it counts half.
    lineage : array of str, [n]
    level : float

    Returns
    -------
    PairedAccuracy
        The interval is that of the mean difference per pair, which the pairs both have right or
        wrong only narrow. Where the two never differ there is no interval, and the note says so.

    Raises
    ------
    DataError
        If there are no rows or lengths differ.
    NumericsError
        On NaN or infinity, naming the row.
    """
    a, b = (
        checked_rows(name, margins_a, "margin a of"),
        checked_rows(name, margins_b, "margin b of"),
    )
    if len(a) != len(b):
        raise DataError(f"{name}: {len(a)} margins of the first signal, {len(b)} of the second")
    gap = _wins(a) - _wins(b)
    found = cluster_t(name, gap, lineage, level)
    codes, groups = lineage_codes(name, lineage, len(a))
    if not gap.any():
        nan, why = math.nan, "the two signals never differ on these pairs"
        found = dataclasses.replace(found, low=nan, high=nan, se=nan, note=why)
    elif not math.isnan(found.low):  # with few lineages t reaches beyond what is possible
        found = dataclasses.replace(found, low=max(found.low, -1.0), high=min(found.high, 1.0))
    if gap.any() and groups < FEW_CLUSTERS:
        found = dataclasses.replace(found, note=join(found.note, "go by the exact p value"))
    return PairedAccuracy(
        difference=found,
        p=sign_flip_p(totals(gap, codes, groups)),
        only_a=int(((a > 0) & ~(b > 0)).sum()),
        only_b=int(((b > 0) & ~(a > 0)).sum()),
        ties_a=int((a == 0).sum()),
        ties_b=int((b == 0).sum()),
    )


def sign_flip_p(sums: npt.ArrayLike) -> float:
    """Exact two-sided p value that sums of independent lineages are symmetric around 0.

    Parameters
    ----------
    sums : array of float, [lineages]
        Multiples of one half: what each lineage adds to the difference in wins.

    Returns
    -------
    float
        The share of all ``2^lineages`` choices of signs whose total is at least as far from 0 as
        the one seen, from the exact distribution. With one pair a lineage this is McNemar's exact
        test; with several, the lineages are flipped as wholes.

    Raises
    ------
    DataError
        If a sum is no multiple of one half.
    """
    given = 2 * np.asarray(sums, dtype=np.float64)
    steps = np.rint(given).astype(np.int64)
    if not np.array_equal(steps, given):
        raise DataError("sums of wins are multiples of one half")
    sizes = np.abs(steps[steps != 0])
    if not len(sizes):
        return 1.0
    # Chances of every total, which is kept shifted so that the lowest is entry 0.
    chances = np.ones(1)
    for size in sizes:
        flipped = np.zeros(len(chances) + 2 * int(size))
        flipped[: len(chances)] += 0.5 * chances
        flipped[2 * int(size) :] += 0.5 * chances
        chances = flipped
    reach = np.abs(np.arange(len(chances)) - int(sizes.sum()))
    return float(min(1.0, chances[reach >= abs(int(steps.sum()))].sum()))


def _wins(margins: Floats) -> Floats:
    """1 for a win, 0 for a loss, one half for a tie."""
    return np.where(margins == 0, 0.5, (margins > 0).astype(np.float64))
