"""The tables of the bias battery."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from reward_lens.data.templates import CONTRASTS
from reward_lens.evidence import Interval
from reward_lens.evidence.intervals import cluster_t
from reward_lens.evidence.multiplicity import adjusted
from reward_lens.instruments.bias_cases import Case, Cases
from reward_lens.instruments.bias_null import Null, beyond

Floats = npt.NDArray[np.float64]

#: Characters of a text that are shown.
_SHOWN = 160
#: Below it, what random heads show is mostly what this head shows.
_FEW_DIRECTIONS = 3.0
_FEW = (
    "the states that the head reads vary in so few directions that a random head shows much of "
    "what this one does: little can be named, and that proves no absence"
)
#: The edit that adds a sentence without a tone.
_CONTROL = "neutral"


def effect_intervals(cases: Cases, scores: npt.NDArray[np.float32], unit: float) -> list[Interval]:
    """Mean difference of every case in median margins, with a cluster-t interval."""
    return [_interval(c, c.differences(scores) / unit) for c in cases.cases]


def _interval(case: Case, values: Floats) -> Interval:
    name = f"effect.{case.label}"
    if not len(values):
        nan = math.nan
        return Interval(name, nan, nan, nan, 0.95, nan, 0, 0.0, 0, "none", "it applies nowhere")
    return cluster_t(name, values, case.lineages)


def p_of(interval: Interval) -> float:
    """Two-sided p of the mean against zero, by the t distribution of its interval.

    NaN where there is no standard error, as for an edit that never changes a score.
    """
    from scipy import stats

    if not (interval.se > 0 and interval.clusters > 1):
        return math.nan
    return float(2 * stats.t.sf(abs(interval.estimate) / interval.se, interval.clusters - 1))


def effects_table(cases: Cases, found: Sequence[Interval], null: Null) -> pd.DataFrame:
    """One row per edit and position; see :func:`~reward_lens.instruments.biases.bias_battery`."""
    p = [p_of(i) for i in found]
    rows = []
    for case, i, scale, least in zip(cases.cases, found, null.scale, null.threshold, strict=True):
        named = bool(beyond(i.low, i.high, least))
        rows.append(
            {
                "edit": case.label,
                "name": case.name,
                "family": case.family,
                "position": case.position,
                "n": i.n,
                "lineages": i.clusters,
                "not_applicable": case.not_applicable,
                "too_long": case.too_long,
                "same_ids": _same_ids(case),
                "mean": i.estimate,
                "low": i.low,
                "high": i.high,
                "null_scale": float(scale),
                "threshold": float(least),
                "named": named,
                "direction": _direction(case, i, named),
                "keeps": case.keeps,
                "note": i.note,
            }
        )
    table = pd.DataFrame(rows)
    at = list(table.columns).index("high") + 1
    table.insert(at, "p", p)
    table.insert(at + 1, "p_adjusted", adjusted(p, "holm"))
    return table


def _same_ids(case: Case) -> int:
    """Rows whose two sides are the same ids, as where a template drops white space at the end."""
    return sum(r.plus == r.minus for r in case.rows)


def _direction(case: Case, i: Interval, named: bool) -> str:
    """The finding in words; nothing is said of an interval that holds zero or is none."""
    if not (i.low > 0 or i.high < 0):
        return "not told from zero"
    verb = "raises" if i.estimate > 0 else "lowers"
    less = "" if named else ", within what random heads show"
    return f"{case.changes} {verb} the score{less}"


def null_table(null: Null) -> pd.DataFrame:
    """The threshold and how often heads that did not set it name anything (exact binomial)."""
    from scipy import stats

    rate = stats.binomtest(null.named, null.test_heads).proportion_ci(method="exact")
    return pd.DataFrame(
        {
            "heads": [null.heads],
            "quantile": [null.quantile],
            "test_heads": [null.test_heads],
            "naming_any": [null.named],
            "rate": [null.named / null.test_heads],
            "low": [float(rate.low)],
            "high": [float(rate.high)],
            "directions": [null.directions],
            "note": [_FEW if null.directions < _FEW_DIRECTIONS else ""],
        }
    )


def against_neutral(
    cases: Cases, scores: npt.NDArray[np.float32], unit: float
) -> pd.DataFrame | None:
    """Phrases of a tone against a sentence that says nothing, at the same place of the same text.

    Any added sentence makes a response longer; what is left here is the tone. ``None`` where there
    is no such sentence among the cases.
    """
    neutral = {c.position: c for c in cases.cases if c.name == _CONTROL}
    rows = []
    for case in cases.cases:
        control = neutral.get(case.position)
        if control is None or case.family not in ("tone", "flattery"):
            continue
        without = {r.minus: k for k, r in enumerate(control.rows)}
        both = [(k, without[r.minus]) for k, r in enumerate(case.rows) if r.minus in without]
        if not both:
            continue
        mine, theirs = (list(x) for x in zip(*both, strict=True))
        gap = case.differences(scores)[mine] - control.differences(scores)[theirs]
        i = cluster_t(case.label, gap / unit, case.lineages[mine])
        rows.append(
            {
                "edit": case.label,
                "n": i.n,
                "difference": i.estimate,
                "low": i.low,
                "high": i.high,
                "p": p_of(i),
                "note": i.note,
            }
        )
    if not rows:
        return None
    table = pd.DataFrame(rows)
    table.insert(6, "p_adjusted", adjusted(table["p"].to_numpy(), "holm"))
    return table


def examples_table(cases: Cases) -> pd.DataFrame:
    """For each case the row with the shortest text: both sides, shortened around what changes."""
    rows = []
    for case in cases.cases:
        if not case.rows:
            continue
        row = min(case.rows, key=lambda r: len(_text(cases, r.minus[0], case)))
        before, after = (_text(cases, side[0], case) for side in (row.minus, row.plus))
        before, after = _around(before, after)
        rows.append({"edit": case.label, "before": before, "after": after})
    return pd.DataFrame(rows)


def _text(cases: Cases, item: int, case: Case) -> str:
    """The response; where the prompt changes, both."""
    found = cases.items[item]
    if case.name in CONTRASTS:
        return f"{found.prompt_text}\n\n{found.response}"
    return found.response or ""


def _around(before: str, after: str) -> tuple[str, str]:
    """Both texts, if long from a little before where they begin to differ."""
    same = next(
        (k for k, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    start = max(0, same - _SHOWN // 3) if max(len(before), len(after)) > _SHOWN else 0
    return _cut(before, start), _cut(after, start)


def _cut(text: str, start: int) -> str:
    shown = text[start : start + _SHOWN]
    return f"{'…' if start else ''}{shown}{'…' if start + _SHOWN < len(text) else ''}"
