"""Pairs as rows that :func:`~reward_lens.load_pairs` reads back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reward_lens.data.fields import Message
from reward_lens.data.items import Item
from reward_lens.data.pairs import Pair


def pair_row(pair: Pair) -> dict[str, Any]:
    """A pair as JSON: id, subset, lineage, source, prompt, and what is scored on each side.

    Other columns of the row that it was read from are not written: under their names they could be
    taken for the prompt or a side.

    Returns
    -------
    dict
        ``prompt``, ``chosen`` and ``rejected`` of conversations (a prompt of one turn of the user
        as text, else as messages), ``text_chosen`` and ``text_rejected`` of rendered text,
        ``input_ids_chosen`` and ``input_ids_rejected`` of ids. Where the two sides have different
        prompts, each is a whole conversation, which :func:`~reward_lens.load_pairs` refuses.
    """
    row: dict[str, Any] = {"id": pair.id, "subset": pair.subset, "lineage": pair.lineage}
    if pair.source:
        row["source"] = pair.source
    common = pair.prompt if pair.chosen.prompt == pair.rejected.prompt else None
    if common is not None:
        row["prompt"] = _prompt(common)
    for side, item in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        row |= _side(side, item, whole=common is None)
    return row


def _prompt(turns: tuple[Message, ...]) -> str | list[Mapping[str, str]]:
    one = turns[0]
    if len(turns) == 1 and one.role == "user" and one.content.strip():
        return one.content
    return _messages(turns)


def _messages(turns: tuple[Message, ...]) -> list[Mapping[str, str]]:
    return [{"role": m.role, "content": m.content} for m in turns]


def _side(side: str, item: Item, *, whole: bool) -> dict[str, Any]:
    if item.messages is not None:
        return {side: _messages(item.messages) if whole else item.response}
    if item.text is not None:
        return {f"text_{side}": item.text}
    return {f"input_ids_{side}": list(item.ids or ())}
