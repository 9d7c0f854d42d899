"""The null of the bias battery: what random heads on the same trunk would be said to prefer.

Any direction in state space reacts to any edit, so "different from zero" says nothing of a head.
What a head with no purpose shows is the yardstick: how large the largest of all its effects is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import Encoded, Site
from reward_lens.errors import NumericsError
from reward_lens.evidence.arguments import checked_count
from reward_lens.evidence.clusters import lineage_codes
from reward_lens.instruments.bias_cases import Cases
from reward_lens.progress import Progress
from reward_lens.signals import ClassifierRM
from reward_lens.signals.readouts import Readout
from reward_lens.signals.sweeping import Swept

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

#: Quantile of the largest effect that a random head must not reach more often than one in twenty.
QUANTILE = 0.95
#: Fewer heads leave the quantile to chance.
LEAST_HEADS = 200
_NORMED = Site("final_norm")


def random_heads(width: int, count: int, seed: int) -> Singles:
    """Directions drawn from an isotropic normal distribution: float32 ``[width, count]``."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, width), dtype=np.float32).T


def scored(
    signal: ClassifierRM,
    encoded: Sequence[Encoded],
    readout: Readout,
    read: Sequence[int],
    heads: int,
    seed: int,
    batch_tokens: int,
    progress: Progress | None,
) -> tuple[Singles, Singles]:
    """Score every item by the signal and by random heads on the states that its head reads.

    Returns
    -------
    scores : ndarray of float32, [item]
        As :meth:`~reward_lens.signals.ClassifierRM.score` gives them.
    others : ndarray of float32, [item, heads]
    """
    scores = np.empty(len(encoded), dtype=np.float32)
    others = np.empty((len(encoded), heads), dtype=np.float32)
    directions: Tensor | None = None
    sweep = signal.sweep(encoded, [_NORMED], read, batch_tokens=batch_tokens, progress=progress)
    for seen in sweep:
        values, states = _read(readout, seen)
        if directions is None:  # the width after the norm is known now
            drawn = random_heads(states.shape[-1], heads, seed)
            directions = torch.as_tensor(drawn).to(states)
        scores[seen.index] = values.cpu().numpy()
        others[seen.index] = (states @ directions).cpu().numpy()
    return scores, others


@torch.no_grad()
def _read(readout: Readout, seen: Swept) -> tuple[Tensor, Tensor]:
    """Scores ``[item]`` and the states ``[item, width]`` that were read, in float32."""
    rows = seen.sites[_NORMED].float()
    if len(rows) == len(seen.index):
        return readout.read(rows, seen.index), rows
    weight = seen.weight.float()
    states = seen.total(rows * weight[:, None])
    if readout.head.pool == "late":
        each = readout.read(rows, seen.index[seen.owner.cpu().numpy()])
        return seen.total(each * weight), states
    return readout.read(states, seen.index), states


def median_margin(margins: Floats) -> Floats:
    """Median |margin| of margins ``[pair, ...]``, the unit of all effects."""
    unit: Floats = np.median(np.abs(margins), axis=0)
    return unit


@dataclass(frozen=True)
class Null:
    """What random heads do, and what follows for each case.

    Attributes
    ----------
    heads, test_heads : int
        Those that set the threshold, and the others that test it.
    scale : ndarray of float64, [case]
        Root mean square over the first heads of each case's effect; NaN where it has no rows or
        nothing changes.
    quantile : float
        Of ``max |effect| / scale`` over all cases.
    named : int
        Test heads of which some case would be named.
    directions : float
        In how many directions the margins vary, see :func:`directions_of`.
    """

    heads: int
    test_heads: int
    scale: Floats
    quantile: float
    named: int
    directions: float

    @property
    def threshold(self) -> Floats:
        """The smallest effect that counts, for each case: ``[case]``."""
        return self.scale * self.quantile


def null_of(cases: Cases, others: Singles, heads: int) -> Null:
    """Set the threshold by the first ``heads`` random heads and test it on the rest.

    Parameters
    ----------
    cases : Cases
    others : ndarray of float32, [item, head]
    heads : int

    Raises
    ------
    NumericsError
        If no random head tells the sides of half the pairs apart.
    """
    unit = median_margin(cases.margins(others))
    if (unit == 0).any():
        raise NumericsError(
            "the states that the head reads are the same on both sides of at least half of the "
            "pairs: there is no median margin to measure in; give pairs that differ"
        )
    rows = [c.differences(others) / unit for c in cases.cases]
    effects = np.stack([_mean(r) for r in rows])  # [case, head]
    scale = np.sqrt((effects[:, :heads] ** 2).mean(1))
    scale = np.where(scale > 0, scale, np.nan)
    quantile = largest_quantile(effects[:, :heads], scale)
    tested = np.zeros(others.shape[1] - heads, dtype=bool)
    for case, values, least in zip(cases.cases, rows, scale * quantile, strict=True):
        if len(values) and np.isfinite(least):
            _, low, high = cluster_bounds(values[:, heads:], case.lineages)
            tested |= beyond(low, high, least)
    directions = directions_of(cases.margins(others))
    return Null(heads, len(tested), scale, quantile, int(tested.sum()), directions)


def directions_of(margins: Floats) -> float:
    """Participation ratio ``(tr Σ)² / tr Σ²`` of the margins of states, from random heads' margins.

    With isotropic heads ``g`` the mean square margin ``g·Σg`` has the mean ``tr Σ`` and the
    variance ``2 tr Σ²``. Near 1, all heads read the same direction up to its sign and size.

    Parameters
    ----------
    margins : ndarray, [pair, head]
    """
    squares = (margins**2).mean(0)
    return float(2 * squares.mean() ** 2 / squares.var(ddof=1))


def _mean(rows: Floats) -> Floats:
    return rows.mean(0) if len(rows) else np.full(rows.shape[1], np.nan)


def largest_quantile(effects: Floats, scale: Floats) -> float:
    """The 95th percentile over heads of the largest |effect| of any case, in its null scale.

    Taken over all cases at once, so that it holds for every statement of the battery together. The
    next larger head is taken where the percentile lies between two.

    Parameters
    ----------
    effects : ndarray, [case, head]
    scale : ndarray, [case]
    """
    ok = np.isfinite(scale)
    if not ok.any():
        return math.nan
    largest = np.abs(effects[ok] / scale[ok, None]).max(0)
    return float(np.quantile(largest, QUANTILE, method="higher"))


def beyond(low: npt.ArrayLike, high: npt.ArrayLike, least: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether an interval lies wholly beyond the smallest effect that counts, on either side."""
    found: npt.NDArray[np.bool_] = (np.asarray(low) > least) | (
        np.asarray(high) < -np.asarray(least)
    )
    return found


def cluster_bounds(
    values: Floats, lineages: npt.NDArray[np.object_], level: float = 0.95
) -> tuple[Floats, Floats, Floats]:
    """:func:`~reward_lens.evidence.intervals.cluster_t` of every column at once.

    Parameters
    ----------
    values : ndarray, [row, head]
    lineages : ndarray of str, [row]

    Returns
    -------
    mean, low, high : ndarray of float64, [head]
        Bounds NaN with fewer than two lineages.
    """
    from scipy import stats

    codes, groups = lineage_codes("null", lineages, len(values))
    mean: Floats = values.mean(0)
    if groups < 2:
        nan = np.full_like(mean, math.nan)
        return mean, nan, nan
    totals = np.zeros((groups, values.shape[1]))
    np.add.at(totals, codes, values - mean)
    se = np.sqrt(groups / (groups - 1) * (totals**2).sum(0)) / len(values)
    reach = float(stats.t.ppf(0.5 + level / 2, groups - 1)) * se
    return mean, mean - reach, mean + reach


def checked_heads(heads: int) -> int:
    """Return the number of heads if it is enough.

    Raises
    ------
    DataError
    """
    why = "a 95th percentile needs as many random heads; more are cheap: all read the same states"
    return checked_count("heads", heads, LEAST_HEADS, why)
