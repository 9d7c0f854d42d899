"""Rows that share a lineage: codes, centring, and when a clustered interval is doubtful."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from reward_lens.errors import DataError, NumericsError

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

FEW_CLUSTERS = 15
_HEAVY_KURTOSIS = 10.0


def checked_level(name: str, level: float) -> float:
    """Return the level if it lies strictly between 0 and 1."""
    if not 0 < level < 1:
        raise DataError(f"{name}: level={level!r}: give a number between 0 and 1, such as 0.95")
    return float(level)


def checked_rows(name: str, values: npt.ArrayLike, what: str = "") -> Floats:
    """Return a row vector of finite float64, ``[n]``.

    Raises
    ------
    DataError
        If there are no rows, or they are no vector of numbers.
    NumericsError
        On NaN or infinity, naming the row.
    """
    label = f"{name}: {what + ' ' if what else ''}"
    try:
        rows = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{label}needs one number a row ({error})") from error
    if rows.ndim != 1:
        raise DataError(f"{label}needs one number a row, got an array of shape {rows.shape}")
    if len(rows) == 0:
        raise DataError(f"{name}: there are no rows")
    bad = ~np.isfinite(rows)
    if bad.any():
        first = int(bad.argmax())
        found = "NaN" if np.isnan(rows[first]) else f"{rows[first]:g}"
        raise NumericsError(
            f"{label}row {first} is {found}; leave such rows out and say how many "
            f"({int(bad.sum())} of {len(rows)})"
        )
    return rows


def lineage_codes(name: str, lineage: npt.ArrayLike, n: int) -> tuple[Codes, int]:
    """Number the lineages of ``n`` rows: codes int64 ``[n]`` from 0, and how many there are.

    Raises
    ------
    DataError
        If the lengths differ or a row has no lineage.
    """
    labels = np.asarray(lineage, dtype=object)
    if labels.shape != (n,):
        size = len(labels) if labels.ndim == 1 else f"an array of shape {labels.shape} for"
        raise DataError(f"{name}: {n} rows, {size} lineages")
    codes, names = pd.factorize(labels)
    if (codes < 0).any():
        raise DataError(f"{name}: row {int((codes < 0).argmax())} has no lineage")
    return codes.astype(np.int64), len(names)


def centred(columns: list[Floats], codes: Codes) -> tuple[list[Floats], Codes, int, str]:
    """Subtract each lineage's mean; lineages of one row say nothing then and are dropped.

    Returns
    -------
    columns, codes, groups, note
        Of the rows that remain; the note counts the lineages dropped. A column that does not vary
        inside a lineage is exactly 0 there, where plain subtraction leaves rounding noise.
    """
    counts = np.bincount(codes)
    keep = counts[codes] > 1
    dropped = int((counts == 1).sum())
    note = f"{dropped} lineages of one row dropped" if dropped else ""
    codes = np.unique(codes[keep], return_inverse=True)[1].astype(np.int64)
    groups = int(codes.max()) + 1 if len(codes) else 0
    return [_less_means(c[keep], codes, groups) for c in columns], codes, groups, note


def _less_means(values: Floats, codes: Codes, groups: int) -> Floats:
    low, high = np.full(groups, np.inf), np.full(groups, -np.inf)
    np.minimum.at(low, codes, values)
    np.maximum.at(high, codes, values)
    means = totals(values, codes, groups) / np.bincount(codes)
    return np.where((low == high)[codes], 0.0, values - means[codes])


def totals(values: Floats, codes: Codes, groups: int) -> Floats:
    """Sum of the values of each lineage, ``[groups]``."""
    return np.bincount(codes, weights=values, minlength=groups).astype(np.float64)


def effective(n: int, iid: float, clustered: float) -> float:
    """Independent rows that ``n`` rows are worth: ``min(n, n·(SE_iid/SE_cluster)²)``."""
    return float(n) if clustered == 0 else float(min(n, n * (iid / clustered) ** 2))


def doubt(influence: Floats, sizes: Codes) -> str:
    """Say when few, unequal or extreme lineages make the stated level doubtful.

    Parameters
    ----------
    influence : array of float, [clusters]
        What each lineage contributes to the error of the estimate.
    sizes : array of int, [clusters]
        Rows of each.
    """
    groups = len(sizes)
    if groups < FEW_CLUSTERS:
        return f"fewer than {FEW_CLUSTERS} lineages: the stated level is doubtful"
    # Kish: as many equal lineages would carry the same weight.
    equal = float(sizes.sum()) ** 2 / float((sizes.astype(float) ** 2).sum())
    if equal < FEW_CLUSTERS:
        return f"lineages as unequal as worth {equal:.3g} equal ones: the stated level is doubtful"
    parts = influence - influence.mean()
    spread = float((parts**2).mean())
    if spread > 0 and float((parts**4).mean()) / spread**2 > _HEAVY_KURTOSIS:
        return "a few lineages dominate (heavy tails): the stated level is doubtful"
    return ""


def join(*notes: str) -> str:
    """Put the notes that say something behind one another."""
    return "; ".join(n for n in notes if n)
