"""One row of preference data, in any of the forms people keep, to pairs; or a refusal by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reward_lens.data.items import Item, Message, messages_of, text_of
from reward_lens.data.pairs import Pair, Pairs
from reward_lens.errors import DataError

#: Field -> names under which it is found; the first present wins, two present are refused.
ALIASES: dict[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "instruction", "query"),
    "chosen": ("chosen", "chosen_response"),
    "rejected": ("rejected", "rejected_response"),
    "subset": ("subset",),
    "id": ("id", "prompt_id"),
    "lineage": ("lineage",),
    "source": ("source",),
}
_TEXTS = (("text_chosen", "text_rejected"), ("chosen_text", "rejected_text"))
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
        """Return the column of a field, or ``None``."""
        asked = getattr(self, name)
        if asked is not None:
            if asked not in row:
                raise DataError(f"{where} has no column {asked!r} (asked for as {name})")
            return str(asked)
        present = [a for a in ALIASES[name] if row.get(a) is not None]
        if len(present) > 1:
            raise DataError(
                f"{where}: {' and '.join(map(repr, present))} could each be the {name}; "
                f"say which with {name}=..."
            )
        return present[0] if present else None


def pairs_from_row(row: Any, where: str, number: int, columns: Columns) -> list[Pair]:
    """Turn one row into its pairs (several where it lists several rejected responses).

    Parameters
    ----------
    row : mapping, (prompt, chosen, rejected) or Pair
    where : str
        File and line, or row number: named in errors.
    number : int
        Counted from 0; makes the id where the row has none.

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
        raise DataError(f"{where} is a {type(row).__name__}; a pair is a row with named fields")
    row = {str(k): v for k, v in row.items() if not _missing(v)}
    id_ = _label(row, columns.find(row, "id", where), where) or f"row-{number}"
    lineage = _label(row, columns.find(row, "lineage", where), where)
    sides = [(c, r) for c, r in _sides(row, where, columns)]
    pairs = []
    for k, (chosen, rejected) in enumerate(sides):
        name = id_ if len(sides) == 1 else f"{id_}#{k}"
        line = lineage or chosen.lineage
        pairs.append(
            Pair(
                chosen=_named(chosen, f"{name}/chosen", line),
                rejected=_named(rejected, f"{name}/rejected", line),
                id=name,
                lineage=line,
                subset=_label(row, columns.find(row, "subset", where), where) or "all",
                source=_label(row, columns.find(row, "source", where), where),
                meta={k: v for k, v in row.items() if isinstance(v, (str, int, float, bool))
                      and k not in _USED},
            )
        )  # fmt: skip
    return pairs


_USED = {n for names in ALIASES.values() for n in names}


def _named(item: Item, id_: str, lineage: str) -> Item:
    return Item(messages=item.messages, text=item.text, ids=item.ids, lineage=lineage, id=id_)


def _missing(value: Any) -> bool:
    """Whether a cell is empty in the manner of tables: None, or a float NaN."""
    return value is None or (isinstance(value, float) and value != value)


def _label(row: Mapping[str, Any], column: str | None, where: str) -> str:
    if column is None or column not in row:
        return ""
    value = row[column]
    if not isinstance(value, (str, int, np.integer)) or isinstance(value, bool):
        raise DataError(f"{where}: {column} is a {type(value).__name__}, expected a label")
    return str(value)


def _sides(row: Mapping[str, Any], where: str, columns: Columns) -> Iterable[tuple[Item, Item]]:
    """Every (chosen, rejected) of a row."""
    for a, b in _TEXTS:
        if a in row or b in row:
            texts = [text_of(_get(row, name, where), where, name) for name in (a, b)]
            return [(Item(text=texts[0]), Item(text=texts[1]))]
    for a, b in _IDS:
        if a in row or b in row:
            ids = [_ids(_get(row, name, where), where, name) for name in (a, b)]
            return [(Item(ids=ids[0]), Item(ids=ids[1]))]
    names = {n: columns.find(row, n, where) for n in ("prompt", "chosen", "rejected")}
    for n in ("chosen", "rejected"):
        if names[n] is None:
            raise DataError(
                f"{where} has no field {n!r}; it has {sorted(row)}. Name the column with {n}=..."
            )
    given = {n: row[c] if c is not None else None for n, c in names.items()}
    return [
        _pair_of(given["prompt"], c, r, where, columns)
        for c in _several(given["chosen"])
        for r in _several(given["rejected"])
    ]


def _several(value: Any) -> list[Any]:
    """A list of texts is several responses; a list of messages is one."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
        return value
    return [value]


def _get(row: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in row:
        raise DataError(f"{where} has no field {name!r}; it has {sorted(row)}")
    return row[name]


def _ids(value: Any, where: str, name: str) -> tuple[int, ...]:
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise DataError(f"{where}: {name} must be one non-empty row of integers")
    return tuple(int(i) for i in array)


def _pair_of(
    prompt: Any, chosen: Any, rejected: Any, where: str, columns: Columns
) -> tuple[Item, Item]:
    if prompt is not None:
        turns = _prompt_turns(prompt, where, columns)
        items = [
            Item.of(turns, _response(v, where, n))
            for v, n in ((chosen, "chosen"), (rejected, "rejected"))
        ]
        return items[0], items[1]
    a, b = (
        _whole_conversation(v, where, n, columns)
        for v, n in ((chosen, "chosen"), (rejected, "rejected"))
    )
    if a[:-1] != b[:-1]:
        raise DataError(
            f"{where}: chosen and rejected differ before the last turn; there is no common prompt"
        )
    return Item(messages=a), Item(messages=b)


def _prompt_turns(prompt: Any, where: str, columns: Columns) -> tuple[Message, ...]:
    if isinstance(prompt, str):
        text = text_of(prompt, where, "prompt")
        if columns.transcripts is True:
            return _turns(text, where, "prompt")
        return (Message("user", text),)
    if isinstance(prompt, (list, tuple, np.ndarray)):
        return messages_of(prompt, where, "prompt")
    raise DataError(f"{where}: prompt is a {type(prompt).__name__}, expected text or messages")


def _response(value: Any, where: str, name: str) -> str:
    """The response: text, or a list with just the assistant's message."""
    if isinstance(value, (list, tuple, np.ndarray)):
        turns = messages_of(value, where, name)
        if len(turns) != 1 or turns[0].role != "assistant":
            raise DataError(
                f"{where}: beside a prompt, {name} must be text or the assistant's one message; it "
                f"has turns {[m.role for m in turns]}"
            )
        value = turns[0].content
    return text_of(value, where, name)


def _whole_conversation(value: Any, where: str, name: str, columns: Columns) -> tuple[Message, ...]:
    """A conversation that holds its own prompt: messages, or a transcript."""
    if isinstance(value, str):
        if columns.transcripts is False or not _TURN.match(value):
            raise DataError(
                f"{where} has no prompt, and {name} is no transcript of 'Human:' and 'Assistant:' "
                f"turns; name the prompt's column with prompt=..."
            )
        turns = _turns(value, where, name)
    else:
        turns = messages_of(value, where, name)
    if len(turns) < 2 or turns[-1].role != "assistant":
        raise DataError(f"{where}: {name} must end in an assistant turn after a prompt")
    text_of(turns[-1].content, where, name)
    return turns


def _turns(text: str, where: str, name: str) -> tuple[Message, ...]:
    r"""Split a transcript at its ``\n\nHuman:`` and ``\n\nAssistant:`` marks."""
    parts = _TURN.split(text)
    if parts[0].strip() or len(parts) < 3:
        raise DataError(f"{where}: {name} is no transcript that begins with 'Human:'")
    marks: Sequence[str] = parts[1::2]
    return tuple(
        Message(_ROLES[mark], body.strip()) for mark, body in zip(marks, parts[2::2], strict=True)
    )


def as_pairs(given: Any, columns: Columns | None = None, where: str = "row") -> Pairs:
    """Turn pairs in any accepted form into :class:`Pairs`.

    Parameters
    ----------
    given : Pairs, DataFrame, datasets.Dataset, or sequence of rows
        A row is (prompt, chosen, rejected), a mapping, or a :class:`Pair`.

    Raises
    ------
    DataError
        Naming the row and the field; nothing is guessed.
    """
    if isinstance(given, Pairs):
        return given
    if isinstance(given, (str, bytes, Mapping)):
        raise DataError(
            f"expected a list of pairs, got one {type(given).__name__}; use load_pairs for a file, "
            f"or put a single row in a list"
        )
    if hasattr(given, "columns") and hasattr(given, "to_dict"):  # a DataFrame
        given = given.to_dict(orient="records")
    if not isinstance(given, Iterable):
        raise DataError(f"expected a list of pairs, got {type(given).__name__}")
    columns = columns or Columns()
    return Pairs(
        p for n, row in enumerate(given) for p in pairs_from_row(row, f"{where} {n}", n, columns)
    )
