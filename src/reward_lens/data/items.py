"""Items: the things a signal scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reward_lens.errors import DataError
from reward_lens.evidence import canonical, fingerprint


@dataclass(frozen=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True)
class Item:
    """One thing to score: a conversation whose last turn is the response, rendered text, or ids.

    Exactly one of the three is given; :meth:`of` builds the first from a prompt and a response.

    Parameters
    ----------
    messages : tuple of Message, optional
        The last one is the response and has the role ``assistant``.
    text : str, optional
        Already rendered: tokenised as it stands.
    ids : tuple of int, optional
        Already ids: used as they are.
    lineage : str
        The source row it was derived from; by default a hash of the prompt (or of the content).
    id : str, optional
    """

    messages: tuple[Message, ...] | None = None
    text: str | None = None
    ids: tuple[int, ...] | None = None
    lineage: str = ""
    id: str | None = None

    def __post_init__(self) -> None:
        given = [x is not None for x in (self.messages, self.text, self.ids)]
        if sum(given) != 1:
            raise DataError("an item has exactly one of messages, text and ids")
        if not self.lineage:
            object.__setattr__(self, "lineage", self._default_lineage())

    def _default_lineage(self) -> str:
        if self.messages is not None:
            return content_hash([[m.role, m.content] for m in self.messages[:-1]])[:16]
        return content_hash(self.text if self.text is not None else list(self.ids or ()))[:16]

    @classmethod
    def of(
        cls,
        prompt: str | Sequence[Message],
        response: str | Message,
        *,
        lineage: str = "",
        id: str | None = None,
    ) -> Item:
        """Build an item from a prompt (text or turns) and a response (text or a turn)."""
        turns = (Message("user", prompt),) if isinstance(prompt, str) else tuple(prompt)
        last = Message("assistant", response) if isinstance(response, str) else response
        return cls(messages=(*turns, last), lineage=lineage, id=id)

    @property
    def prompt(self) -> tuple[Message, ...] | None:
        """The turns before the response; ``None`` for text and ids."""
        return self.messages[:-1] if self.messages is not None else None

    @property
    def response(self) -> str | None:
        """The response's text; ``None`` for text and ids."""
        return self.messages[-1].content if self.messages is not None else None

    @property
    def prompt_text(self) -> str:
        """The prompt for display: its text, or its turns one after the other."""
        turns = self.prompt or ()
        if len(turns) == 1:
            return turns[0].content
        return "\n\n".join(f"{m.role}: {m.content}" for m in turns)

    def content(self) -> Any:
        """What decides the score, as JSON."""
        if self.messages is not None:
            return {"messages": [[m.role, m.content] for m in self.messages]}
        return {"text": self.text} if self.text is not None else {"ids": list(self.ids or ())}


def content_hash(value: Any) -> str:
    """Hash a JSON-like value."""
    return fingerprint(canonical(value))


def items_fingerprint(items: Iterable[Item]) -> str:
    """Hash of contents and lineages, in order."""
    return content_hash([[x.content(), x.lineage] for x in items])


def as_items(given: Any) -> list[Item]:
    """Turn a sequence of items in any accepted form into items; see :func:`as_item`.

    Raises
    ------
    DataError
        Naming the position and what is wrong.
    """
    if isinstance(given, (str, bytes, Mapping, Item)):
        raise DataError(
            f"expected a list of items, got one {type(given).__name__}; put it in a list"
        )
    if hasattr(given, "to_dict") and hasattr(given, "columns"):  # a DataFrame
        given = given.to_dict(orient="records")
    if not isinstance(given, Iterable):
        raise DataError(f"expected a list of items, got {type(given).__name__}")
    items = [as_item(x, f"item {i}") for i, x in enumerate(given)]
    if not items:
        raise DataError("there are no items to score")
    return items


def as_item(x: Any, where: str = "item 0") -> Item:
    """Turn one item in any accepted form into an :class:`Item`.

    Parameters
    ----------
    x : Item, (prompt, response), mapping or list of messages
        A mapping has ``prompt`` and ``response``, or ``messages``, or ``text``, or ``ids`` /
        ``input_ids`` (with an ``attention_mask``, masked ids are dropped). A prompt is text or a
        list of messages.
    where : str
        Named in errors.

    Raises
    ------
    DataError
        For anything else; nothing is guessed into an item.
    """
    if isinstance(x, Item):
        return x
    if isinstance(x, str):
        raise DataError(
            f"{where} is a bare string, which could be a prompt or a response: give "
            f"(prompt, response), or Item(text=...) for text that is already rendered"
        )
    if isinstance(x, Mapping):
        return _from_mapping(x, where)
    if isinstance(x, (tuple, list)):
        if x and all(isinstance(m, (Mapping, Message)) for m in x):
            return _conversation(x, where, None, "")
        if len(x) == 2:
            return _from_prompt(x[0], x[1], where, None, "")
        raise DataError(
            f"{where} is a {type(x).__name__} of {len(x)}; an item is (prompt, response). "
            f"A (prompt, chosen, rejected) triple is a pair, not an item."
        )
    raise DataError(f"{where} is a {type(x).__name__}; an item is (prompt, response)")


def _from_mapping(x: Mapping[str, Any], where: str) -> Item:
    label = x.get("id")
    id_ = str(label) if label is not None else None
    lineage = str(x.get("lineage") or "")
    if x.get("messages") is not None:
        return _conversation(x["messages"], where, id_, lineage)
    if x.get("prompt") is not None or x.get("response") is not None:
        for name in ("prompt", "response"):
            if x.get(name) is None:
                raise DataError(f"{where} has no field {name!r}")
        return _from_prompt(x["prompt"], x["response"], where, id_, lineage)
    if x.get("text") is not None:
        return Item(text=text_of(x["text"], where, "text"), id=id_, lineage=lineage)
    ids = x.get("ids", x.get("input_ids"))
    if ids is not None:
        return Item(ids=_ids(ids, x.get("attention_mask"), where), id=id_, lineage=lineage)
    raise DataError(
        f"{where} has fields {sorted(map(str, x))}; expected prompt and response, or messages, or "
        f"text, or ids"
    )


def _ids(ids: Any, mask: Any, where: str) -> tuple[int, ...]:
    array = np.asarray(ids)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size == 0:
        raise DataError(f"{where}: ids must be one non-empty row of integers")
    if mask is not None:
        keep = np.asarray(mask)
        if keep.shape != array.shape:
            raise DataError(f"{where}: attention_mask has shape {keep.shape}, ids {array.shape}")
        array = array[keep.astype(bool)]
    return tuple(int(i) for i in array)


def _from_prompt(prompt: Any, response: Any, where: str, id_: str | None, lineage: str) -> Item:
    turns: tuple[Message, ...]
    if isinstance(prompt, str):
        turns = (Message("user", text_of(prompt, where, "prompt")),)
    elif isinstance(prompt, (list, tuple)):
        turns = messages_of(prompt, where, "prompt")
    else:
        raise DataError(f"{where}: prompt is a {type(prompt).__name__}, expected text or messages")
    return Item.of(turns, text_of(response, where, "response"), id=id_, lineage=lineage)


def _conversation(messages: Any, where: str, id_: str | None, lineage: str) -> Item:
    turns = messages_of(messages, where, "messages")
    if turns[-1].role != "assistant":
        raise DataError(
            f"{where}: the last turn must be the response (role 'assistant'), it is "
            f"{turns[-1].role!r}"
        )
    if len(turns) < 2:
        raise DataError(f"{where}: a conversation needs a prompt before the response")
    text_of(turns[-1].content, where, "response")
    return Item(messages=turns, id=id_, lineage=lineage)


def text_of(value: Any, where: str, name: str) -> str:
    """Return a text field, or refuse it.

    Raises
    ------
    DataError
        If it is no text, or blank.
    """
    if not isinstance(value, str):
        raise DataError(f"{where}: {name} is a {type(value).__name__}, expected text")
    if not value.strip():
        raise DataError(f"{where}: {name} is empty")
    return value


def messages_of(value: Any, where: str, name: str) -> tuple[Message, ...]:
    """Return a list of ``{"role", "content"}`` turns as messages, or refuse it.

    Raises
    ------
    DataError
        Naming the turn.
    """
    if not isinstance(value, (list, tuple, np.ndarray)) or len(value) == 0:
        raise DataError(f"{where}: {name} must be a non-empty list of messages")
    turns = []
    for k, m in enumerate(value):
        if isinstance(m, Message):
            turns.append(m)
            continue
        if not isinstance(m, Mapping) or "role" not in m or "content" not in m:
            raise DataError(f"{where}: {name}, turn {k} is no message with role and content")
        role, content = m["role"], m["content"]
        if not isinstance(role, str) or not isinstance(content, str):
            raise DataError(
                f"{where}: {name}, turn {k}: role and content must be text, got "
                f"{type(role).__name__} and {type(content).__name__}"
            )
        turns.append(Message(role, content))
    return tuple(turns)
