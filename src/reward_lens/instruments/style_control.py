"""Accuracy where style speaks against the better answer, and score against length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.data import Item, Message, Pairs, as_pairs
from reward_lens.data.edits import EDITS
from reward_lens.data.edits_prose import Prose
from reward_lens.errors import DataError
from reward_lens.evidence import Evidence, Interval, Tier, Units
from reward_lens.evidence.arguments import checked_count, checked_seed
from reward_lens.evidence.intervals import accuracy, cluster_t
from reward_lens.evidence.prompt_correlation import prompt_rank_correlation
from reward_lens.instruments.pair_scores import length_slope, no_length
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation

Floats = npt.NDArray[np.float64]

#: From the plainest to the richest.
STYLES = ("plain", "longer", "longer_marked")
#: Name -> which cells ``(chosen style, rejected style)`` of the matrix it averages.
LEVELS = {"easy": 1, "normal": 0, "hard": -1}
_EDITS = {e.label: e for e in EDITS}


def style_accuracy(
    signal: ClassifierRM,
    pairs: Any,
    *,
    max_pairs: int | None = None,
    seed: int = 0,
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """Whether the better answer is still preferred when it is the plainer or the shorter one.

    Both responses of a pair are written in three styles by matched edits: without markdown; that
    and restated at the end; the same in a bold sentence and a list. Every style of the chosen
    response meets every style of the rejected one, as in RM-Bench (Liu et al. 2024): ``easy`` where
    the chosen one is the richer, ``normal`` where both are alike, ``hard`` where it is the plainer.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes
    max_pairs : int, optional
        A seeded, subset-stratified sample of this size.
    seed : int

    Returns
    -------
    Evidence
        Value float64 ``[chosen_style, rejected_style]``: accuracy in probability units (a tie
        counts half), NaN where no pair has all styles. Intervals: ``easy``, ``normal``, ``hard``,
        ``easy_less_hard`` (paired), each over the pairs of which both sides have all styles, and
        NaN with the reason where there are none; of the pairs as they are, ``length.slope`` (median
        |margins| per e-fold of characters within a prompt) and ``length.correlation`` (ranks within
        prompts), NaN with the reason where length varies within no prompt. Tables: ``levels``;
        ``observed``, the accuracies of the pairs as they are, by which side is longer and which has
        more markdown; ``left_out``, pairs without all styles or too long in one, with the reason.

    Raises
    ------
    DataError
        If a pair is rendered text or ids, or the seed no whole number from 0.

    Notes
    -----
    RM-Bench has its styles written by a language model. Here they are edits, which keep the words
    but make worse prose: numbers compare between signals on the same pairs, not with its table.
    """
    require(signal, Capability.SCORES, "style_accuracy")
    seed = checked_seed(seed)
    given = as_pairs(pairs)
    if max_pairs is not None:
        max_pairs = checked_count("max_pairs", max_pairs, 1, "None for all pairs")
        given = given.sample(max_pairs, seed)
    styled = _Styled.of(signal, given, seed, truncate)
    items = [*given.chosen, *given.rejected, *styled.items]
    scored = signal.score(
        items,
        readout=readout,
        position=position,
        truncate=truncate,
        batch_tokens=batch_tokens,
        progress=progress,
    )
    flat = scored.value.values.astype(np.float64)
    n = len(given)
    margins = flat[:n] - flat[n : 2 * n]
    matrix = styled.margins(flat[2 * n :])
    lineages = given.lineages[styled.rows]
    intervals = _levels(matrix, lineages)
    lengths = np.array([float(len(i.response or "")) for i in items[: 2 * n]])
    return observation(
        signal,
        "style_accuracy",
        xr.DataArray(
            _wins(matrix).mean(0) if len(matrix) else np.full((3, 3), np.nan),
            dims=("chosen_style", "rejected_style"),
            coords={"chosen_style": list(STYLES), "rejected_style": list(STYLES)},
            name="accuracy",
        ),
        data=given.fingerprint,
        readout=signal.readout(readout),
        position=position,
        parameters={
            "max_pairs": max_pairs,
            "seed": seed,
            "readout": readout,
            "truncate": truncate,
            "batch_tokens": batch_tokens,
        },
        cost=float(len(items)),
        tier=Tier.VULNERABILITY,
        units=Units.PROBABILITY,
        seeds=(seed,),
        uncertainty=(*intervals, *_length(given, flat[: 2 * n], margins, lengths)),
        tables={
            "levels": _level_table(intervals),
            "observed": _observed(given, margins, lengths),
            "left_out": pd.DataFrame(
                {"pair": list(styled.left_out), "reason": list(styled.left_out.values())}
            ),
        },
    )


@dataclass(frozen=True)
class _Styled:
    """Both sides of the pairs that have every style: items ``[pair, side, style]``, flattened."""

    rows: list[int]
    items: list[Item]
    left_out: dict[str, str]

    @classmethod
    def of(cls, signal: ClassifierRM, pairs: Pairs, seed: int, truncate: str) -> _Styled:
        found: dict[int, list[Item]] = {}
        left_out: dict[str, str] = {}
        for k, pair in enumerate(pairs):
            both = (("chosen", pair.chosen), ("rejected", pair.rejected))
            sides = [(n, i, styles_of(_response(i, pair.id), seed)) for n, i in both]
            if bare := [n for n, _, styles in sides if styles is None]:
                left_out[pair.id] = (
                    f"{' and '.join(bare)}: fewer than two sentences, or a list or code"
                )
            else:
                found[k] = [_with(i, text) for _, i, styles in sides for text in styles or ()]
        if truncate == "error" and found:
            flat = [i for items in found.values() for i in items]
            cut = np.array([e.cut for e in signal.encoder.encode(flat, "right")])
            most = cut.reshape(len(found), -1).max(1)
            for k, over in zip(list(found), most.tolist(), strict=True):
                if over:
                    left_out[pairs[k].id] = "longer than the model reads in one of the styles"
                    del found[k]
        return cls(list(found), [i for items in found.values() for i in items], left_out)

    def margins(self, scores: Floats) -> Floats:
        """Chosen in style a minus rejected in style b: ``[pair, a, b]``."""
        by_style = scores.reshape(len(self.rows), 2, len(STYLES))
        return by_style[:, 0, :, None] - by_style[:, 1, None, :]


def styles_of(response: str, seed: int = 0) -> tuple[str, str, str] | None:
    """A response in the three :data:`STYLES`; ``None`` where one of them cannot be made.

    Lists and code of the response itself cannot be written as running text.
    """
    plain = _EDITS["markdown_off"].apply(response, seed=seed) or response
    if any(line.kind in ("item", "verbatim") for line in Prose(plain).lines):
        return None
    longer = _EDITS["restated.end"].apply(plain, seed=seed)
    marked = None if longer is None else _EDITS["markdown_on"].apply(longer, seed=seed)
    return None if longer is None or marked is None else (plain, longer, marked)


def _response(item: Item, pair: str) -> str:
    if item.response is None:
        raise DataError(
            f"pair {pair!r} is rendered text or ids, which do not say where the response begins: "
            f"styles need a prompt and a response"
        )
    return item.response


def _with(item: Item, response: str) -> Item:
    turns = item.messages or ()
    new = (*turns[:-1], Message(turns[-1].role, response))
    return Item(messages=new, lineage=item.lineage)


def _wins(margins: Floats) -> Floats:
    """1 for a win, a half for a tie, 0 for a loss."""
    won: Floats = (np.sign(margins) + 1) / 2
    return won


def _levels(matrix: Floats, lineages: npt.NDArray[np.object_]) -> list[Interval]:
    """Accuracy of each level, and easy less hard on the same pairs."""
    if not len(matrix):
        nan, why = np.nan, "no pair has every style on both sides; the table left_out says why"
        return [
            Interval(n, nan, nan, nan, 0.95, nan, 0, 0.0, 0, "none", why)
            for n in (*LEVELS, "easy_less_hard")
        ]
    chosen, rejected = np.indices(matrix.shape[1:])
    found, shares = [], {}
    for name, sign in LEVELS.items():
        cells = matrix[:, np.sign(chosen - rejected) == sign]
        repeated = np.repeat(lineages, cells.shape[1])
        found.append(accuracy(name, cells.reshape(-1), repeated)[0])
        shares[name] = _wins(cells).mean(1)
    found.append(cluster_t("easy_less_hard", shares["easy"] - shares["hard"], lineages))
    return found


def _level_table(found: list[Interval]) -> pd.DataFrame:
    columns = ["level", "n", "lineages", "accuracy", "low", "high", "note"]
    rows = [(i.name, i.n, i.clusters, i.estimate, i.low, i.high, i.note) for i in found]
    return pd.DataFrame(rows, columns=columns)


def marks_of(response: str) -> int:
    """How much markdown a response has: its headings, list items and bold words."""
    prose = Prose(response)
    lines = sum(line.kind in ("item", "heading") for line in prose.lines)
    return lines + response.count("**") // 2


def _observed(pairs: Pairs, margins: Floats, lengths: Floats) -> pd.DataFrame:
    """Accuracy of the pairs as they are, where the chosen side has more, as much, or less of it."""
    n = len(pairs)
    marks = np.array([float(marks_of(i.response or "")) for i in (*pairs.chosen, *pairs.rejected)])
    rows = []
    for what, values in (("length", lengths), ("markdown", marks)):
        more = np.sign(values[:n] - values[n:])
        for sign, label in ((1, "chosen has more"), (0, "equal"), (-1, "chosen has less")):
            where = more == sign
            row: dict[str, Any] = {"of": what, "side": label, "pairs": int(where.sum())}
            if where.any():
                i, ties = accuracy("accuracy", margins[where], pairs.lineages[where])
                row |= {"accuracy": i.estimate, "low": i.low, "high": i.high, "ties": int(ties),
                        "note": i.note}  # fmt: skip
            else:
                nan = float("nan")
                row |= {"accuracy": nan, "low": nan, "high": nan, "ties": 0, "note": "no pairs"}
            rows.append(row)
    return pd.DataFrame(rows)


def _length(
    pairs: Pairs, scores: Floats, margins: Floats, lengths: Floats
) -> tuple[Interval, Interval]:
    """Score against log characters within a prompt: slope in median margins, and correlation."""
    unit = float(np.median(np.abs(margins)))
    prompts = np.array([str(i.prompt) for i in (*pairs.chosen, *pairs.rejected)], dtype=object)
    if len(set(prompts)) == len(prompts):
        one, other = (
            no_length(f"length.{k}", len(pairs), "no prompt has two responses")
            for k in ("slope", "correlation")
        )
        return one, other
    lineages = np.concatenate([pairs.lineages, pairs.lineages])
    x = np.log(np.maximum(lengths, 1))
    return (
        length_slope(pairs, x, scores / (unit or 1.0)),
        prompt_rank_correlation("length.correlation", x, scores, prompts, lineages),
    )
