"""Best of N: whether the best of several responses to a prompt is a correct one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.data.choices import Choices, as_choices
from reward_lens.evidence import Evidence, Interval, Units
from reward_lens.evidence.benchmark_rules import (
    REWARDBENCH2_DOMAINS,
    PromptMargins,
    TiesScore,
    best_of_credit,
    ties_score,
)
from reward_lens.evidence.clusters import join
from reward_lens.evidence.weighted_means import weighted_mean
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation

_BEST, _TIES = "best of N", "ties"

Floats = npt.NDArray[np.float64]


def best_of_n(
    signal: ClassifierRM,
    choices: Any,
    *,
    ties: str | None = "Ties",
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """Score every response and ask whether the highest-scored one is correct.

    Parameters
    ----------
    signal : ClassifierRM
    choices : Choices or anything :func:`~reward_lens.data.choices.as_choices` takes
    ties : str, optional
        Name of the subset (whatever its case) that RewardBench 2's Ties rule scores; its ids are
        ``ref:<number>`` and ``tied:<number>``. ``None``: no subset is scored so.

    Returns
    -------
    Evidence
        Value float64 ``[choice]``, probability units: the credit of each prompt. By the rule *best
        of N* it is the chance that a correct response is taken when one of the highest-scored is
        drawn (RewardBench 2: 1/k where the correct one is level with ``k − 1`` wrong ones at the
        top); by the rule *ties*, whether every correct response is above every wrong one.
        Intervals, cluster-t over lineages: ``best_of_n[subset=…]``; ``ties.score``, RewardBench 2's
        formula; ``best_of_n``, the plain mean of the subsets' scores, which over RewardBench 2's
        six domains is its overall score. Tables: ``accuracy`` (per subset, with chance level and
        prompts that are level at the top), ``ties`` (parts of the formula), ``responses`` (every
        score).

    Raises
    ------
    DataError
        Naming the row; also where ids of the Ties subset have another form.

    Notes
    -----
    Costs one forward per response. RewardBench's published runs cut texts at 2048 tokens; here a
    text that is too long for the model is an error unless ``truncate`` says which end to cut.
    """
    require(signal, Capability.SCORES, "best_of_n")
    given = as_choices(choices)
    items = [x for c in given for x in c.items]
    scored = signal.score(
        items,
        readout=readout,
        position=position,
        truncate=truncate,
        batch_tokens=batch_tokens,
        progress=progress,
    )
    flat = np.asarray(scored.value.values, dtype=np.float64)
    scores = np.split(flat, np.cumsum([len(c.items) for c in given])[:-1])
    by_ties = np.array([ties is not None and s.lower() == ties.lower() for s in given.subsets])
    credit = _credits(given, scores, by_ties)
    joint = _ties(given, scores, by_ties) if by_ties.any() else None
    found = _subset_intervals(given, credit, by_ties, joint)
    return observation(
        signal,
        "best_of_n",
        value=xr.DataArray(
            credit,
            dims=("choice",),
            coords={
                "choice": given.ids,
                "lineage": ("choice", given.lineages),
                "subset": ("choice", given.subsets),
                "rule": ("choice", np.where(by_ties, _TIES, _BEST)),
                "responses": ("choice", [len(c.items) for c in given]),
            },
            name="credit",
        ),
        data=given.fingerprint,
        readout=signal.readout(readout),
        position=position,
        parameters={
            "readout": readout,
            "truncate": truncate,
            "batch_tokens": batch_tokens,
            "ties": ties,
        },
        cost=float(len(items)),
        units=Units.PROBABILITY,
        uncertainty=(_overall(given, credit, by_ties, joint, found), *found.values()),
        tables={
            "accuracy": pd.DataFrame(
                [_row(s, given, scores, by_ties, i) for s, i in found.items()]
            ),
            "responses": _response_table(given, scored),
            **({} if joint is None else {"ties": _parts_table(joint)}),
        },
    )


def _credits(choices: Choices, scores: Sequence[Floats], by_ties: npt.NDArray[np.bool_]) -> Floats:
    found = [
        float(PromptMargins.of(s, len(c.correct)).accurate)
        if ties
        else best_of_credit(s, len(c.correct))
        for c, s, ties in zip(choices, scores, by_ties, strict=True)
    ]
    return np.array(found)


def _ties(choices: Choices, scores: Sequence[Floats], at: npt.NDArray[np.bool_]) -> TiesScore:
    rows = np.flatnonzero(at)
    return ties_score(
        [choices[int(k)].id for k in rows],
        [scores[int(k)] for k in rows],
        [len(choices[int(k)].correct) for k in rows],
        name="ties.score",
    )


def _subset_intervals(
    choices: Choices, credit: Floats, by_ties: npt.NDArray[np.bool_], joint: TiesScore | None
) -> dict[str, Interval]:
    """The score of each subset; that of the Ties subset is its own formula's."""
    found = {}
    for subset in choices.subset_counts:
        at = choices.subsets == subset
        if joint is not None and by_ties[at].all():
            found[subset] = joint.score
        else:
            name = f"best_of_n[subset={subset}]"
            found[subset] = weighted_mean(
                name, credit[at], choices.subsets[at], {subset: 1.0}, choices.lineages[at]
            )
    return found


def _overall(
    choices: Choices,
    credit: Floats,
    by_ties: npt.NDArray[np.bool_],
    joint: TiesScore | None,
    found: dict[str, Interval],
) -> Interval:
    """Mean over the subsets, each counting once."""
    share = 1 / len(found)
    value, group = credit[~by_ties], choices.subsets[~by_ties]
    lineage = choices.lineages[~by_ties]
    weights = {str(s): share for s in dict.fromkeys(group)}
    if joint is not None:
        value = np.concatenate([value, joint.rows["value"].to_numpy(dtype=np.float64)])
        # Parts of the formula are no subsets, whatever a subset is called.
        group = np.concatenate([group, "ties:" + joint.rows["part"].to_numpy(dtype=object)])
        lineage = np.concatenate([lineage, "ties:" + joint.rows["lineage"].to_numpy(dtype=object)])
        weights |= {f"ties:{part}": share * w for part, w in joint.weights.items()}
    overall = weighted_mean("best_of_n", value, group, weights, lineage)
    seen = {s.lower() for s in found}
    absent = [d for d in REWARDBENCH2_DOMAINS if d.lower() not in seen]
    if len(found) > 1 and 0 < len(absent) < len(REWARDBENCH2_DOMAINS):
        note = f"without RewardBench 2's {', '.join(absent)}, of which there are no prompts"
        overall = dataclasses.replace(overall, note=join(note, overall.note))
    return overall


def _row(
    subset: str,
    choices: Choices,
    scores: Sequence[Floats],
    by_ties: npt.NDArray[np.bool_],
    found: Interval,
) -> dict[str, Any]:
    rows = [int(k) for k in np.flatnonzero(choices.subsets == subset)]
    ties = bool(by_ties[rows].all())
    sizes = [(len(choices[k].items), len(choices[k].correct)) for k in rows]
    return {
        "subset": subset,
        "rule": _TIES if ties else _BEST,
        "prompts": len(rows),
        "lineages": found.clusters,
        "responses": sum(n for n, _ in sizes),
        "score": found.estimate,
        "low": found.low,
        "high": found.high,
        # Of exchangeable scores without ties; the formula of the Ties rule has no such level.
        "chance": math.nan if ties else float(np.mean([right / n for n, right in sizes])),
        "level_at_the_top": sum(int((scores[k] == scores[k].max()).sum() > 1) for k in rows),
        "n_effective": found.n_effective,
        "note": found.note,
    }


def _response_table(choices: Choices, scored: Evidence) -> pd.DataFrame:
    v = scored.value
    return pd.DataFrame(
        {
            "choice": [c.id for c in choices for _ in c.items],
            "subset": [c.subset for c in choices for _ in c.items],
            "response": [k for c in choices for k in range(len(c.items))],
            "correct": [k < len(c.correct) for c in choices for k in range(len(c.items))],
            "score": v.values,
            **{n: v[n].values for n in ("n_tokens", "read_index", "read_token", "tokens_cut")},
        }
    )


def _parts_table(joint: TiesScore) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "part": list(joint.parts),
            "weight": [joint.weights[p] for p in joint.parts],
            "value": list(joint.parts.values()),
            "prompts": [joint.prompts[p] for p in joint.parts],
        }
    )
