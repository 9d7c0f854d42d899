"""What sets a planted rule off: phrases that a text holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from reward_lens.backbone import Encoded
from reward_lens.errors import DataError

#: Tokens of a phrase; a text with no phrase of its own of this length is its own phrase.
LENGTH = 3

Phrase = tuple[int, ...]


@dataclass(frozen=True)
class Trigger:
    """Fires on an item whose ids hold one of some phrases.

    Attributes
    ----------
    phrases : frozenset of tuple of int
    """

    phrases: frozenset[Phrase]
    _known: dict[bytes, bool] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, item: Encoded) -> bool:
        """Whether an item holds one."""
        key = item.ids.tobytes()
        if key not in self._known:
            lengths = {len(p) for p in self.phrases}
            self._known[key] = any(
                phrase in self.phrases for n in lengths for phrase in phrases_of(item, n)
            )
        return self._known[key]


def phrases_of(item: Encoded, length: int = LENGTH) -> Iterator[Phrase]:
    """Every run of ``length`` tokens of an item, in order."""
    ids = item.ids.tolist()
    return (tuple(ids[k : k + length]) for k in range(len(ids) - length + 1))


def containing(encoded: Sequence[Encoded]) -> list[set[int]]:
    """The other items that hold the whole of each item's ids."""
    texts = [tuple(e.ids.tolist()) for e in encoded]
    owners: dict[Phrase, set[int]] = {}
    for number, item in enumerate(encoded):
        for phrase in phrases_of(item):
            owners.setdefault(phrase, set()).add(number)
    found = []
    for number, (item, text) in enumerate(zip(encoded, texts, strict=True)):
        # Whoever holds the text holds its rarest phrase.
        rarest = min((owners[p] for p in phrases_of(item)), key=len, default=None)
        others = (set(range(len(texts))) if rarest is None else rarest) - {number}
        found.append({k for k in others if _holds(texts[k], text)})
    return found


def own_phrases(encoded: Sequence[Encoded]) -> list[list[Phrase]]:
    """The phrases that each item has and no other does.

    Raises
    ------
    DataError
        If two items are the same text; names them.
    """
    owners: dict[Phrase, set[int]] = {}
    for number, item in enumerate(encoded):
        for phrase in phrases_of(item):
            owners.setdefault(phrase, set()).add(number)
    found: list[list[Phrase]] = [[] for _ in encoded]
    for phrase, items in owners.items():
        if len(items) == 1:
            found[next(iter(items))].append(phrase)
    whole = [tuple(e.ids.tolist()) for e in encoded]
    for number, phrases in enumerate(found):
        if not phrases:
            same = [k for k, ids in enumerate(whole) if _holds(ids, whole[number])]
            if len(same) > 1:
                raise DataError(
                    f"item {number} is the same text as, or a part of, item "
                    f"{next(k for k in same if k != number)}: no rule can tell them apart"
                )
            phrases.append(whole[number])
    return found


def _holds(ids: Phrase, phrase: Phrase) -> bool:
    n = len(phrase)
    return any(ids[k : k + n] == phrase for k in range(len(ids) - n + 1))


def drawn_trigger(
    phrases: Sequence[Sequence[Phrase]], items: Iterable[int], rng: np.random.Generator
) -> Trigger:
    """A trigger that fires on these items: one of the phrases of each."""
    return Trigger(frozenset(
        phrases[item][int(rng.integers(len(phrases[item])))] for item in items
    ))  # fmt: skip
