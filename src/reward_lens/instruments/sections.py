"""Accuracy per section and overall, as the field's benchmarks publish it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from reward_lens.errors import DataError
from reward_lens.evidence import Evidence, Interval, Units
from reward_lens.evidence.benchmark_rules import (
    REWARDBENCH_SECTIONS,
    overall_weights,
    section_weights,
)
from reward_lens.evidence.clusters import join
from reward_lens.evidence.weighted_means import weighted_mean
from reward_lens.instruments.derived import Floats, Labels, derived, margins_of

_NO_SECTION, _OVERALL = "(none)", "overall"


def section_accuracy(
    preferred: Evidence,
    sections: Mapping[str, Sequence[str]] | None = None,
    *,
    ties: str = "loss",
) -> Evidence:
    """Accuracy per section and overall, as RewardBench publishes it.

    Parameters
    ----------
    preferred : Evidence
        Of :func:`~reward_lens.preference`.
    sections : mapping of section to subsets, optional
        RewardBench's by default: subsets weighted within their section as published (mathematics
        is raised to count as much as code), prior sets with weight 0.5. In sections of one's own,
        all subsets of a section count alike, and so do the sections.
    ties : {"loss", "half"}
        RewardBench counts a tie as a loss.

    Returns
    -------
    Evidence
        Value float64 ``[group]``, the sections and ``overall``; probability units. Intervals
        ``accuracy[section=…]`` and ``accuracy[overall]``, cluster-t over lineages. Tables:
        ``sections`` and ``subsets`` (with section and weight; subsets in no section have none and
        do not count). Sections without pairs are left out of the overall score, whose note names
        them.

    Raises
    ------
    DataError
        If no subset is in a section, one is in two, a section is called ``overall``, or ``ties`` is
        neither.
    EvidenceError
        If it is evidence of another instrument.
    """
    margins, lineages, subsets = margins_of(preferred, "section_accuracy")
    if ties not in ("loss", "half"):
        raise DataError(f"ties={ties!r}: a tie counts as 'loss' or as 'half'")
    wins: Any = margins > 0
    if ties == "half" and (margins == 0).any():
        wins = wins + 0.5 * (margins == 0)
    if _OVERALL in (sections or {}):
        raise DataError(
            f"a section is called {_OVERALL!r}, as the score over all sections is; call it "
            f"something else"
        )
    weights = section_weights(sorted(set(subsets)), sections)
    found = {
        section: _weighted(f"accuracy[section={section}]", wins, subsets, inner, lineages)
        for section, inner in weights.items()
    }
    whole = overall_weights(weights, None if sections is None else {})
    overall = _weighted("accuracy[overall]", wins, subsets, whole, lineages)
    known = REWARDBENCH_SECTIONS if sections is None else sections
    if absent := [s for s in known if s not in weights]:
        note = join(f"without {', '.join(absent)}, of which there are no pairs", overall.note)
        overall = dataclasses.replace(overall, note=note)
    found[_OVERALL] = overall
    members = {**{s: set(inner) for s, inner in weights.items()}, _OVERALL: set(whole)}
    return derived(
        preferred,
        "section_accuracy",
        xr.DataArray(
            [i.estimate for i in found.values()],
            dims=("group",),
            coords={"group": list(found)},
            name="accuracy",
        ),
        units=Units.PROBABILITY,
        parameters={"ties": ties, "sections": {k: list(v) for k, v in known.items()}},
        uncertainty=tuple(found.values()),
        tables={
            "sections": pd.DataFrame(
                [
                    _section_row(g, i, margins[np.isin(subsets, list(members[g]))])
                    for g, i in found.items()
                ]
            ),
            "subsets": _subset_table(wins, margins, subsets, weights, whole),
        },
    )


def _weighted(
    name: str, wins: Any, subsets: Labels, weights: Mapping[str, float], lineages: Labels
) -> Interval:
    at = np.isin(subsets, list(weights))
    return weighted_mean(name, wins[at], subsets[at], weights, lineages[at])


def _section_row(group: str, found: Interval, margins: Floats) -> dict[str, Any]:
    return {
        "group": group,
        "pairs": found.n,
        "lineages": found.clusters,
        "accuracy": found.estimate,
        "low": found.low,
        "high": found.high,
        "ties": int((margins == 0).sum()),
        "n_effective": found.n_effective,
        "note": found.note,
    }


def _subset_table(
    wins: Any,
    margins: Floats,
    subsets: Labels,
    weights: Mapping[str, Mapping[str, float]],
    whole: Mapping[str, float],
) -> pd.DataFrame:
    section_of = {s: section for section, inner in weights.items() for s in inner}
    rows = []
    for subset in dict.fromkeys(subsets):
        at, section = subsets == subset, section_of.get(subset, _NO_SECTION)
        rows.append(
            {
                "subset": str(subset),
                "section": section,
                "weight_in_section": weights.get(section, {}).get(subset, np.nan),
                "weight_overall": whole.get(subset, np.nan),
                "pairs": int(at.sum()),
                "accuracy": float(wins[at].mean()),
                "ties": int((margins[at] == 0).sum()),
            }
        )
    return pd.DataFrame(rows)
