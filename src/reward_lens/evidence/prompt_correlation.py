"""Correlation of two signals' scores within prompts, with an interval that heavy tails do not fool.

Scores are centred per prompt, so what is left has mean 0 by construction, and a shift per prompt
drops out. Independent data are the lineages, which may hold several prompts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reward_lens.errors import DataError
from reward_lens.evidence.clusters import (
    Codes,
    Floats,
    centred,
    checked_level,
    checked_rows,
    doubt,
    effective,
    join,
    lineage_codes,
    totals,
)
from reward_lens.evidence.intervals import jackknife_correlation
from reward_lens.evidence.parts import Interval

_EXACT = 1e-12  # closer to ±1 than this is rounding
_LEAST_FREEDOM = 10.0  # fewer overshoot: simulated, a stated 0.95 then covers 0.97 and more
METHOD = "jackknife-t pearson within prompts"


def centre_by_prompt(
    name: str, columns: Sequence[npt.ArrayLike], prompt: npt.ArrayLike, lineage: npt.ArrayLike
) -> tuple[list[Floats], npt.NDArray[np.object_], int]:
    """Subtract each prompt's mean from every column.

    Parameters
    ----------
    columns : list of array of float, [n]
    prompt, lineage : array of str, [n]

    Returns
    -------
    columns : list of ndarray
        Rows whose prompt has another response.
    lineage : ndarray of object
        Of those rows.
    dropped : int
        Prompts of one response, which say nothing about a difference within a prompt.
    """
    given = [checked_rows(name, c) for c in columns]
    n = len(given[0])
    if any(len(c) != n for c in given):
        raise DataError(f"{name}: columns of {', '.join(str(len(c)) for c in given)} rows")
    codes, _ = lineage_codes(name, prompt, n)
    keep = np.bincount(codes)[codes] > 1
    rest, _, groups, _ = centred(given, codes)
    labels = np.asarray(lineage, dtype=object)
    if labels.shape != (n,):
        raise DataError(f"{name}: {n} rows, {labels.size} lineages")
    return rest, labels[keep], int(len(np.unique(codes)) - groups)


def prompt_rank_correlation(
    name: str,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    prompt: npt.ArrayLike,
    lineage: npt.ArrayLike,
    level: float = 0.95,
) -> Interval:
    """Spearman correlation of prompt-centred scores; parameters as :func:`prompt_correlation`.

    Returns
    -------
    Interval
        All centred rows are ranked together, then
        :func:`~reward_lens.evidence.intervals.jackknife_correlation`. Rows less one per prompt are
        the most that ``n_effective`` can be.

    Raises
    ------
    DataError
        If there are no rows or lengths differ, or no prompt has two responses.
    NumericsError
        On NaN or infinity, naming the row.
    """
    (a, b), labels, dropped = centre_by_prompt(name, [x, y], prompt, lineage)
    found = jackknife_correlation(name, a, b, labels, level, method="spearman")
    note = f"{dropped} prompts of one response dropped" if dropped else ""
    return dataclasses.replace(
        found,
        method=f"{found.method} within prompts",
        n_effective=min(found.n_effective, float(len(a) - _prompts_left(prompt))),
        note=join(note, found.note),
    )


def prompt_correlation(
    name: str,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    prompt: npt.ArrayLike,
    lineage: npt.ArrayLike,
    level: float = 0.95,
) -> Interval:
    """Pearson correlation of prompt-centred scores with a jackknife-t interval on ``atanh ρ``.

    Parameters
    ----------
    name : str
    x, y : array of float, [n]
        Scores of the same items by two signals.
    prompt : array of str, [n]
        Whose responses the items are; prompts of one response are dropped and counted in the note.
    lineage : array of str, [n]
        What is left out in turn.
    level : float

    Returns
    -------
    Interval
        ``tanh(atanh ρ ± t · se)`` with the delete-one-lineage jackknife's
        ``se = √((G − 1)/G · Σ (z_g − z̄)²)`` (Efron & Tibshirani 1993, ch. 11). The t quantile has
        Satterthwaite's degrees of freedom, ``2 / (κ/G + 2/(G − 1))`` with ``κ ≥ 0`` the excess
        kurtosis of the ``z_g`` (at least ten, where there are as many lineages): heavy tails make
        ``se`` itself uncertain, and ``G − 1`` would ignore it (simulated coverage of a stated 0.95
        then falls to 0.92). For ``ρ = ±1`` the point only. ``n_effective`` compares with Fisher's
        error on the rows less one per prompt.

    Raises
    ------
    DataError
        If there are no rows or lengths differ.
    NumericsError
        On NaN or infinity, naming the row.
    """
    from scipy import stats

    level = checked_level(name, level)
    (a, b), labels, dropped = centre_by_prompt(name, [x, y], prompt, lineage)
    note = f"{dropped} prompts of one response dropped" if dropped else ""
    n = len(a)
    codes, groups = lineage_codes(name, labels, n)
    free = n - _prompts_left(prompt)

    def none(point: float, reason: str) -> Interval:
        nan, why = math.nan, join(note, reason)
        worth = float(min(free, groups))
        return Interval(name, point, nan, nan, level, nan, n, worth, groups, METHOD, why)

    if n == 0:
        return none(math.nan, "no prompt has two responses")
    for which, column in (("first", a), ("second", b)):
        if not column.any():
            return none(math.nan, f"the {which} signal's scores do not vary within any prompt")
    a, b = a / np.abs(a).max(), b / np.abs(b).max()  # for the sums' accuracy
    sums = _Sums(a * a, b * b, a * b, codes, groups)
    rho = sums.rho()
    if abs(rho) > 1 - _EXACT:
        return none(float(round(rho)), "a perfect correlation gives no interval")
    if groups < 3:
        return none(rho, "fewer than three lineages give no interval")
    left = sums.left_out()
    if not (np.abs(left) <= 1 - _EXACT).all():  # NaN is not
        return none(rho, "without one lineage the correlation is perfect or undefined")
    z = np.arctanh(left)
    spread = z - z.mean()
    se = math.sqrt((groups - 1) / groups * float((spread**2).sum()))
    reach = float(stats.t.ppf(0.5 + level / 2, _freedom(spread, groups))) * se
    middle = math.atanh(rho)
    worth = effective(free, 1 / math.sqrt(max(free - 2, 1)), se)
    # Heavy tails are in the degrees of freedom; few or unequal lineages are not.
    said = join(note, doubt(np.zeros(groups), np.bincount(codes)))
    return Interval(
        name, rho, math.tanh(middle - reach), math.tanh(middle + reach), level,
        se * (1 - rho * rho), n, worth, groups, METHOD, said,
    )  # fmt: skip


class _Sums:
    """Sums of squares and products, in all and without each lineage in turn."""

    def __init__(self, xx: Floats, yy: Floats, xy: Floats, codes: Codes, groups: int) -> None:
        self.all = [v.sum() for v in (xx, yy, xy)]
        self.each = [totals(v, codes, groups) for v in (xx, yy, xy)]

    def rho(self) -> float:
        xx, yy, xy = self.all
        return float(np.clip(xy / math.sqrt(xx * yy), -1, 1))

    def left_out(self) -> Floats:
        xx, yy, xy = (a - e for a, e in zip(self.all, self.each, strict=True))
        xx, yy = (np.where(v > _EXACT * a, v, np.nan) for v, a in
                  zip((xx, yy), self.all[:2], strict=True))  # the rest: rounding of 0  # fmt: skip
        rho: Floats = np.clip(xy / np.sqrt(xx * yy), -1, 1)
        return rho


def _freedom(spread: Floats, groups: int) -> float:
    """Satterthwaite's degrees of freedom of a variance of ``groups`` terms."""
    variance = float((spread**2).mean())
    kurtosis = float((spread**4).mean()) / variance**2 - 3 if variance > 0 else 0.0
    found = 2 / (max(kurtosis, 0.0) / groups + 2 / (groups - 1))
    return min(groups - 1.0, max(found, _LEAST_FREEDOM))


def _prompts_left(prompt: npt.ArrayLike) -> int:
    """Prompts that have several responses."""
    _, counts = np.unique(np.asarray(prompt, dtype=object).astype(str), return_counts=True)
    return int((counts > 1).sum())
