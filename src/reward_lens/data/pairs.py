"""Pairs: one prompt, a chosen and a rejected response."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from reward_lens.data.fields import Message
from reward_lens.data.items import Item, content_hash
from reward_lens.errors import DataError
from reward_lens.evidence.arguments import checked_count, checked_seed


@dataclass(frozen=True)
class Pair:
    """One prompt with the preferred and the other response.

    Attributes
    ----------
    chosen, rejected : Item
    id, lineage, subset, source : str
    meta : mapping
        Other scalar columns of the row.
    """

    chosen: Item
    rejected: Item
    id: str
    lineage: str
    subset: str = "all"
    source: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt(self) -> tuple[Message, ...] | None:
        """The turns before the response."""
        return self.chosen.prompt


class Pairs(Sequence[Pair]):
    """An immutable sequence of pairs.

    Parameters
    ----------
    pairs : iterable of Pair

    Raises
    ------
    DataError
        If there are none, or two share an id.
    """

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._pairs = tuple(pairs)
        if not self._pairs:
            raise DataError("there are no pairs")
        seen: set[str] = set()
        for p in self._pairs:
            if p.id in seen:
                raise DataError(f"two pairs have the id {p.id!r}")
            seen.add(p.id)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> Pairs: ...
    def __getitem__(self, index: int | slice) -> Pair | Pairs:
        found = self._pairs[index]
        return Pairs(found) if isinstance(found, tuple) else found

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._pairs)

    def __repr__(self) -> str:
        return f"<{len(self)} pairs of {len(set(self.lineages))} lineages in {self.subset_counts}>"

    @property
    def fingerprint(self) -> str:
        """Hash of contents and lineages, in order."""
        return content_hash([[p.chosen.content(), p.rejected.content(), p.lineage] for p in self])

    @property
    def ids(self) -> list[str]:
        """Id of every pair."""
        return [p.id for p in self]

    @property
    def lineages(self) -> npt.NDArray[np.object_]:
        """Lineage of every pair, by which statistics cluster."""
        return np.array([p.lineage for p in self], dtype=object)

    @property
    def subsets(self) -> npt.NDArray[np.object_]:
        """Subset of every pair."""
        return np.array([p.subset for p in self], dtype=object)

    @property
    def subset_counts(self) -> dict[str, int]:
        """Number of pairs per subset, in order of appearance."""
        counts: dict[str, int] = {}
        for p in self:
            counts[p.subset] = counts.get(p.subset, 0) + 1
        return counts

    @property
    def chosen(self) -> list[Item]:
        """The chosen item of every pair."""
        return [p.chosen for p in self]

    @property
    def rejected(self) -> list[Item]:
        """The rejected item of every pair."""
        return [p.rejected for p in self]

    def select(self, indices: Iterable[int]) -> Pairs:
        """The pairs at these indices, in the order given."""
        return Pairs(self._pairs[i] for i in indices)

    def subset(self, which: str | npt.ArrayLike) -> Pairs:
        """The pairs of one subset, or those where a mask is true.

        Parameters
        ----------
        which : str or array of bool, shape (n,)

        Raises
        ------
        DataError
            If there is none, or the mask does not have one bool for each pair.
        """
        if isinstance(which, str):
            found = [p for p in self if p.subset == which]
            if not found:
                raise DataError(
                    f"no pair is of subset {which!r}; there are {list(self.subset_counts)}"
                )
            return Pairs(found)
        mask = np.asarray(which)
        if mask.dtype != np.bool_ or mask.shape != (len(self),):
            raise DataError(
                f"a mask of these pairs has {len(self)} values of dtype bool, this one has shape "
                f"{mask.shape} and dtype {mask.dtype}"
            )
        return self.select(np.flatnonzero(mask).tolist())

    def sample(self, n: int, seed: int = 0, *, stratify: bool = True) -> Pairs:
        """A seeded sample without replacement, in the original order.

        Parameters
        ----------
        n : int
            Size; all pairs if there are no more.
        seed : int
        stratify : bool
            Draw from every subset in proportion to its size, rounded by largest remainder.

        Raises
        ------
        DataError
            If ``n`` is no whole number from 1, or the seed none from 0.
        """
        n, seed = checked_count("n", n, 1), checked_seed(seed)
        if n >= len(self):
            return self
        rng = np.random.default_rng(seed)
        if not stratify:
            return self.select(sorted(rng.choice(len(self), size=n, replace=False).tolist()))
        subsets, counts = self.subsets, self.subset_counts
        exact = {s: n * c / len(self) for s, c in counts.items()}
        take = {s: int(e) for s, e in exact.items()}
        rest = sorted(exact, key=lambda s: (take[s] - exact[s], s))
        for s in rest[: n - sum(take.values())]:
            take[s] += 1
        kept: list[int] = []
        for s, k in take.items():
            (where,) = np.nonzero(subsets == s)
            kept.extend(rng.choice(where, size=k, replace=False).tolist())
        return self.select(sorted(kept))

    def split(
        self, parts: Mapping[str, Sequence[str]], *, partial: bool = False
    ) -> dict[str, Pairs]:
        """Part the pairs by lists of ids; pairs that no part lists are in none.

        Parameters
        ----------
        parts : mapping of name to ids
        partial : bool
            Allow ids that are not among these pairs (a split file may cover more than was loaded);
            a part that none of the pairs is in then does not appear.

        Raises
        ------
        DataError
            If a part is no list of ids, two parts share an id, an id is unknown (and ``partial``
            is off), or no pair is in any part.
        """
        owner: dict[str, str] = {}
        known = set(self.ids)
        for name, ids in parts.items():
            if not isinstance(ids, (list, tuple)) or not all(isinstance(i, str) for i in ids):
                raise DataError(f"split part {name!r} is no list of pair ids")
            for i in ids:
                if owner.setdefault(i, name) != name:
                    raise DataError(f"id {i!r} is in two parts, {owner[i]!r} and {name!r}")
        found = {name: [p for p in self if owner.get(p.id) == name] for name in parts}
        if not any(found.values()):
            raise DataError("none of the pairs' ids is in the split")
        unknown = [i for i in owner if i not in known]
        if unknown and not partial:
            raise DataError(
                f"{len(unknown)} of the split's {len(owner)} ids are not among the {len(self)} "
                f"pairs (first: {unknown[0]!r}); pass partial=True if the split covers more"
            )
        return {name: Pairs(part) for name, part in found.items() if part}
