"""Which items are longer than a model reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reward_lens.signals.classifier import ClassifierRM


def too_long(signal: ClassifierRM, items: Iterable[Any], truncate: str) -> dict[int, int]:
    """Items that would be refused for their length, and how many tokens each has.

    Parameters
    ----------
    items : iterable
        As :meth:`~reward_lens.ClassifierRM.score` takes them.
    truncate : {"error", "left", "right"}
        With ``"left"`` or ``"right"`` an item is cut, so that none is too long.

    Returns
    -------
    dict of int to int
        Index among the items -> number of tokens, in order.

    Raises
    ------
    DataError, TokenizeError
        Naming the item.
    """
    limit = signal.meta.max_length
    if truncate != "error" or limit is None:
        return {}
    # Cutting nothing here: an item that would be cut is what is looked for.
    encoded = signal.encode(items, truncate="right")
    return {k: limit + e.cut for k, e in enumerate(encoded) if e.cut}
