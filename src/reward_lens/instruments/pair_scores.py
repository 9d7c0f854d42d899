"""What a signal prefers: accuracy on labelled pairs, margins, and score against length."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.data import Pairs, as_pairs
from reward_lens.evidence import Evidence, Interval, canonical, fingerprint
from reward_lens.evidence.clusters import join
from reward_lens.evidence.intervals import accuracy as accuracy_interval
from reward_lens.evidence.intervals import cluster_t_slope, jackknife_correlation
from reward_lens.evidence.prompt_correlation import centre_by_prompt
from reward_lens.instruments.sides import SIDES
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation

Floats = npt.NDArray[np.float64]


def preference(
    signal: ClassifierRM,
    pairs: Any,
    *,
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    parts: Mapping[str, Sequence[str]] | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """Score both sides of pairs and count how often the chosen side is ahead.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
    parts : mapping of str to sequence of ids, optional
        Groups of pairs (train and test, say) whose accuracies are reported apart.

    Returns
    -------
    Evidence
        Value float32 ``[side, pair]``: scores and margins in reward units. Intervals:
        ``accuracy`` and ``accuracy[subset=…]``, ``accuracy[part=…]`` (probability units, ties
        count half and are counted), ``length.correlation`` (score against log characters of the
        response, ranks within the whole sample), ``length.prompt`` (the same with the characters of
        the prompt), ``length.whole_text`` (with the tokens that were read, prompt and template
        included: a model can be sensitive to them without preferring any length of answer) and
        ``length.slope`` (reward per e-fold of the response's length within a prompt; NaN where
        length varies within none). Tables: ``accuracy``, ``margins``
        (quantiles), ``scores``; where the native and the last read position differ, ``positions``
        with both accuracies; of a trunk in half precision ``head_ties``, the ties that its own head
        makes and the float32 read does not.
    """
    require(signal, Capability.SCORES, "preference")
    given = as_pairs(pairs)
    items = [*given.chosen, *given.rejected]
    scored = signal.score(
        items,
        readout=readout,
        position=position,
        truncate=truncate,
        batch_tokens=batch_tokens,
        progress=progress,
    )
    flat = scored.value.values
    n = len(given)
    margins = flat[:n] - flat[n:]
    groups = _groups(given, parts)
    found = [
        (name, *accuracy_interval(name, margins[rows], given.lineages[rows]))
        for name, rows in groups.items()
    ]
    # Rendered text and ids do not say where the response begins: no length, rather than another.
    lengths = np.array([len(i.response) if i.response else np.nan for i in items])
    prompts = np.array([len(i.prompt_text) if i.response else np.nan for i in items])
    tables = {
        "accuracy": _accuracy_table(found),
        "margins": _quantiles(margins),
        "scores": _score_table(given, scored, margins),
    }
    if "own_head" in scored.value.coords:
        tables["head_ties"] = _head_ties(scored.value["own_head"].values, margins)
    if "positions" in scored.tables:
        tables["positions"] = _position_accuracies(given, flat, scored.tables["positions"])
    return observation(
        signal,
        "preference",
        value=xr.DataArray(
            np.stack([flat[:n], flat[n:], margins]),
            dims=("side", "pair"),
            coords={
                "side": list(SIDES),
                "pair": given.ids,
                "lineage": ("pair", given.lineages),
                "subset": ("pair", given.subsets),
            },
            name="score",
        ),
        data=given.fingerprint,
        readout=signal.readout(readout),
        position=position,
        parameters={
            "readout": readout,
            "truncate": truncate,
            "batch_tokens": batch_tokens,
            "parts": recorded_parts(parts),
        },
        cost=float(len(items)),
        uncertainty=(
            *(i for _, i, _ in found),
            *_length(given, flat, lengths, prompts),
            _whole_text(given, flat, scored.value["n_tokens"].values),
        ),
        tables=tables,
    )


def recorded_parts(parts: Mapping[str, Sequence[str]] | None) -> dict[str, str] | None:
    """Parts as evidence records them, which are too many ids to list: a hash of each one's."""
    if parts is None:
        return None
    return {name: fingerprint(canonical(sorted(set(ids)))) for name, ids in parts.items()}


def _groups(
    pairs: Pairs, parts: Mapping[str, Sequence[str]] | None
) -> dict[str, npt.NDArray[np.bool_]]:
    """Rows of each accuracy that is reported."""
    groups = {"accuracy": np.ones(len(pairs), dtype=bool)}
    for name in parts or {}:
        ids = set((parts or {})[name])
        groups[f"accuracy[part={name}]"] = np.array([i in ids for i in pairs.ids])
    if len(pairs.subset_counts) > 1:
        groups.update({f"accuracy[subset={s}]": pairs.subsets == s for s in pairs.subset_counts})
    return {name: rows for name, rows in groups.items() if rows.any()}


def _accuracy_table(found: Sequence[tuple[str, Interval, int]]) -> pd.DataFrame:
    rows = [
        {
            "group": name.removeprefix("accuracy")[1:-1] or "all",
            "pairs": i.n,
            "lineages": i.clusters,
            "accuracy": i.estimate,
            "low": i.low,
            "high": i.high,
            "ties": ties,
            "n_effective": i.n_effective,
            "note": i.note,
        }
        for name, i, ties in found
    ]
    return pd.DataFrame(rows)


def _length(pairs: Pairs, scores: Floats, lengths: Floats, prompts: Floats) -> tuple[Interval, ...]:
    """Score against log length: rank correlations over all, slope within a prompt."""
    if np.isnan(lengths).any():
        reason = "rendered text and ids do not say where the response begins"
        names = ("correlation", "prompt", "slope")
        return tuple(no_length(f"length.{k}", len(pairs), reason) for k in names)
    lineage = np.concatenate([pairs.lineages, pairs.lineages])
    x = np.log(np.maximum(lengths, 1))
    return (
        jackknife_correlation("length.correlation", x, scores, lineage, method="spearman"),
        jackknife_correlation("length.prompt", prompts, scores, lineage, method="spearman"),
        length_slope(pairs, x, scores),
    )


def _whole_text(pairs: Pairs, scores: Floats, tokens: npt.NDArray[np.int64]) -> Interval:
    """Rank correlation of score and length of the whole text, prompt and template included."""
    lineage = np.concatenate([pairs.lineages, pairs.lineages])
    x = np.log(tokens.astype(float))
    return jackknife_correlation("length.whole_text", x, scores, lineage, method="spearman")


def length_slope(pairs: Pairs, x: Floats, y: Floats) -> Interval:
    """Slope of ``y`` on log length within a prompt, ``length.slope``, counting lineages.

    A lineage may hold several prompts, so both are centred by prompt and clustered by lineage: what
    one prompt's responses are longer or better by than another's has no part in it.

    Parameters
    ----------
    pairs : Pairs
    x, y : ndarray of float, [2 · pair]
        Log length and score of the chosen responses, then of the rejected ones.
    """
    name = "length.slope"
    prompts = np.array([str(i.prompt) for i in (*pairs.chosen, *pairs.rejected)], dtype=object)
    lineage = np.concatenate([pairs.lineages, pairs.lineages])
    (x, y), left, dropped = centre_by_prompt(name, [x, y], prompts, lineage)
    note = f"{dropped} prompts of one response dropped" if dropped else ""
    if not x.any():
        why = "no prompt has two responses" if not len(x) else "length varies within no prompt"
        return no_length(name, len(pairs), join(note, why))
    found = cluster_t_slope(name, x, y, left)
    return dataclasses.replace(
        found, method="cluster-t slope within prompts", note=join(note, found.note)
    )


def no_length(name: str, pairs: int, reason: str) -> Interval:
    """An interval about length that is none, of both sides of so many pairs, with the reason."""
    nan = math.nan
    return Interval(name, nan, nan, nan, 0.95, nan, 2 * pairs, nan, 0, "none", reason)


def _quantiles(margins: Floats) -> pd.DataFrame:
    at = [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0]
    return pd.DataFrame(
        {
            "quantile": at,
            "margin": np.quantile(margins.astype(float), at),
            "size": np.quantile(np.abs(margins.astype(float)), at),
        }
    )


def _score_table(pairs: Pairs, scored: Evidence, margins: Floats) -> pd.DataFrame:
    n, v = len(pairs), scored.value
    columns: dict[str, Any] = {"pair": pairs.ids, "subset": pairs.subsets}
    for side, items in (("chosen", pairs.chosen), ("rejected", pairs.rejected)):
        columns[f"characters_{side}"] = [
            float(len(i.response)) if i.response else math.nan for i in items
        ]
    for side, rows in (("chosen", slice(0, n)), ("rejected", slice(n, 2 * n))):
        columns[side] = v.values[rows]
        for name in ("n_tokens", "read_index", "read_token", "tokens_cut"):
            columns[f"{name}_{side}"] = v[name].values[rows]
    return pd.DataFrame({**columns, "margin": margins})


def _head_ties(own: Floats, margins: Floats) -> pd.DataFrame:
    """Ties that the model's own head makes in half precision and the float32 read does not."""
    n = len(margins)
    tied = own[:n] == own[n:]
    return pd.DataFrame(
        {
            "pairs": [n],
            "ties_of_own_head": [int(tied.sum())],
            "ties_read_in_float32": [int((margins == 0).sum())],
            "made_by_the_head": [int((tied & (margins != 0)).sum())],
        }
    )


def _position_accuracies(pairs: Pairs, flat: Floats, differ: pd.DataFrame) -> pd.DataFrame:
    """Accuracy at the native and at the last position, where they differ on some item."""
    n, rows = len(pairs), []
    for position in ("native", "last"):
        scores = flat.copy()
        scores[differ["item"]] = differ[position]
        i, ties = accuracy_interval(position, scores[:n] - scores[n:], pairs.lineages)
        rows.append(
            {
                "position": position,
                "items_that_differ": len(differ),
                "accuracy": i.estimate,
                "low": i.low,
                "high": i.high,
                "ties": ties,
            }
        )
    return pd.DataFrame(rows)
