"""A weighted sum of several groups' means, with an interval that counts lineages."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from reward_lens.errors import DataError
from reward_lens.evidence.clusters import (
    checked_level,
    checked_rows,
    doubt,
    effective,
    join,
    lineage_codes,
    totals,
)
from reward_lens.evidence.intervals import cluster_t, on_logit
from reward_lens.evidence.parts import Interval


def weighted_mean(
    name: str,
    y: npt.ArrayLike,
    group: npt.ArrayLike,
    weights: Mapping[str, float],
    lineage: npt.ArrayLike,
    level: float = 0.95,
) -> Interval:
    """``Σ_g weight_g · mean_g`` with a cluster-robust t interval.

    Parameters
    ----------
    name : str
    y : array of float, [n]
        Shares (0 to 1), such as wins; a yes/no outcome is given as booleans.
    group : array of str, [n]
    weights : mapping of group to float
        One for every group that has rows, and no other. They are used as they are: weights that
        sum to 1 give a mean.
    lineage : array of str, [n]
        May span groups.
    level : float

    Returns
    -------
    Interval
        From statsmodels' regression on one indicator per group with cluster-robust covariance, t
        quantile of ``lineages − 1`` degrees of freedom, made on the logit scale where the estimate
        lies strictly between 0 and 1. With one group it is that of
        :func:`~reward_lens.evidence.intervals.cluster_t`. A group of one lineage adds no error
        that could be seen, and the note counts such groups.

    Raises
    ------
    DataError
        If there are no rows, lengths differ, a row has no group, or weights and groups do not
        match.
    NumericsError
        On NaN or infinity, naming the row.
    """
    level, values = checked_level(name, level), checked_rows(name, y)
    codes, clusters = lineage_codes(name, lineage, len(values))
    labels = np.asarray(group, dtype=object)
    if labels.shape != values.shape:
        raise DataError(f"{name}: {len(values)} rows, {len(labels)} groups")
    index, names = pd.factorize(labels)
    if (index < 0).any():
        raise DataError(
            f"{name}: row {int((index < 0).argmax())} has no group; name one, or leave such rows "
            f"out and say how many ({int((index < 0).sum())} of {len(index)})"
        )
    if set(names) != set(weights):
        raise DataError(
            f"{name}: weights are for {sorted(weights)}, rows are of {sorted(map(str, names))}"
        )
    w = np.array([float(weights[g]) for g in names])
    if np.ptp(values) == 0 and values[0] in (0, 1) and math.isclose(w.sum(), 1):
        return cluster_t(name, values.astype(bool), lineage, level)
    sizes = np.bincount(index)
    means = np.bincount(index, weights=values) / sizes
    estimate, method = float(w @ means), "cluster-t of a weighted mean"
    influence = totals((w / sizes)[index] * (values - means[index]), codes, clusters)
    lonely = sum(len(set(codes[index == g])) == 1 for g in range(len(names)))
    note = f"{lonely} groups of one lineage, whose error is not seen" if lonely else ""
    nan = math.nan
    if clusters < 2 or not (np.abs(influence) > 1e-12).any():
        why = "no error can be seen: every group agrees, or is one lineage"
        return Interval(
            name, estimate, nan, nan, level, nan, len(values), float(clusters), clusters, method,
            join(why, note),
        )  # fmt: skip
    se, low, high = _fitted(values, index, codes, w, level)
    spread = np.bincount(index, weights=(values - means[index]) ** 2) / np.maximum(sizes - 1, 1)
    iid = math.sqrt(float((w**2 * spread / sizes).sum()))
    found = Interval(
        name, estimate, low, high, level, se, len(values), effective(len(values), iid, se),
        clusters, method, join(note, doubt(influence, np.bincount(codes))),
    )  # fmt: skip
    if not 0 < estimate < 1:
        return found
    return dataclasses.replace(on_logit(found), method=f"{method}, on the logit")


def _fitted(
    y: npt.NDArray[np.float64],
    index: npt.NDArray[np.intp],
    codes: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float64],
    level: float,
) -> tuple[float, float, float]:
    """Standard error and bounds of the weighted sum of the groups' means."""
    from statsmodels.regression.linear_model import OLS

    design = np.eye(len(weights))[index]
    fit = OLS(y, design).fit(cov_type="cluster", cov_kwds={"groups": codes}, use_t=True)
    test = fit.t_test(weights)
    low, high = test.conf_int(alpha=1 - level)[0]
    return float(np.ravel(test.sd)[0]), float(low), float(high)
