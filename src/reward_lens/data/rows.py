"""One row of preference data, in any of the forms people keep, to pairs; or a refusal by name."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reward_lens.data.fields import (
    Message,
    conversation_of,
    ids_of,
    label_of,
    messages_of,
    present,
    prompt_of,
    response_of,
    rows_of,
    text_of,
)
from reward_lens.data.items import Item, lineage_of
from reward_lens.data.pairs import Pair, Pairs
from reward_lens.errors import DataError

#: Field -> names under which it is found; two of them in one row are refused.
ALIASES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "instruction", "query"),
    "chosen": ("chosen", "chosen_response"),
    "rejected": ("rejected", "rejected_response"),
    "subset": ("subset",),
    "id": ("id",),
    "lineage": ("lineage", "prompt_id"),
    "source": ("source",),
}
_TEXTS = ("text_chosen", "text_rejected")
_IDS = (("input_ids_chosen", "input_ids_rejected"), ("chosen_input_ids", "rejected_input_ids"))
_TURN = re.compile(r"(?:^|\n\n)(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


@dataclass(frozen=True)
class Columns:
    """Which columns hold what; ``None`` means: look under the names of :data:`ALIASES`."""

    prompt: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    subset: str | None = None
    id: str | None = None
    lineage: str | None = None
    source: str | None = None
    transcripts: bool | str = "auto"

    def __post_init__(self) -> None:
        if self.transcripts not in ("auto", True, False):
            raise DataError(f"transcripts={self.transcripts!r}: choose 'auto', True or False")

    def find(self, row: Mapping[str, Any], name: str, where: str) -> str | None:
        """Return the column of a field, or ``None``; ``row`` has no empty cells."""
        asked = getattr(self, name)
        if asked is not None:
            if asked not in row:
                raise DataError(
                    f"{where} has no column {asked!r}, or nothing in it (asked for as {name}); "
                    f"it has {sorted(row)}"
                )
            return str(asked)
        found = [a for a in ALIASES[name] if a in row]
        if len(found) > 1:
            raise DataError(
                f"{where}: {' and '.join(map(repr, found))} could each be the {name}; "
                f"say which with {name}=..."
            )
        return found[0] if found else None

    def label(self, row: Mapping[str, Any], name: str, where: str) -> str:
        """Return the label in a field, or an empty text."""
        column = self.find(row, name, where)
        return label_of(row[column], where, column) if column is not None else ""


def as_pairs(given: Any, columns: Columns | None = None, *, limit: int | None = None) -> Pairs:
    """Turn pairs in any accepted form into :class:`Pairs`.

    Parameters
    ----------
    given : Pairs, DataFrame, datasets.Dataset, or list or iterator of rows
        A row is (prompt, chosen, rejected), a mapping, or a :class:`Pair`.
    columns : Columns, optional
        Which columns hold what, where the names are not the usual ones.
    limit : int, optional
        Only the first ``limit`` rows.

    Raises
    ------
    DataError
        Naming the row (counted from 0) and the field; nothing is guessed.
    """
    if isinstance(given, Pairs):
        return given if limit is None else given[:limit]
    if isinstance(given, Pair):
        raise DataError("expected a list of pairs, got one Pair; put it in a list")
    if isinstance(given, str):
        raise DataError("expected a list of pairs, got one str; for a file use load_pairs")
    rows = rows_of(given, "pairs", "(prompt, chosen, rejected)")
    named = ((f"row {n}", row) for n, row in enumerate(rows))
    return pairs_of_rows(named, columns or Columns(), limit=limit)


def pairs_of_rows(
    rows: Iterable[tuple[str, Any]],
    columns: Columns,
    *,
    source: str = "",
    limit: int | None = None,
) -> Pairs:
    """Turn (where, row) into pairs; an id used twice is refused with both places.

    Raises
    ------
    DataError
        From the first row that cannot be used; or if there are no rows.
    """
    seen: dict[str, str] = {}
    pairs = []
    for number, (where, row) in enumerate(itertools.islice(rows, limit)):
        for pair in pairs_from_row(row, where, number, columns):
            if pair.id in seen:
                raise DataError(
                    f"{where}: the id {pair.id!r} was used before, at {seen[pair.id]}; make ids "
                    f"unique, or name another column with id=..."
                )
            seen[pair.id] = where
            pairs.append(pair)
    if not pairs:
        raise DataError(f"{source}: there are no rows in it" if source else "there are no pairs")
    return Pairs(pairs)


def pairs_from_row(row: Any, where: str, number: int, columns: Columns) -> list[Pair]:
    """Turn one row into its pairs (several where it lists several responses on a side).

    Parameters
    ----------
    row : mapping, (prompt, chosen, rejected) or Pair
    where : str
        File and line, or row number: named in errors.
    number : int
        Counted from 0; makes the id where the row has none.
    columns : Columns

    Raises
    ------
    DataError
        Naming ``where`` and the field.
    """
    if isinstance(row, Pair):
        return [row]
    if isinstance(row, (tuple, list)):
        if len(row) != 3:
            raise DataError(
                f"{where} is a {type(row).__name__} of {len(row)}; a pair is "
                f"(prompt, chosen, rejected)"
            )
        row = dict(zip(("prompt", "chosen", "rejected"), row, strict=True))
    if not isinstance(row, Mapping):
        raise DataError(
            f"{where} is a {type(row).__name__}; a pair is (prompt, chosen, rejected) or a row "
            f"with named fields"
        )
    sides, used = _sides(row, where, columns)
    row = present(row)
    id_ = columns.label(row, "id", where) or f"row-{number}"
    lineage = columns.label(row, "lineage", where)
    subset = columns.label(row, "subset", where) or "all"
    source = columns.label(row, "source", where)
    used |= {columns.find(row, n, where) for n in ("id", "lineage", "subset", "source")}
    meta = {k: v for k, v in row.items() if k not in used and _is_scalar(v)}
    pairs = []
    for k, (chosen, rejected) in enumerate(sides):
        name = id_ if len(sides) == 1 else f"{id_}#{k}"
        line = lineage or chosen.lineage
        pairs.append(
            Pair(
                chosen=replace(chosen, lineage=line, id=f"{name}/chosen"),
                rejected=replace(rejected, lineage=line, id=f"{name}/rejected"),
                id=name,
                lineage=line,
                subset=subset,
                source=source,
                meta=dict(meta),
            )
        )
    return pairs


def _is_scalar(value: Any) -> bool:
    """Whether a value can stand in JSON as it is."""
    return isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))


def _sides(
    raw: Mapping[Any, Any], where: str, columns: Columns
) -> tuple[list[tuple[Item, Item]], set[str | None]]:
    """Every (chosen, rejected) of a row, and the columns they were read from."""
    row = present(raw)
    prompt = columns.find(row, "prompt", where)
    form = _form(row, where, columns)
    if form is None:
        names = [prompt, *(_column(raw, row, n, where, columns) for n in ("chosen", "rejected"))]
        given = [row[n] if n is not None else None for n in names]
        return [
            _pair_of(given[0], c, r, where, columns)
            for c in _several(given[1])
            for r in _several(given[2])
        ], set(names)
    for name in form:
        _require(raw, row, name, where)
    lineage = lineage_of(prompt_of(row[prompt], where, prompt)) if prompt is not None else ""
    if form == _TEXTS:
        items = [Item(text=text_of(row[n], where, n), lineage=lineage) for n in form]
        return [(items[0], items[1])], {prompt, *form}
    masks = [n.replace("input_ids", "attention_mask") for n in form]
    items = [
        Item(ids=ids_of(row[n], where, n, row.get(m)), lineage=lineage)
        for n, m in zip(form, masks, strict=True)
    ]
    return [(items[0], items[1])], {prompt, *form, *masks}


def _form(row: Mapping[str, Any], where: str, columns: Columns) -> tuple[str, str] | None:
    """The two columns of rendered texts or ids; ``None`` for chosen and rejected responses."""
    if columns.chosen is not None or columns.rejected is not None:
        return None
    found = [form for form in (_TEXTS, *_IDS) if any(n in row for n in form)]
    plain = [a for n in ("chosen", "rejected") for a in ALIASES[n] if a in row]
    if len(found) + bool(plain) > 1:
        names = [n for form in found for n in form if n in row] + plain
        raise DataError(
            f"{where} has {', '.join(map(repr, names))}, so it is not clear what is scored; leave "
            f"two of them, or say which with chosen=... and rejected=..."
        )
    return found[0] if found else None


def _column(
    raw: Mapping[Any, Any], row: Mapping[str, Any], name: str, where: str, columns: Columns
) -> str:
    """The column of a field that must be there."""
    column = columns.find(row, name, where)
    if column is None:
        for alias in ALIASES[name]:
            if alias in raw:
                _require(raw, row, alias, where)
        raise DataError(
            f"{where} has no field {name!r}; it has {sorted(row)}. Name the column with {name}=..."
        )
    return column


def _require(raw: Mapping[Any, Any], row: Mapping[str, Any], name: str, where: str) -> None:
    if name in row:
        return
    if name in raw:
        raise DataError(f"{where}: {name} is null; give it a value or leave the row out")
    raise DataError(f"{where} has no field {name!r}; it has {sorted(row)}")


def _several(value: Any) -> list[Any]:
    """A list of texts is several responses; a list of messages is one."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)) and value and all(isinstance(v, str) for v in value):
        return list(value)
    return [value]


def _pair_of(
    prompt: Any, chosen: Any, rejected: Any, where: str, columns: Columns
) -> tuple[Item, Item]:
    if prompt is not None:
        turns = _prompt_turns(prompt, where, columns)
        return _beside(turns, chosen, where, "chosen"), _beside(turns, rejected, where, "rejected")
    a = _whole_conversation(chosen, where, "chosen", columns)
    b = _whole_conversation(rejected, where, "rejected", columns)
    if a[:-1] != b[:-1]:
        raise DataError(
            f"{where}: chosen and rejected differ before the last turn; there is no common prompt"
        )
    return Item(messages=a), Item(messages=b)


def _beside(prompt: tuple[Message, ...], value: Any, where: str, name: str) -> Item:
    """A side beside a prompt: a response, or the conversation that begins with that prompt."""
    if isinstance(value, (list, tuple, np.ndarray)) and len(value) > 1:
        turns = messages_of(value, where, name)
        if turns[:-1] == prompt:
            return Item(messages=conversation_of(turns, where, name))
        raise DataError(
            f"{where}: beside a prompt, {name} must be text, the assistant's one message, or the "
            f"conversation that begins with exactly this prompt; it has turns "
            f"{[m.role for m in turns]}. Drop the prompt column if the conversations are complete."
        )
    return Item.of(prompt, response_of(value, where, name))


def _prompt_turns(prompt: Any, where: str, columns: Columns) -> tuple[Message, ...]:
    turns = prompt_of(prompt, where, "prompt")
    if columns.transcripts is not True or not isinstance(prompt, str) or not _TURN.match(prompt):
        return turns
    turns = _turns(prompt, where, "prompt")
    # "...\n\nAssistant:" asks for the response and is no turn of its own
    turns = turns[:-1] if turns[-1] == Message("assistant", "") else turns
    if not turns or turns[-1].role != "user":
        raise DataError(f"{where}: prompt is a transcript that does not end in a 'Human:' turn")
    return turns


def _whole_conversation(value: Any, where: str, name: str, columns: Columns) -> tuple[Message, ...]:
    """A conversation that holds its own prompt: messages, or a transcript."""
    if not isinstance(value, str):
        return conversation_of(value, where, name)
    text = text_of(value, where, name)
    if columns.transcripts is False or not _TURN.match(text):
        raise DataError(
            f"{where} has no prompt, and {name} is no transcript of 'Human:' and 'Assistant:' "
            f"turns; name the prompt's column with prompt=..."
        )
    return conversation_of(_turns(text, where, name), where, name)


def _turns(text: str, where: str, name: str) -> tuple[Message, ...]:
    r"""Split a transcript at its ``\n\nHuman:`` and ``\n\nAssistant:`` marks.

    The white space around a turn belongs to the marks.
    """
    parts = _TURN.split(text)
    if parts[1] != "Human":
        raise DataError(f"{where}: {name} is a transcript that does not begin with 'Human:'")
    return tuple(
        Message(_ROLES[mark], body.strip())
        for mark, body in zip(parts[1::2], parts[2::2], strict=True)
    )
