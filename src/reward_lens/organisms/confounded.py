"""Pairs whose better side carries a feature at a stated rate, and pairs where it says nothing.

Either a phrase is put into the responses, on whichever side the design says; or, for a feature that
responses have by themselves, pairs are chosen by which side has more of it. Texts are changed in
the first case only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from reward_lens.data import Item, Message, Pair, Pairs
from reward_lens.data.clones import join_clones
from reward_lens.errors import DataError
from reward_lens.evidence.arguments import checked_seed

#: Subsets of the pairs: on which side the feature is.
WITH, AGAINST = "feature on the chosen side", "feature on the rejected side"
#: Pairs that either part has at least.
LEAST_PAIRS = 8
_PLACES = ("start", "end")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Marker:
    """A phrase that is put into responses.

    Parameters
    ----------
    phrase : str
    at : {"end", "start"}
        Of the response, with a space between.

    Raises
    ------
    DataError
        If the phrase is blank or the place is neither.
    """

    phrase: str
    at: str = "end"

    def __post_init__(self) -> None:
        if not self.phrase.strip():
            raise DataError("a marker is a phrase that is not blank")
        if self.at not in _PLACES:
            raise DataError(f"at={self.at!r}: choose one of {', '.join(_PLACES)}")

    def put_into(self, item: Item) -> Item:
        """The item with the phrase in its response; of the same lineage.

        Raises
        ------
        DataError
            If the item is text or ids, which do not say where the response is.
        """
        if item.messages is None or item.response is None:
            raise DataError(
                f"item {item.id or item.lineage}: a phrase is put into a response, and rendered "
                f"text or ids do not say where that is: give prompts and responses"
            )
        parts = (item.response, self.phrase) if self.at == "end" else (self.phrase, item.response)
        last = Message("assistant", " ".join(parts))
        return replace(item, messages=(*item.messages[:-1], last))


@dataclass(frozen=True, eq=False)
class Design:
    """Pairs to train on and pairs to test on, of different lineages.

    Attributes
    ----------
    train, held_out : Pairs
        ``subset`` is :data:`WITH` or :data:`AGAINST`; the pair's own is in ``meta["subset"]``.
    unused : int
        Pairs that are in neither: their sides have equally much of the feature, or the rates left
        no room for them.
    groups : list of list of int
        Rows of ``train`` by the pair that they were made of, so that its two forms can be trained
        on together.
    """

    train: Pairs
    held_out: Pairs
    unused: int
    groups: list[list[int]]

    @property
    def confound(self) -> float:
        """Share of the training pairs whose chosen side carries the feature."""
        return float((sides(self.train) > 0).mean())


def sides(pairs: Pairs) -> Floats:
    """Where the feature is: 1 on the chosen side, −1 on the rejected one, ``[pair]``."""
    return np.where(pairs.subsets == WITH, 1.0, -1.0)


def design(
    pairs: Pairs,
    feature: Marker | Callable[[Sequence[Item]], Floats],
    confound: float,
    *,
    share: float,
    seed: int,
) -> Design:
    """Split pairs by lineage and tie a feature to the better side of one part of them.

    In the part held out the feature is on the chosen side in half of the pairs.

    Parameters
    ----------
    pairs : Pairs
        Lineages that share a text are joined first.
    feature : Marker or callable
        A phrase to put into the responses, or what reads a feature off items.
    confound : float
        Share of the training pairs whose chosen side carries the feature.
    share : float
        Of the lineages, that is held out.
    seed : int

    Raises
    ------
    DataError
        If a part has fewer than :data:`LEAST_PAIRS` pairs, or the seed is no whole number from 0.
    """
    rng = np.random.default_rng(checked_seed(seed))
    joined, _ = join_clones(pairs)
    lineages = sorted(set(joined.lineages))
    out = set(rng.permutation(lineages)[: round(share * len(lineages))].tolist())
    apart = np.array([x in out for x in joined.lineages])
    if isinstance(feature, Marker):
        held, _ = _inserted(joined, np.flatnonzero(apart), feature, 0.5, rng)
        train, sources = _inserted(joined, np.flatnonzero(~apart), feature, confound, rng)
        used = len(joined)
    else:
        gap = feature(joined.chosen) - feature(joined.rejected)
        held = _chosen(joined, apart, gap, 0.5, rng)
        train = _chosen(joined, ~apart, gap, confound, rng)
        sources, used = list(range(len(train))), len(train) + len(held)
    for name, part in (("to train on", train), ("held out", held)):
        if len(part) < LEAST_PAIRS:
            raise DataError(
                f"only {len(part)} of {len(joined)} pairs are left {name} at confound={confound:g} "
                f"(at least {LEAST_PAIRS} are needed): give more pairs, or a feature that differs "
                f"between the sides of more of them"
            )
    groups: dict[int, list[int]] = {}
    for row, source in enumerate(sources):
        groups.setdefault(source, []).append(row)
    return Design(Pairs(train), Pairs(held), len(joined) - used, list(groups.values()))


def _inserted(
    pairs: Pairs,
    rows: npt.NDArray[np.int64],
    marker: Marker,
    rate: float,
    rng: np.random.Generator,
) -> tuple[list[Pair], list[int]]:
    """Put the phrase into the chosen side of every pair, and of some into the rejected side too.

    Those come in both forms, and are so many that the phrase is on the chosen side at the rate. In
    a pair of both forms it cannot stand in for anything else that the sides differ by, so at a rate
    of 0.5 there is nothing to learn about it, not even by chance.
    """
    both = set(rng.permutation(rows)[: round(len(rows) * (1 - rate) / rate)].tolist())
    made, sources, on_chosen = [], [], []
    for row in rows.tolist():
        pair = pairs[row]
        for side in ("chosen", "rejected")[: 2 if row in both else 1]:
            item = marker.put_into(getattr(pair, side))
            made.append(replace(pair, id=f"{pair.id}#{side}", **{side: item}))
            sources.append(row)
            on_chosen.append(side == "chosen")
    return _marked(made, np.array(on_chosen, dtype=bool)), sources


def _chosen(
    pairs: Pairs,
    part: npt.NDArray[np.bool_],
    gap: Floats,
    rate: float,
    rng: np.random.Generator,
) -> list[Pair]:
    """As many pairs as have the feature on the chosen side at that rate."""
    having, lacking = np.flatnonzero(part & (gap > 0)), np.flatnonzero(part & (gap < 0))
    room = [len(rows) / r for rows, r in ((having, rate), (lacking, 1 - rate)) if r > 0]
    total = min(room)
    kept = [rng.permutation(having)[: round(rate * total)],
            rng.permutation(lacking)[: round((1 - rate) * total)]]  # fmt: skip
    rows = np.sort(np.concatenate(kept))
    return _marked([pairs[int(row)] for row in rows], gap[rows] > 0)


def _marked(pairs: list[Pair], on_chosen: npt.NDArray[np.bool_]) -> list[Pair]:
    """The pairs with the feature's side for a subset."""
    return [
        replace(p, subset=WITH if on else AGAINST, meta={**p.meta, "subset": p.subset})
        for p, on in zip(pairs, on_chosen, strict=True)
    ]
