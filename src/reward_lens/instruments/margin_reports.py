"""What margins that were measured once say: how they spread, how well calibrated, worst errors.

Every function reads the evidence of :func:`~reward_lens.preference` and runs no forward, so it
works as well on evidence read back from a store or a file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from reward_lens.data import Item, as_pairs
from reward_lens.errors import EvidenceError
from reward_lens.evidence import Evidence, Interval, Units
from reward_lens.evidence.arguments import checked_count
from reward_lens.evidence.intervals import cluster_t
from reward_lens.evidence.reliability import bradley_terry_reliability
from reward_lens.instruments.derived import Floats, derived, margins_of, subset_name

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_MOST_BINS = 60
_ALL = "all"


def margin_distribution(preferred: Evidence) -> Evidence:
    """How margins spread, over all pairs and in every subset.

    Parameters
    ----------
    preferred : Evidence
        Of :func:`~reward_lens.preference`.

    Returns
    -------
    Evidence
        Value float64 ``[subset, quantile]`` in reward units; the first row is ``all`` pairs (a
        subset of that name is ``subset=all``).
        Intervals: mean margin, ``margin`` and ``margin[subset=…]`` (cluster-t). Tables: ``summary``
        (per subset: pairs, lineages, mean with interval, median, median size, standard deviation,
        share right, ties) and ``histogram`` (per subset and bin, the same bins for all).

    Raises
    ------
    EvidenceError
        If it is evidence of another instrument.
    """
    margins, lineages, subsets = margins_of(preferred, "margin_distribution")
    # No mapping by name: a subset may be called as the row of all pairs is.
    groups = [(_ALL, "margin", np.ones(len(margins), dtype=bool))]
    if len(set(subsets)) > 1:
        groups += [(subset_name(s, _ALL), f"margin[subset={s}]", subsets == s)
                   for s in map(str, dict.fromkeys(subsets))]  # fmt: skip
    means = [cluster_t(name, margins[at], lineages[at]) for _, name, at in groups]
    edges = np.histogram_bin_edges(margins, "auto")
    if len(edges) > _MOST_BINS + 1:
        edges = np.histogram_bin_edges(margins, _MOST_BINS)
    return derived(
        preferred,
        "margin_distribution",
        xr.DataArray(
            np.stack([np.quantile(margins[at], QUANTILES) for _, _, at in groups]),
            dims=("subset", "quantile"),
            coords={"subset": [g for g, _, _ in groups], "quantile": list(QUANTILES)},
            name="margin",
        ),
        units=Units.REWARD,
        uncertainty=tuple(means),
        tables={
            "summary": pd.DataFrame(
                [
                    _summary(g, margins[at], mean)
                    for (g, _, at), mean in zip(groups, means, strict=True)
                ]
            ),
            "histogram": pd.concat(
                [_histogram(g, margins[at], edges) for g, _, at in groups], ignore_index=True
            ),
        },
    )


def reliability_curve(preferred: Evidence, bins: int = 10, *, seed: int = 0) -> Evidence:
    """Whether the Bradley–Terry probability of a margin is the share of pairs that are right.

    A signal trained with the Bradley–Terry loss states with each margin the probability
    ``sigmoid(|margin|)`` that the side it prefers is the better one. Of a signal whose reward has
    another scale this asks a question that it never answered.

    Parameters
    ----------
    preferred : Evidence
        Of :func:`~reward_lens.preference`.
    bins : int
        Of equal width over the confidence, from 0.5 to 1.
    seed : int

    Returns
    -------
    Evidence
        Value float64 ``[bin, quantity]``: ``predicted`` and ``observed``, probability units; NaN in
        empty bins. Intervals: ``ece`` (the plain figure, which noise raises) and
        ``overconfidence`` (mean confidence minus share right; no bins, no such bias). Tables:
        ``curve`` (per bin, with intervals and counts) and ``ece`` (plain, debiased, and what a
        calibrated signal would show on these pairs); see
        :func:`~reward_lens.evidence.reliability.bradley_terry_reliability`.

    Raises
    ------
    DataError
        If ``bins`` is no whole number from 1, or there is one lineage only.
    EvidenceError
        If it is evidence of another instrument.
    """
    margins, lineages, _ = margins_of(preferred, "reliability_curve")
    found = bradley_terry_reliability(margins, lineages, bins=bins, seed=seed)
    curve = found.curve
    return derived(
        preferred,
        "reliability_curve",
        xr.DataArray(
            curve[["predicted", "observed"]].to_numpy(dtype=np.float64),
            dims=("bin", "quantity"),
            coords={
                "quantity": ["predicted", "observed"],
                "low": ("bin", curve["low"]),
                "high": ("bin", curve["high"]),
                "pairs": ("bin", curve["pairs"]),
            },
            name="probability",
        ),
        units=Units.PROBABILITY,
        parameters={"bins": bins},
        seeds=(seed,),
        uncertainty=(found.ece, found.overconfidence),
        tables={
            "curve": curve,
            "ece": pd.DataFrame(
                {
                    "quantity": ["ece", "debiased", "calibrated: mean", "calibrated: 95 %"],
                    "value": [
                        found.ece.estimate, found.debiased, found.null_mean, found.null_limit,
                    ],
                }
            ),
        },
    )  # fmt: skip


def worst_errors(preferred: Evidence, pairs: Any, count: int = 20) -> Evidence:
    """The pairs that the signal gets most wrong, with their texts.

    Parameters
    ----------
    preferred : Evidence
        Of :func:`~reward_lens.preference`.
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
        Those it was measured on: the evidence holds no texts.
    count : int
        At most so many.

    Returns
    -------
    Evidence
        Value float64 ``[pair]``: the margins, worst first, in reward units; empty where nothing is
        wrong (ties are not errors). Table ``errors``: rank, pair, subset, margin, ``confidence``
        (``sigmoid(−margin)``, the probability given to the wrong side), both scores, and the texts.

    Raises
    ------
    DataError
        If ``count`` is no whole number from 1.
    EvidenceError
        If it is evidence of another instrument or of other pairs.
    """
    from scipy.special import expit

    count = checked_count("count", count, 1)
    margins, _, subsets = margins_of(preferred, "worst_errors")
    given = as_pairs(pairs)
    if given.fingerprint != preferred.subject.data or given.ids != list(preferred.value["pair"]):
        raise EvidenceError(
            "worst_errors: these are not the pairs (or not in the order) that the evidence was "
            "measured on; pass those"
        )
    order = np.argsort(margins, kind="stable")
    worst = order[margins[order] < 0][:count]
    value = preferred.value
    shown = [given[int(k)] for k in worst]
    errors = {
        "rank": np.arange(1, len(worst) + 1),
        "pair": [p.id for p in shown],
        "subset": [str(s) for s in subsets[worst]],
        "margin": margins[worst],
        "confidence": expit(-margins[worst]),
        **{
            f"score_{s}": value.sel(side=s).values[worst].astype(np.float64)
            for s in ("chosen", "rejected")
        },
        "prompt": [p.chosen.prompt_text for p in shown],
        "chosen": [_text(p.chosen) for p in shown],
        "rejected": [_text(p.rejected) for p in shown],
    }
    return derived(
        preferred,
        "worst_errors",
        xr.DataArray(
            margins[worst], dims=("pair",), coords={"pair": errors["pair"]}, name="margin"
        ),
        units=Units.REWARD,
        parameters={"count": count, "errors": int((margins < 0).sum())},
        tables={"errors": pd.DataFrame(errors)},
    )


def _summary(group: str, margins: Floats, mean: Interval) -> dict[str, Any]:
    return {
        "subset": group,
        "pairs": len(margins),
        "lineages": mean.clusters,
        "mean": mean.estimate,
        "low": mean.low,
        "high": mean.high,
        "median": float(np.median(margins)),
        "median_size": float(np.median(np.abs(margins))),
        "sd": float(margins.std(ddof=1)) if len(margins) > 1 else np.nan,
        "share_right": float((margins > 0).mean()),
        "ties": int((margins == 0).sum()),
        "note": mean.note,
    }


def _histogram(group: str, margins: Floats, edges: Floats) -> pd.DataFrame:
    counts, _ = np.histogram(margins, edges)
    return pd.DataFrame({"subset": group, "low": edges[:-1], "high": edges[1:], "pairs": counts})


def _text(item: Item) -> str:
    if item.response is not None:
        return item.response
    return item.text if item.text is not None else f"(given as {len(item.ids or ())} ids)"
