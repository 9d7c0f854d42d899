"""Intervals that count independent data: rows that share a lineage are not independent.

Each function returns an :class:`~reward_lens.evidence.Interval` whose ``note`` says when the stated
level is doubtful. The methods and where they hold were chosen by simulation: clustered standard
errors with a t quantile for means and slopes; for correlations the jackknife over clusters on
``atanh ρ``, since the bias-corrected bootstrap undercovers there with heavy tails.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from reward_lens.errors import DataError, NumericsError
from reward_lens.evidence.record import Interval

_FEW_CLUSTERS = 15
_HEAVY_KURTOSIS = 10.0

Floats = npt.NDArray[np.float64]


def cluster_t(name: str, y: npt.ArrayLike, lineage: npt.ArrayLike, level: float = 0.95) -> Interval:
    """Mean with a cluster-robust t interval.

    Parameters
    ----------
    name : str
    y : array of float or bool, [n]
    lineage : array of str, [n]
        Rows with equal labels form a cluster.
    level : float

    Returns
    -------
    Interval
        With ``G`` clusters, t quantile of ``G − 1`` degrees of freedom on statsmodels'
        cluster-robust standard error (its small-sample factor ``G/(G−1)·(n−1)/(n−1)``).
        ``n_effective = min(n, n·(SE_iid/SE_cluster)²)``. Where all rows of a 0/1 outcome agree:
        Clopper–Pearson on the clusters.

    Raises
    ------
    DataError
        If there are no rows or lengths differ.
    NumericsError
        On NaN or infinity.
    """
    values, codes, groups = _checked(name, y, lineage)
    n, mean = len(values), float(values.mean())
    if _is_binary(y) and values.min() == values.max():
        return _clopper_pearson(name, mean, n, groups, level)
    if groups < 2:
        return _none(name, mean, level, n, groups, "cluster-t", "one lineage gives no interval")
    if np.ptp(values) == 0:
        note = "every row has the same value"
        return Interval(name, mean, mean, mean, level, 0.0, n, float(groups), groups, "cluster-t",
                        note)  # fmt: skip
    fit = _clustered(values, np.ones((n, 1)), codes)
    low, high = fit.conf_int(alpha=1 - level)[0]
    se, iid = float(fit.bse[0]), float(values.std(ddof=1) / math.sqrt(n))
    return Interval(
        name, mean, float(low), float(high), level, se, n, _effective(n, iid, se), groups,
        "cluster-t", _doubt(values, codes, groups),
    )  # fmt: skip


def cluster_t_slope(
    name: str,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    lineage: npt.ArrayLike,
    level: float = 0.95,
    *,
    within: bool = False,
) -> Interval:
    """Slope of ``y`` on ``x`` with a cluster-robust t interval.

    Parameters
    ----------
    within : bool
        Centre both per lineage first (a fixed effect per lineage); lineages of one row say nothing
        then, are dropped, and are counted in the note.

    Returns
    -------
    Interval
        In units of ``y`` per unit of ``x``.
    """
    given = np.asarray(x, dtype=np.float64)
    values, codes, groups = _checked(name, y, lineage)
    if given.shape != values.shape or not np.isfinite(given).all():
        raise DataError(f"{name}: x needs {len(values)} finite numbers")
    note = ""
    if within:
        counts = np.bincount(codes)
        keep = counts[codes] > 1
        note = f"{int((counts == 1).sum())} lineages of one row dropped" if not keep.all() else ""
        given, values, codes = given[keep], values[keep], codes[keep]
        groups = len(np.unique(codes))
        given = given - _group_means(given, codes)
        values = values - _group_means(values, codes)
    n, method = len(values), "cluster-t slope" + (" within lineages" if within else "")
    if groups < 3 or n < 3 or np.ptp(given) == 0:
        reason = "x does not vary" if n >= 3 and np.ptp(given) == 0 else "fewer than three lineages"
        return _none(name, math.nan, level, n, groups, method, _join(note, reason))
    design = given[:, None] if within else np.column_stack([np.ones(n), given])
    fit = _clustered(values, design, codes)
    low, high = fit.conf_int(alpha=1 - level)[-1]
    residual = np.asarray(fit.resid)
    iid = float(residual.std(ddof=design.shape[1]) / (np.sqrt(n) * given.std()))
    se = float(fit.bse[-1])
    return Interval(
        name, float(fit.params[-1]), float(low), float(high), level, se, n,
        _effective(n, iid, se), groups, method, _join(note, _doubt(residual, codes, groups)),
    )  # fmt: skip


def jackknife_correlation(
    name: str,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    lineage: npt.ArrayLike,
    level: float = 0.95,
    *,
    method: str = "pearson",
) -> Interval:
    """Correlation with a delete-one-lineage jackknife interval on ``atanh ρ``.

    Parameters
    ----------
    method : {"pearson", "spearman"}
        Spearman ranks all rows once, then proceeds as Pearson on the ranks.

    Returns
    -------
    Interval
        t quantile of ``G − 1`` degrees of freedom on the jackknife standard error of
        ``atanh ρ``, mapped back by ``tanh``. For ``ρ = ±1`` the point only.
    """
    from scipy import stats

    if method not in ("pearson", "spearman"):
        raise DataError(f"{name}: method={method!r}: choose 'pearson' or 'spearman'")
    a, codes, groups = _checked(name, x, lineage)
    b, _, _ = _checked(name, y, lineage)
    if len(a) != len(b):
        raise DataError(f"{name}: x has {len(a)} rows, y {len(b)}")
    if method == "spearman":
        a, b = stats.rankdata(a), stats.rankdata(b)
    n, label = len(a), f"jackknife-t {method}"
    if n < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return _none(name, math.nan, level, n, groups, label, "one of the two does not vary")
    a, b = (a - a.mean()) / a.std(), (b - b.mean()) / b.std()  # for the sums' accuracy
    rho = float(np.clip((a * b).mean(), -1, 1))
    if abs(rho) > 1 - 1e-12:
        reason = "a perfect correlation gives no interval"
        return _none(name, rho, level, n, groups, label, reason)
    if groups < 3:
        return _none(name, rho, level, n, groups, label, "fewer than three lineages")
    left = _leave_one_out(a, b, codes, groups)
    if not np.isfinite(left).all() or (np.abs(left) >= 1).any():
        reason = "without one lineage the correlation is perfect or undefined"
        return _none(name, rho, level, n, groups, label, reason)
    z = np.arctanh(left)
    se = math.sqrt((groups - 1) / groups * float(((z - z.mean()) ** 2).sum()))
    reach = float(stats.t.ppf(0.5 + level / 2, groups - 1)) * se
    centre = math.atanh(rho)
    iid = 1 / math.sqrt(max(n - 3, 1))
    return Interval(
        name, rho, math.tanh(centre - reach), math.tanh(centre + reach), level,
        se * (1 - rho * rho), n, _effective(n, iid, se), groups, label,
        f"fewer than {_FEW_CLUSTERS} lineages: the stated level is doubtful"
        if groups < _FEW_CLUSTERS else "",
    )  # fmt: skip


def _leave_one_out(a: Floats, b: Floats, codes: npt.NDArray[np.int64], groups: int) -> Floats:
    """Pearson correlation without each cluster in turn, from sums."""

    def without(v: Floats) -> Floats:
        rest: Floats = v.sum() - np.bincount(codes, weights=v, minlength=groups)
        return rest

    n = len(a) - np.bincount(codes, minlength=groups)
    with np.errstate(divide="ignore", invalid="ignore"):
        ma, mb = without(a) / n, without(b) / n
        cov = without(a * b) / n - ma * mb
        va, vb = without(a * a) / n - ma * ma, without(b * b) / n - mb * mb
        rho: Floats = cov / np.sqrt(va * vb)
    return rho


def accuracy(
    name: str, margins: npt.ArrayLike, lineage: npt.ArrayLike, level: float = 0.95
) -> tuple[Interval, int]:
    """Share of pairs whose chosen response scores higher, and the number of ties.

    A tie (margin exactly 0) is neither a win nor a loss and counts half; the note states it where
    there are any.
    """
    m = np.asarray(margins, dtype=np.float64)
    if np.isnan(m).any():
        raise NumericsError(f"{name}: the margin of row {int(np.isnan(m).argmax())} is NaN")
    ties = int((m == 0).sum())
    wins = (m > 0) + 0.5 * (m == 0) if ties else m > 0
    found = cluster_t(name, wins, lineage, level)
    if ties:
        note = _join(f"{ties} ties, counted half", found.note)
        found = Interval(**{**found.__dict__, "note": note})
    return found, ties


def _checked(
    name: str, y: npt.ArrayLike, lineage: npt.ArrayLike
) -> tuple[Floats, npt.NDArray[np.int64], int]:
    values = np.asarray(y, dtype=np.float64)
    labels = np.asarray(lineage, dtype=object)
    if values.ndim != 1 or len(values) == 0:
        raise DataError(f"{name}: there are no rows")
    if labels.shape != values.shape:
        raise DataError(f"{name}: {len(values)} rows, {len(labels)} lineages")
    if not np.isfinite(values).all():
        raise NumericsError(f"{name}: row {int((~np.isfinite(values)).argmax())} is not finite")
    names, codes = np.unique(labels.astype(str), return_inverse=True)
    return values, codes.astype(np.int64), len(names)


def _is_binary(y: npt.ArrayLike) -> bool:
    return np.asarray(y).dtype == bool


def _clustered(y: Floats, design: Floats, codes: npt.NDArray[np.int64]) -> Any:
    import statsmodels.api as sm

    return sm.OLS(y, design).fit(cov_type="cluster", cov_kwds={"groups": codes}, use_t=True)


def _clopper_pearson(name: str, mean: float, n: int, groups: int, level: float) -> Interval:
    from scipy import stats

    found = stats.binomtest(groups if mean == 1 else 0, groups).proportion_ci(level, "exact")
    note = "all rows agree; the lineages are counted"
    return Interval(
        name, mean, float(found.low), float(found.high), level, math.nan, n, float(groups), groups,
        "Clopper–Pearson", note,
    )  # fmt: skip


def _none(
    name: str, point: float, level: float, n: int, groups: int, method: str, reason: str
) -> Interval:
    nan = math.nan
    return Interval(name, point, nan, nan, level, nan, n, float(min(n, groups)), groups, method,
                    reason)  # fmt: skip


def _effective(n: int, iid: float, clustered: float) -> float:
    return float(n) if clustered == 0 else float(min(n, n * (iid / clustered) ** 2))


def _doubt(values: Floats, codes: npt.NDArray[np.int64], groups: int) -> str:
    """Say when few lineages, or a few extreme ones, make the stated level doubtful."""
    if groups < _FEW_CLUSTERS:
        return f"fewer than {_FEW_CLUSTERS} lineages: the stated level is doubtful"
    sums = np.bincount(codes, weights=values - values.mean())
    spread = float(((sums - sums.mean()) ** 2).mean())
    if spread > 0 and float(((sums - sums.mean()) ** 4).mean()) / spread**2 > _HEAVY_KURTOSIS:
        return "a few lineages dominate (heavy tails): the stated level is doubtful"
    return ""


def _group_means(values: Floats, codes: npt.NDArray[np.int64]) -> Floats:
    means: Floats = (np.bincount(codes, weights=values) / np.maximum(np.bincount(codes), 1))[codes]
    return means


def _join(*notes: str) -> str:
    return "; ".join(n for n in notes if n)
