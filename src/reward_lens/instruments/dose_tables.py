"""What is reported of a dose-response: slopes, the curve, the concept, and the random band."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pandas as pd

from reward_lens.evidence import Interval
from reward_lens.evidence.clusters import join
from reward_lens.evidence.intervals import cluster_t
from reward_lens.instruments.concepts import Concept
from reward_lens.instruments.dose_curves import linear_range, mirrored, random_band, slopes, within
from reward_lens.instruments.dose_runs import DosePlan, DoseScores
from reward_lens.instruments.sides import Sides

Floats = npt.NDArray[np.float64]
Tables = dict[str, pd.DataFrame]


def dose_tables(
    plan: DosePlan, found: DoseScores, concept: Concept, sides: Sides
) -> tuple[Tables, tuple[Interval, ...]]:
    """Summarise what was run.

    Returns
    -------
    tables, intervals
        As :func:`~reward_lens.instruments.dose_response.concept_dose_response` describes them.
    """
    lineages = np.tile(sides.pairs.lineages, 2)
    change = found.scores - found.scores[plan.zero]
    reach = linear_range(plan.doses, change.mean(1), float(found.predicted.mean()))
    inside = within(plan.doses, reach)
    steep = slopes(plan.doses[inside], found.scores[inside])
    by_group = {
        name: _held(cluster_t(name, steep[rows], lineages[rows]), concept)
        for name, rows in _groups(sides).items()
    }
    cosines = _item_cosines(found, concept)
    intervals = list(by_group.values())
    if (ok := np.isfinite(cosines)).any():
        intervals.append(cluster_t("cosine", cosines[ok], lineages[ok]))
    if concept.accuracy is not None:
        intervals.append(concept.accuracy)
    tables = {
        "slope": _slope_table(by_group, found, sides),
        "curve": _curve_table(plan, found, change, lineages),
        "concept": _concept_table(found, concept, cosines, lineages, reach),
        "engine": _engine_table(plan, found),
    }
    if len(found.random):
        tables |= _random_tables(plan, found, steep, inside)
    return tables, tuple(intervals)


def _held(slope: Interval, concept: Concept) -> Interval:
    """Say of a slope what its interval does not hold."""
    if concept.n_positive + concept.n_negative == 0:  # a direction that was handed over
        return slope
    why = "the direction is held as fitted: how surely it was fitted is not in this interval"
    return dataclasses.replace(slope, note=join(why, slope.note))


def doubtful_concept(concept: Concept) -> str:
    """What speaks against a fitted direction; empty if nothing, or if it was handed over."""
    labelled, accuracy = concept.n_positive + concept.n_negative, concept.accuracy
    if labelled == 0:
        return ""
    if accuracy is None or not accuracy.low > 0.5:  # NaN included
        known = "not known" if accuracy is None else f"{accuracy.estimate:.2f}"
        return (
            f"the direction was fitted to {labelled} labelled items and cannot be told from one of "
            f"chance (held-out accuracy {known}): slopes along such directions differ from fit to "
            f"fit by far more than their intervals"
        )
    return ""


def _groups(sides: Sides) -> dict[str, npt.NDArray[np.bool_]]:
    """Items of each slope that is reported."""
    n, subsets = len(sides.pairs), np.tile(sides.pairs.subsets, 2)
    chosen = np.arange(2 * n) < n
    groups = {"slope": np.ones(2 * n, dtype=bool)}
    groups |= {"slope[side=chosen]": chosen, "slope[side=rejected]": ~chosen}
    if len(sides.pairs.subset_counts) > 1:
        groups |= {f"slope[subset={s}]": subsets == s for s in sides.pairs.subset_counts}
    return groups


def _slope_table(by_group: dict[str, Interval], found: DoseScores, sides: Sides) -> pd.DataFrame:
    groups = _groups(sides)
    return pd.DataFrame(
        [
            {
                "group": name.removeprefix("slope")[1:-1] or "all",
                "items": i.n,
                "lineages": i.clusters,
                "slope": i.estimate,
                "low": i.low,
                "high": i.high,
                "predicted": float(found.predicted[groups[name]].mean()),
                "score_sd": float(found.clean[groups[name]].std(ddof=1)) if i.n > 1 else np.nan,
                "n_effective": i.n_effective,
                "note": i.note,
            }
            for name, i in by_group.items()
        ]
    )


def _curve_table(
    plan: DosePlan, found: DoseScores, change: Floats, lineages: npt.NDArray[np.object_]
) -> pd.DataFrame:
    means = [cluster_t(f"dose {d:g}", c, lineages) for d, c in zip(plan.doses, change, strict=True)]
    table = {
        "dose": plan.doses,
        "score": found.scores.mean(1),
        "change": [m.estimate for m in means],
        "low": [m.low for m in means],
        "high": [m.high for m in means],
        "predicted": plan.doses * found.predicted.mean(),
        "router_flips": found.flips,
    }
    if len(found.random):
        drawn = found.random.mean(2)
        band = random_band(drawn, drawn[:, ::-1] if mirrored(plan.doses) else None)
        table["change_on_sample"] = change[:, plan.sample].mean(1)
        table |= {"band_low": band.low, "band_high": band.high}
    return pd.DataFrame(table)


def _item_cosines(found: DoseScores, concept: Concept) -> Floats:
    """Cosine of the concept with each item's effective direction, NaN where that is zero."""
    size = found.gradient_size * concept.step
    return np.where(size > 0, found.predicted / np.where(size > 0, size, 1.0), np.nan)


def _cosine(a: Floats, b: Floats) -> float:
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else np.nan


def _concept_table(
    found: DoseScores,
    concept: Concept,
    cosines: Floats,
    lineages: npt.NDArray[np.object_],
    reach: float,
) -> pd.DataFrame:
    known, accuracy = cosines[np.isfinite(cosines)], concept.accuracy
    size = float(np.median(found.state_size))
    row = {
        "site": concept.site,
        "method": concept.method,
        "positive": concept.n_positive,
        "negative": concept.n_negative,
        "accuracy": accuracy.estimate if accuracy else np.nan,
        "accuracy_low": accuracy.low if accuracy else np.nan,
        "accuracy_high": accuracy.high if accuracy else np.nan,
        "auc": concept.auc,
        "step": concept.step,
        "step_held_out": concept.step_held_out,
        "spread": concept.spread,
        "step_of_state": concept.step / size if size else np.nan,
        "cosine": _cosine(found.effective, concept.direction),
        "cosine_item_mean": float(known.mean()) if len(known) else np.nan,
        "cosine_item_sd": float(known.std(ddof=1)) if len(known) > 1 else np.nan,
        "linear_range": reach,
        "note": join(concept.note, doubtful_concept(concept)),
    }
    return pd.DataFrame([row])


def _random_tables(
    plan: DosePlan, found: DoseScores, steep: Floats, inside: npt.NDArray[np.bool_]
) -> Tables:
    """Slopes of random directions on the sample, and where the concept lies among them."""
    drawn = slopes(plan.doses[inside], found.random.mean(2).T[inside])
    own = float(steep[plan.sample].mean())
    band = random_band(drawn, -drawn if mirrored(plan.doses) else None)
    larger = int((np.abs(drawn) >= abs(own)).sum())
    cosines = [_cosine(found.effective_sample, v) for v in plan.vectors[1:]]
    return {
        "random": pd.DataFrame(
            {"direction": np.arange(len(drawn)), "slope": drawn, "cosine": cosines}
        ),
        "band": pd.DataFrame(
            {
                "slope_on_sample": [own],
                "band_low": [float(band.low)],
                "band_high": [float(band.high)],
                "outside": [not band.low <= own <= band.high],
                "as_steep_or_steeper": [larger],
                "directions": [len(drawn)],
                "p": [(1 + larger) / (1 + len(drawn))],
                "items": [len(plan.sample)],
            }
        ),
    }


def _engine_table(plan: DosePlan, found: DoseScores) -> pd.DataFrame:
    random = len(found.random) * (len(plan.doses) - 1) * len(plan.sample)
    return pd.DataFrame(
        {
            "executor": [", ".join(sorted(found.executors))],
            "runs": [len(plan.doses) * len(plan.encoded) + random],
            "forwards": [found.forwards],
            "router_flips": [int(found.flips.sum()) + found.flips_random],
            "dose_zero_error": [float(np.abs(found.scores[plan.zero] - found.clean).max())],
        }
    )
