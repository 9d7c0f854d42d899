"""How well estimates agree with exact effects, and what a screen by estimates could have missed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from reward_lens.backbone import Target
from reward_lens.evidence import Interval
from reward_lens.instruments.rank_agreement import mean_agreement, rank_correlation

Floats = npt.NDArray[np.float64]


def top_components(estimates: Floats, targets: Sequence[Target], count: int) -> list[str]:
    """Names of the components with the largest mean absolute estimate, largest first.

    Parameters
    ----------
    estimates : ndarray, [direction, pair, target]
        One list serves all directions.
    """
    return [str(targets[t]) for t in _order(estimates)[:count]]


def _order(effects: Floats) -> list[int]:
    """Targets by mean absolute effect, largest first; equal ones in the order of the forward."""
    there = ~np.isnan(effects).all((0, 2))  # pairs with tokens to patch
    sizes = np.abs(effects[:, there]).mean((0, 1)) if there.any() else np.zeros(effects.shape[-1])
    return [int(t) for t in np.argsort(-sizes, kind="stable")]


def agreement(
    directions: Sequence[str],
    estimates: Floats,
    exact: Floats,
    lineages: npt.NDArray[np.object_],
) -> tuple[pd.DataFrame, tuple[Interval, ...]]:
    """Hold estimates against exact effects on the sampled pairs.

    Parameters
    ----------
    estimates, exact : ndarray, [direction, pair, target]
    lineages : ndarray of str, [pair]

    Returns
    -------
    table : DataFrame
        One row per direction: ``pairs``; ``rank_correlation`` (mean over pairs of Spearman's over
        components) with the ends of its interval; ``undefined`` (pairs whose effects do not vary,
        left out of it); ``of_means`` (Spearman's of the mean effects); ``worst_gap`` (the largest
        difference of one effect as a share of the largest exact effect).
    intervals : tuple of Interval
    """
    rows, intervals = [], []
    for d, direction in enumerate(directions):
        there = ~(np.isnan(exact[d]) | np.isnan(estimates[d])).all(1)
        estimate, truth = estimates[d][there], exact[d][there]
        if not len(truth):
            continue
        rho = [rank_correlation(a, b) for a, b in zip(estimate, truth, strict=True)]
        found = mean_agreement(f"{direction}.rank_correlation", rho, lineages[there])
        largest = float(np.abs(truth).max())
        gap = float(np.abs(estimate - truth).max())
        nan = float("nan")
        rows.append(
            {
                "direction": direction,
                "pairs": len(rho),
                "rank_correlation": nan if found is None else found.estimate,
                "low": nan if found is None else found.low,
                "high": nan if found is None else found.high,
                "undefined": int(np.isnan(rho).sum()),
                "of_means": rank_correlation(estimate.mean(0), truth.mean(0)),
                "worst_gap": gap / largest if largest else nan,
            }
        )
        intervals += [found] if found is not None else []
    return pd.DataFrame(rows), tuple(intervals)


def missed(
    directions: Sequence[str],
    targets: Sequence[Target],
    estimates: Floats,
    exact: Floats,
    top: Sequence[str],
) -> pd.DataFrame:
    """What the screened components leave out, as the exact grid of the sample has it.

    Parameters
    ----------
    estimates : ndarray, [direction, pair, target]
        Those that the screen went by: of all pairs.
    exact : ndarray, [direction, sampled pair, target]
    top : sequence of str
        The screened components.

    Returns
    -------
    DataFrame
        One row per direction: ``pairs`` and ``screened``; ``share_covered`` (of ``Σ |exact|`` over
        components and pairs, the part of the screened ones); ``largest_missed``, the mean absolute
        exact effect of the largest component outside, its name ``missed_component``, its
        ``rank_by_estimate`` (1 is first) and its size as a share of the largest effect of all
        (``share_of_largest``); ``found_of_true_top``, how many of the components that are largest
        by the exact effect were screened. NaN and empty where nothing is left out, or nothing is
        known of it because no pair was sampled.
    """
    names = [str(t) for t in targets]
    inside = np.array([name in top for name in names])
    rank = {t: k + 1 for k, t in enumerate(_order(estimates))}
    rows = []
    for d, direction in enumerate(directions):
        real = exact[d][~np.isnan(exact[d]).all(1)]  # of the sampled pairs with tokens to patch
        known = len(real) > 0
        sizes = np.abs(real).mean(0) if known else np.zeros(len(names))
        total, largest = float(sizes.sum()), float(sizes.max())
        true_top = np.argsort(-sizes, kind="stable")[: len(top)]
        row: dict[str, Any] = {
            "direction": direction,
            "pairs": len(real),
            "screened": len(top),
            "share_covered": float(sizes[inside].sum()) / total if total else float("nan"),
            "found_of_true_top": float(inside[true_top].sum()) if known else float("nan"),
            "largest_missed": float("nan"),
            "missed_component": "",
            "rank_by_estimate": 0,
            "share_of_largest": float("nan"),
        }
        if known and not inside.all():
            worst = int(np.where(inside, -1.0, sizes).argmax())
            row |= {
                "largest_missed": float(sizes[worst]),
                "missed_component": names[worst],
                "rank_by_estimate": rank[worst],
                "share_of_largest": float(sizes[worst]) / largest if largest else float("nan"),
            }
        rows.append(row)
    return pd.DataFrame(rows)
