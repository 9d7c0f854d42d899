"""The values a row may hold (text, labels, ids, messages), each read or refused by name.

``where`` is the place that an error names (``"pairs.jsonl, line 3"``), ``name`` the field in it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reward_lens.errors import DataError

# What a chat template may print beside role and content. Leaving these out would score another
# text than the row holds.
_RENDERED = ("tool_calls", "tool_call_id", "function_call", "reasoning_content", "thinking", "name")


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


def is_missing(value: Any) -> bool:
    """Whether a cell is empty in the manner of tables: ``None``, a float NaN, or pandas' NA."""
    if value is None or (isinstance(value, float) and value != value):
        return True
    return type(value).__name__ in ("NAType", "NaTType")


def present(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the cells of a row that hold something, by column name."""
    return {str(k): v for k, v in row.items() if not is_missing(v)}


def text_of(value: Any, where: str, name: str) -> str:
    """Return a text field as it stands.

    Raises
    ------
    DataError
        If it is no text, blank, or holds half a surrogate pair, which no tokenizer can read.
    """
    if not isinstance(value, str):
        raise DataError(f"{where}: {name} is a {type(value).__name__}, expected text")
    if not value.strip():
        raise DataError(f"{where}: {name} is empty; give it text or leave the row out")
    _check_encodable(value, where, name)
    return value


def _check_encodable(value: str, where: str, name: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: {name} holds the lone surrogate {value[error.start]!r} at character "
            f"{error.start}, which is no text; remove it"
        ) from error


def label_of(value: Any, where: str, name: str) -> str:
    """Return a label (an id, a subset, a lineage) as text; an integer is one too.

    Raises
    ------
    DataError
        For any other type: a float ``3.0`` is most often an integer column with gaps in it; for
        text that no file could hold.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int, np.integer)):
        raise DataError(
            f"{where}: {name} is a {type(value).__name__}, expected a label (text or an integer)"
        )
    _check_encodable(str(value), where, name)
    return str(value)


def ids_of(value: Any, where: str, name: str, mask: Any = None) -> tuple[int, ...]:
    """Return a row of token ids; those whose ``mask`` is 0 are padding and are left out.

    Raises
    ------
    DataError
        If it is not one row of integers ≥ 0 with at least one left.
    """
    refusal = f"{where}: {name} must be one non-empty row of integers"
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of unequal length
        raise DataError(refusal) from error
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size == 0:
        raise DataError(refusal)
    if mask is not None:
        keep = np.asarray(mask)
        if keep.shape != array.shape or not np.isin(keep, (0, 1)).all():
            raise DataError(
                f"{where}: the attention mask of {name} must hold a 0 or 1 for each of its "
                f"{array.size} ids"
            )
        array = array[keep.astype(bool)]
        if array.size == 0:
            raise DataError(f"{where}: the attention mask of {name} leaves no id")
    if (array < 0).any():
        raise DataError(f"{where}: {name} holds the negative id {array.min()}, which is no token")
    return tuple(array.tolist())


def messages_of(value: Any, where: str, name: str) -> tuple[Message, ...]:
    """Return a list of ``{"role", "content"}`` turns as messages.

    Fields of a turn that templates do not print (scores, timestamps) do not count.

    Raises
    ------
    DataError
        Naming the turn; content in parts (images, tool calls) is refused, not flattened.
    """
    if not isinstance(value, (list, tuple, np.ndarray)) or len(value) == 0:
        raise DataError(f"{where}: {name} must be a non-empty list of messages")
    return tuple(_message(m, where, f"{name}, turn {k}") for k, m in enumerate(value))


def _message(value: Any, where: str, name: str) -> Message:
    if isinstance(value, Message):
        value = {"role": value.role, "content": value.content}
    if not isinstance(value, Mapping) or "role" not in value or "content" not in value:
        raise DataError(f"{where}: {name} is no message with role and content")
    role, content = value["role"], value["content"]
    if isinstance(content, (list, tuple, np.ndarray)):
        raise DataError(
            f"{where}: {name}: content is a list of parts; join its text into one string "
            f"(images and other parts cannot be scored)"
        )
    if not isinstance(role, str) or not isinstance(content, str):
        raise DataError(
            f"{where}: {name}: role and content must be text, got "
            f"{type(role).__name__} and {type(content).__name__}"
        )
    for field in _RENDERED:
        extra: Any = value.get(field)
        if not is_missing(extra) and (not hasattr(extra, "__len__") or len(extra)):
            raise DataError(
                f"{where}: {name} has the field {field!r}, which a template may print and which is "
                f"not supported; render the text yourself and give it as text"
            )
    _check_encodable(content, where, name)
    return Message(role, content)


def prompt_of(value: Any, where: str, name: str) -> tuple[Message, ...]:
    """Return a prompt (text: one user turn; or messages) as turns.

    Raises
    ------
    DataError
        If it is neither, or blank text.
    """
    if isinstance(value, str):
        return (Message("user", text_of(value, where, name)),)
    if isinstance(value, (list, tuple, np.ndarray)):
        return messages_of(value, where, name)
    raise DataError(f"{where}: {name} is a {type(value).__name__}, expected text or messages")


def response_of(value: Any, where: str, name: str) -> str:
    """Return a response: text, the assistant's message, or a list with just that message.

    Raises
    ------
    DataError
        If it is anything else, or blank.
    """
    if isinstance(value, (Mapping, Message)):
        value = [value]
    if isinstance(value, (list, tuple, np.ndarray)):
        turns = messages_of(value, where, name)
        if len(turns) != 1 or turns[0].role != "assistant":
            raise DataError(
                f"{where}: beside a prompt, {name} must be text or the assistant's one message; it "
                f"has turns {[m.role for m in turns]}"
            )
        value = turns[0].content
    return text_of(value, where, name)


def conversation_of(value: Any, where: str, name: str) -> tuple[Message, ...]:
    """Return messages that hold a prompt and, as the last turn, the response.

    Raises
    ------
    DataError
        If the last turn is not the assistant's, is blank, or has nothing before it.
    """
    turns = messages_of(value, where, name)
    if turns[-1].role != "assistant":
        raise DataError(
            f"{where}: {name}: the last turn must be the response (role 'assistant'), it is "
            f"{turns[-1].role!r}"
        )
    if len(turns) < 2:
        raise DataError(f"{where}: {name} needs a prompt before the response")
    text_of(turns[-1].content, where, f"{name}, the response")
    return turns


def whole_numbers(value: Iterable[Any]) -> tuple[int, ...]:
    """Return ids as Python integers, whatever integer type they came in.

    Raises
    ------
    DataError
        If one is no integer, or there are none.
    """
    try:
        ids = tuple(operator.index(i) for i in value)
    except TypeError as error:
        raise DataError(f"the ids of an item must be integers ({error})") from error
    return ids_of(ids, "an item", "ids")


def rows_of(given: Any, kind: str, one: str) -> Iterable[Any]:
    """Return the rows of a list, iterator, DataFrame or ``datasets.Dataset``.

    Parameters
    ----------
    given : object
    kind : str
        What the rows are (``"items"``), for errors.
    one : str
        How one row is written, for errors.

    Raises
    ------
    DataError
        If it has no order, is a single row, or is no collection of rows.
    """
    if isinstance(given, Mapping) and any(hasattr(v, "column_names") for v in given.values()):
        raise DataError(
            f"expected a list of {kind}, got the splits {list(given)}; pass one of them"
        )
    if isinstance(given, (str, bytes, Mapping)):
        raise DataError(
            f"expected a list of {kind}, got one {type(given).__name__}; put it in a list"
        )
    if isinstance(given, tuple) and given and all(isinstance(x, str) for x in given):
        raise DataError(
            f"expected a list of {kind}, got one tuple of {len(given)} texts; put it in a list, "
            f"as in [{one}]"
        )
    if isinstance(given, (list, tuple)) and given and all(map(_is_turn, given)):
        raise DataError(f"expected a list of {kind}, got one conversation; put it in a list")
    if hasattr(given, "to_dict") and hasattr(given, "iloc"):  # a DataFrame
        refuse_repeated([str(c) for c in given.columns], "the table")
        rows: Iterable[Any] = given.to_dict(orient="records")
        return rows
    if not isinstance(given, Iterable) or isinstance(given, (set, frozenset)):
        raise DataError(f"expected a list of {kind}, got {type(given).__name__}")
    return given


def _is_turn(value: Any) -> bool:
    return isinstance(value, Message) or (
        isinstance(value, Mapping) and "role" in value and "content" in value
    )


def refuse_repeated(columns: Iterable[str], where: str) -> None:
    """Refuse two columns of one name, of which one would be lost without a word."""
    columns = list(columns)
    repeated = sorted({c for c in columns if columns.count(c) > 1})
    if repeated:
        raise DataError(f"{where} has {repeated[0]!r} twice; rename or drop one")
