"""Items: the things a signal scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    whole_numbers,
)
from reward_lens.errors import DataError
from reward_lens.evidence import canonical, fingerprint


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

    Raises
    ------
    DataError
        If not exactly one of the three is given, or it is empty or of the wrong type.
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
        if self.messages is not None:
            turns = conversation_of(self.messages, "an item", "messages")
            object.__setattr__(self, "messages", turns)
        elif self.text is not None:
            text_of(self.text, "an item", "text")
        elif self.ids is not None:
            object.__setattr__(self, "ids", whole_numbers(self.ids))
        if not self.lineage:
            object.__setattr__(self, "lineage", self._default_lineage())

    def _default_lineage(self) -> str:
        if self.messages is not None:
            return lineage_of(self.messages[:-1])
        return content_hash(self.text if self.text is not None else list(self.ids or ()))[:16]

    @classmethod
    def of(
        cls,
        prompt: str | Sequence[Message | Mapping[str, Any]],
        response: str | Message,
        *,
        lineage: str = "",
        id: str | None = None,
    ) -> Item:
        """Build an item from a prompt (text or turns) and a response (text or a turn)."""
        turns = (
            (Message("user", prompt),)
            if isinstance(prompt, str)
            else messages_of(prompt, "an item", "prompt")
        )
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


def lineage_of(prompt: Iterable[Message]) -> str:
    """Return the lineage of all responses to a prompt: a short hash of its turns."""
    return content_hash([[m.role, m.content] for m in prompt])[:16]


def items_fingerprint(items: Iterable[Item]) -> str:
    """Hash of contents and lineages, in order."""
    return content_hash([[x.content(), x.lineage] for x in items])


def as_items(given: Any) -> list[Item]:
    """Turn items in any accepted form into a list of :class:`Item`; see :func:`as_item`.

    Parameters
    ----------
    given : list, tuple, iterator, DataFrame or datasets.Dataset
        One item alone is refused: it belongs in a list.

    Raises
    ------
    DataError
        Naming the position and what is wrong.
    """
    if isinstance(given, Item):
        raise DataError("expected a list of items, got one Item; put it in a list")
    rows = rows_of(given, "items", "(prompt, response)")
    items = [as_item(x, f"item {i}") for i, x in enumerate(rows)]
    if not items:
        raise DataError("there are no items to score")
    return items


def as_item(x: Any, where: str = "item 0") -> Item:
    """Turn one item in any accepted form into an :class:`Item`.

    Parameters
    ----------
    x : Item, (prompt, response), mapping or list of messages
        A mapping has ``prompt`` and ``response``, or ``messages``, or ``text``, or ``ids`` /
        ``input_ids`` (with an ``attention_mask``, masked ids are dropped), and may have ``id`` and
        ``lineage``. A prompt is text or a list of messages; a response is text or the assistant's
        one message.
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
            return Item(messages=conversation_of(x, where, "messages"))
        if len(x) == 2:
            return Item.of(prompt_of(x[0], where, "prompt"), response_of(x[1], where, "response"))
        raise DataError(
            f"{where} is a {type(x).__name__} of {len(x)}; an item is (prompt, response). "
            f"A (prompt, chosen, rejected) triple is a pair, not an item."
        )
    if hasattr(x, "chosen") and hasattr(x, "rejected"):
        raise DataError(f"{where} is a pair; its items are pair.chosen and pair.rejected")
    raise DataError(f"{where} is a {type(x).__name__}; an item is (prompt, response)")


#: The columns that hold what is scored; a row has those of one line only.
_FORMS = (("response",), ("messages",), ("text",), ("ids", "input_ids"))


def _from_mapping(x: Mapping[Any, Any], where: str) -> Item:
    row = present(x)
    found = [n for names in _FORMS for n in names if n in row]
    if not found and "prompt" in row:
        raise DataError(f"{where} has no field 'response' beside the prompt")
    if not found:
        raise DataError(
            f"{where} has fields {sorted(map(str, x))}; expected prompt and response, or messages, "
            f"or text, or ids"
        )
    if len(found) > 1 or ("prompt" in row and found != ["response"]):
        names = sorted({*found, *(["prompt"] if "prompt" in row else [])})
        raise DataError(
            f"{where} has {' and '.join(map(repr, names))}, so it is not clear what is scored; "
            f"leave prompt and response, or messages, or text, or ids"
        )
    (name,) = found
    id_ = label_of(row["id"], where, "id") if "id" in row else None
    lineage = label_of(row["lineage"], where, "lineage") if "lineage" in row else ""
    if name == "response":
        if "prompt" not in row:
            raise DataError(f"{where} has no field 'prompt' beside the response")
        turns = prompt_of(row["prompt"], where, "prompt")
        response = response_of(row[name], where, name)
        return Item.of(turns, response, id=id_, lineage=lineage)
    if name == "messages":
        return Item(messages=conversation_of(row[name], where, name), id=id_, lineage=lineage)
    if name == "text":
        return Item(text=text_of(row[name], where, name), id=id_, lineage=lineage)
    ids = ids_of(row[name], where, name, row.get("attention_mask"))
    return Item(ids=ids, id=id_, lineage=lineage)
