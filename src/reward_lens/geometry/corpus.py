"""What two signals are compared on: distinct items, the prompt and the lineage of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reward_lens.data import Item, Pairs, as_items, as_pairs, items_fingerprint
from reward_lens.data.items import content_hash
from reward_lens.errors import DataError

Labels = npt.NDArray[np.object_]


@dataclass(frozen=True)
class Corpus:
    """Distinct items in order of appearance.

    Attributes
    ----------
    items : list of Item
    prompts, lineages : ndarray of object, [item]
        Whose response an item is, and the source it was derived from. Text that is already
        rendered, and ids, do not say where the prompt ends: there the lineage stands for it.
    repeated : int
        Items that stood in the corpus already and are not counted again.
    places : ndarray of int
        For each item as given (of pairs: all chosen, then all rejected), its entry here.
    """

    items: list[Item]
    prompts: Labels
    lineages: Labels
    repeated: int
    places: npt.NDArray[np.int64]

    @property
    def fingerprint(self) -> str:
        """Hash of contents and lineages, in order."""
        return items_fingerprint(self.items)


def corpus_of(given: Any) -> Corpus:
    """Make a corpus of pairs or of items.

    Parameters
    ----------
    given : Pairs, or anything that as_pairs or as_items takes

    Raises
    ------
    DataError
        If it is neither; what is wrong with it as items is said.
    """
    if isinstance(given, Iterator):
        given = list(given)
    items, prompts, lineages = _rows(given)
    first: dict[tuple[str, str], int] = {}
    places: list[int] = []
    kept: list[int] = []
    for k, item in enumerate(items):
        key = (content_hash(item.content()), lineages[k])
        if key not in first:
            first[key] = len(kept)
            kept.append(k)
        places.append(first[key])
    return Corpus(
        items=[items[k] for k in kept],
        prompts=np.array([prompts[k] for k in kept], dtype=object),
        lineages=np.array([lineages[k] for k in kept], dtype=object),
        repeated=len(items) - len(kept),
        places=np.array(places),
    )


def _rows(given: Any) -> tuple[list[Item], list[str], list[str]]:
    pairs = _as_pairs(given)
    if pairs is None:
        items = as_items(given)
        lineages = [x.lineage for x in items]
    else:
        items, lineages = [*pairs.chosen, *pairs.rejected], [*map(str, pairs.lineages)] * 2
    return items, [_prompt(x, at) for x, at in zip(items, lineages, strict=True)], lineages


def _as_pairs(given: Any) -> Pairs | None:
    """The pairs, or ``None`` where these are items."""
    if isinstance(given, Pairs):
        return given
    if isinstance(given, (list, tuple)):
        return as_pairs(given) if given and _pair_like(given[0]) else None
    try:
        return as_pairs(given)
    except DataError:
        return None  # a table of items, or neither: then what as_items says of it counts


def _pair_like(row: Any) -> bool:
    if isinstance(row, Mapping):
        return "response" not in row and "messages" not in row and "text" not in row
    if isinstance(row, Item):
        return False
    if isinstance(row, (list, tuple)):
        return len(row) == 3 and not isinstance(row[0], Mapping)
    return True


def _prompt(item: Item, lineage: str) -> str:
    turns = item.prompt
    if turns is None:
        return lineage
    return content_hash([[m.role, m.content] for m in turns])
