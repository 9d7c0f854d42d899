"""Exact clones: the same text twice, up to case, spacing and Unicode form.

A text that stands in a file twice is not two observations. Clones are always counted; lineages that
share one can be joined, so that statistics count it once.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from reward_lens.data.items import Item, content_hash
from reward_lens.data.pairs import Pairs


@dataclass(frozen=True)
class CloneCount:
    """How many pairs repeat another.

    Attributes
    ----------
    pairs : int
        Pairs whose two texts stood in an earlier pair already, on whichever sides.
    reversed : int
        Of those, the ones whose sides are exchanged: they contradict the earlier pair.
    lineages_joined : int
        Lineages that share a text with another one and are counted with it.
    """

    pairs: int
    reversed: int
    lineages_joined: int


def normalised(text: str) -> str:
    """The text in Unicode form NFKC, without case, with single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def clone_key(item: Item) -> str:
    """Hash of an item's normalised content; ids are compared as they are."""
    if item.messages is not None:
        return content_hash([[m.role, normalised(m.content)] for m in item.messages])
    return content_hash(normalised(item.text) if item.text is not None else list(item.ids or ()))


def join_clones(pairs: Pairs) -> tuple[Pairs, CloneCount]:
    """Join the lineages that share a text, and count the clones.

    Returns
    -------
    pairs : Pairs
        All of them, in order; each joined lineage has the label that came first. The same object
        if nothing was joined.
    count : CloneCount
    """
    chosen, rejected = ([clone_key(x) for x in side] for side in (pairs.chosen, pairs.rejected))
    seen: dict[frozenset[str], str] = {}
    again = turned = 0
    for one, other in zip(chosen, rejected, strict=True):
        first = seen.setdefault(frozenset((one, other)), one)
        again += 1
        turned += first != one
    again -= len(seen)
    before = [str(x) for x in pairs.lineages]
    after = _joined([*chosen, *rejected], [*before, *before])[: len(pairs)]
    joined = len(set(before)) - len(set(after))
    count = CloneCount(again, turned, joined)
    if not joined:
        return pairs, count
    changed = (
        replace(
            pair,
            lineage=lineage,
            chosen=replace(pair.chosen, lineage=lineage),
            rejected=replace(pair.rejected, lineage=lineage),
        )
        if lineage != pair.lineage
        else pair
        for pair, lineage in zip(pairs, after, strict=True)
    )
    return Pairs(changed), count


def _joined(keys: Sequence[str], lineages: Sequence[str]) -> list[str]:
    """The label of each row's lineage once lineages that share a key are one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    codes, names = pd.factorize(np.asarray(lineages, dtype=object))
    texts = pd.factorize(np.asarray(keys, dtype=object))[0]
    size = len(names) + int(texts.max()) + 1
    links = coo_array((np.ones(len(codes)), (codes, texts + len(names))), shape=(size, size))
    _, part = connected_components(links, directed=False)
    first: dict[int, str] = {}
    return [first.setdefault(int(part[c]), str(names[c])) for c in codes]
