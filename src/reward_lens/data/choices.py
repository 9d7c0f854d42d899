"""Choices: one prompt with several correct and several wrong responses, for best-of-N."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from reward_lens.data.fields import (
    Message,
    label_of,
    present,
    prompt_of,
    response_of,
    rows_of,
)
from reward_lens.data.formats import SUFFIXES, file_rows, saved_dataset_rows
from reward_lens.data.items import Item, content_hash
from reward_lens.data.pairs import Pair, Pairs
from reward_lens.errors import DataError
from reward_lens.evidence.arguments import checked_count

# Field -> names under which it is found; two of them in one row are refused.
_NAMES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "instruction", "query"),
    "correct": ("chosen", "correct"),
    "wrong": ("rejected", "incorrect", "wrong"),
    "responses": ("responses", "completions", "candidates"),
    "labels": ("labels", "is_correct"),
    "lineage": ("lineage", "prompt_id"),
    "n_correct": ("num_correct",),
    "n_wrong": ("num_incorrect", "num_rejected"),
    "n": ("total_completions",),
}


@dataclass(frozen=True)
class Choice:
    """One prompt with its correct and its wrong responses.

    Attributes
    ----------
    correct, wrong : tuple of Item
        At least one of each.
    id, lineage, subset : str
    meta : mapping
        Other scalar columns of the row.

    Raises
    ------
    DataError
        If one side is empty.
    """

    correct: tuple[Item, ...]
    wrong: tuple[Item, ...]
    id: str
    lineage: str
    subset: str = "all"
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, side in (("correct", self.correct), ("wrong", self.wrong)):
            if not side:
                raise DataError(
                    f"choice {self.id!r} has no {name} response, so there is nothing to choose; "
                    f"leave the row out"
                )

    @property
    def items(self) -> tuple[Item, ...]:
        """All responses, the correct ones first."""
        return (*self.correct, *self.wrong)

    @property
    def prompt(self) -> tuple[Message, ...] | None:
        """The turns before the response."""
        return self.correct[0].prompt


class Choices(Sequence[Choice]):
    """An immutable sequence of choices.

    Parameters
    ----------
    choices : iterable of Choice

    Raises
    ------
    DataError
        If there are none, or two share an id.
    """

    def __init__(self, choices: Iterable[Choice]) -> None:
        self._choices = tuple(choices)
        if not self._choices:
            raise DataError("there are no choices")
        seen: set[str] = set()
        for c in self._choices:
            if c.id in seen:
                raise DataError(f"two choices have the id {c.id!r}; make ids unique")
            seen.add(c.id)

    @overload
    def __getitem__(self, index: int) -> Choice: ...
    @overload
    def __getitem__(self, index: slice) -> Choices: ...
    def __getitem__(self, index: int | slice) -> Choice | Choices:
        found = self._choices[index]
        return Choices(found) if isinstance(found, tuple) else found

    def __len__(self) -> int:
        return len(self._choices)

    def __iter__(self) -> Iterator[Choice]:
        return iter(self._choices)

    def __repr__(self) -> str:
        total = sum(len(c.items) for c in self)
        return f"<{len(self)} choices among {total} responses in {self.subset_counts}>"

    @property
    def fingerprint(self) -> str:
        """Hash of contents and lineages, in order."""
        return content_hash(
            [
                [[x.content() for x in c.correct], [x.content() for x in c.wrong], c.lineage]
                for c in self
            ]
        )

    @property
    def ids(self) -> list[str]:
        """Id of every choice."""
        return [c.id for c in self]

    @property
    def lineages(self) -> npt.NDArray[np.object_]:
        """Lineage of every choice, by which statistics cluster."""
        return np.array([c.lineage for c in self], dtype=object)

    @property
    def subsets(self) -> npt.NDArray[np.object_]:
        """Subset of every choice."""
        return np.array([c.subset for c in self], dtype=object)

    @property
    def subset_counts(self) -> dict[str, int]:
        """Number of choices per subset, in order of appearance."""
        counts: dict[str, int] = {}
        for c in self:
            counts[c.subset] = counts.get(c.subset, 0) + 1
        return counts

    def pairs(self) -> Pairs:
        """Every correct response against every wrong one of its prompt.

        Pairs of one choice share its lineage, so that statistics count them together.
        """
        return Pairs(
            Pair(a, b, f"{c.id}#{k}", c.lineage, c.subset, meta=c.meta)
            for c in self
            for k, (a, b) in enumerate(itertools.product(c.correct, c.wrong))
        )


def load_choices(
    source: Any, *, limit: int | None = None, subset: str | None = None, split: str | None = None
) -> Choices:
    """Read choices.

    Parameters
    ----------
    source : path, Choices, Pairs, DataFrame, datasets.Dataset or list
        A ``.jsonl`` (also ``.gz``), ``.json`` or ``.parquet`` file, a folder written by
        ``Dataset.save_to_disk``, or rows as :func:`as_choices` takes them. Of a data set of the
        hub, pass what ``datasets.load_dataset`` gives.
    limit : int, optional
        Only the first ``limit`` rows.
    subset : str, optional
        Column of the subset, where it is not ``subset``.
    split : str, optional
        Of a saved folder with several.

    Raises
    ------
    DataError
        Naming file, line and field of what is wrong.
    """
    if limit is not None:
        limit = checked_count("limit", limit, 1, "None for all rows")
    if not isinstance(source, (str, os.PathLike)):
        if split is not None:
            raise DataError(f"split={split!r} is for saved folders; leave it out")
        return as_choices(source, subset=subset, limit=limit)
    path = Path(source).expanduser()
    if path.is_dir():
        rows = saved_dataset_rows(path, split)
    elif not path.is_file():
        raise DataError(
            f"{source}: there is no such file. Expected one of {', '.join(SUFFIXES)} or a folder "
            f"saved by save_to_disk; of a data set of the hub pass datasets.load_dataset(...)"
        )
    elif split is not None:
        raise DataError(f"{source} is a file and has no splits; leave split={split!r} out")
    elif path.name.lower().endswith(".csv"):
        raise DataError(f"{source}: CSV cannot hold lists of responses; use .jsonl or .parquet")
    else:
        rows = file_rows(path)
    return _choices_of(rows, subset, limit)


def as_choices(given: Any, *, subset: str | None = None, limit: int | None = None) -> Choices:
    """Turn choices in any accepted form into :class:`Choices`.

    Parameters
    ----------
    given : Choices, Pairs, DataFrame, datasets.Dataset, or list or iterator of rows
        A row is a :class:`Choice` or a mapping with a prompt (text or messages) and either
        ``chosen`` and ``rejected`` (each a response or a list of them, as in RewardBench 2), or
        ``responses`` with ``labels`` (true or 1 where correct). ``id``, ``lineage`` and ``subset``
        are read where there are any, and counts (``num_correct``, ``num_incorrect``,
        ``total_completions``) are checked. Pairs are best-of-2.
    subset : str, optional
        Column of the subset, where it is not ``subset``.
    limit : int, optional
        Only the first ``limit`` rows.

    Raises
    ------
    DataError
        Naming the row (counted from 0) and the field; nothing is guessed.
    """
    if isinstance(given, Choices):
        return given if limit is None else given[:limit]
    if isinstance(given, Choice):
        raise DataError("expected a list of choices, got one Choice; put it in a list")
    if isinstance(given, Pairs):
        found = (
            Choice((p.chosen,), (p.rejected,), p.id, p.lineage, p.subset, p.meta) for p in given
        )
        return Choices(itertools.islice(found, limit))
    if isinstance(given, str):
        raise DataError("expected a list of choices, got one str; for a file use load_choices")
    rows = rows_of(given, "choices", '{"prompt": ..., "chosen": [...], "rejected": [...]}')
    return _choices_of(((f"row {n}", row) for n, row in enumerate(rows)), subset, limit)


def _choices_of(rows: Iterable[tuple[str, Any]], subset: str | None, limit: int | None) -> Choices:
    seen: dict[str, str] = {}
    found = []
    for number, (where, row) in enumerate(itertools.islice(rows, limit)):
        choice = row if isinstance(row, Choice) else _choice(row, where, number, subset)
        if choice.id in seen:
            raise DataError(
                f"{where}: the id {choice.id!r} was used before, at {seen[choice.id]}; make ids "
                f"unique"
            )
        seen[choice.id] = where
        found.append(choice)
    return Choices(found)


def _choice(raw: Any, where: str, number: int, subset: str | None) -> Choice:
    if not isinstance(raw, Mapping):
        raise DataError(
            f"{where} is a {type(raw).__name__}; a choice is a row with a prompt, chosen and "
            f"rejected responses"
        )
    row = present(raw)
    at = {name: _column(row, name, where) for name in _NAMES}
    if (prompt := at["prompt"]) is None:
        raise DataError(f"{where} has no field 'prompt'; it has {sorted(row)}")
    turns = prompt_of(row[prompt], where, prompt)
    correct, wrong = _sides(row, at, where)
    for name, found in (("n_correct", len(correct)), ("n_wrong", len(wrong)),
                        ("n", len(correct) + len(wrong))):  # fmt: skip
        column = at[name]
        if column is not None and row[column] != found:
            raise DataError(
                f"{where}: {column} is {row[column]!r}, but the row has {found}; correct it or "
                f"drop the column"
            )
    id_ = label_of(row["id"], where, "id") if "id" in row else f"row-{number}"
    column = subset or "subset"
    if subset is not None and subset not in row:
        raise DataError(f"{where} has no column {subset!r} (asked for as subset)")
    lineage = at["lineage"]
    line = label_of(row[lineage], where, lineage) if lineage else ""
    items = [Item.of(turns, text, lineage=line) for text in (*correct, *wrong)]
    items = [replace(x, id=f"{id_}/{k}") for k, x in enumerate(items)]
    used = {*at.values(), "id", column}
    return Choice(
        correct=tuple(items[: len(correct)]),
        wrong=tuple(items[len(correct) :]),
        id=id_,
        lineage=items[0].lineage if items else "",
        subset=label_of(row[column], where, column) if column in row else "all",
        meta={k: v for k, v in row.items() if k not in used and isinstance(v, (str, int))},
    )


def _column(row: Mapping[str, Any], name: str, where: str) -> str | None:
    found = [c for c in _NAMES[name] if c in row]
    if len(found) > 1:
        raise DataError(
            f"{where}: {' and '.join(map(repr, found))} could each be the {name}; leave one"
        )
    return found[0] if found else None


def _sides(
    row: Mapping[str, Any], at: Mapping[str, str | None], where: str
) -> tuple[list[str], list[str]]:
    """The texts of the correct and of the wrong responses."""
    correct, wrong, every, labels = (at[n] for n in ("correct", "wrong", "responses", "labels"))
    if every is not None and (correct is not None or wrong is not None):
        raise DataError(
            f"{where} has {every!r} and {correct or wrong!r}, so it is not clear what is scored; "
            f"leave one form"
        )
    if correct is not None and wrong is not None:
        sides = _texts(row[correct], where, correct), _texts(row[wrong], where, wrong)
    elif every is not None and labels is not None:
        texts, marks = _texts(row[every], where, every), _marks(row[labels], where, labels)
        if len(texts) != len(marks):
            raise DataError(f"{where}: {len(texts)} {every}, but {len(marks)} {labels}")
        both = list(zip(texts, marks, strict=True))
        sides = [t for t, m in both if m], [t for t, m in both if not m]
    else:
        raise DataError(
            f"{where} has neither chosen and rejected, nor responses and labels; it has "
            f"{sorted(row)}"
        )
    for name, side in zip(("correct", "wrong"), sides, strict=True):
        if not side:
            raise DataError(f"{where}: no response is {name}, so there is nothing to choose")
    return sides


def _texts(value: Any, where: str, name: str) -> list[str]:
    """One response or a list of them, each text or the assistant's message."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, (list, tuple)):
        value = [value]
    return [response_of(v, where, f"{name}[{k}]") for k, v in enumerate(value)]


def _marks(value: Any, where: str, name: str) -> list[bool]:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or any(v not in (0, 1) for v in value):
        raise DataError(f"{where}: {name} must be a list with true or false (1 or 0) per response")
    return [bool(v) for v in value]
