"""Pairs as items to run, and results per item back as sides and margins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reward_lens.backbone import Encoded
from reward_lens.data import Pairs
from reward_lens.signals import ClassifierRM

#: The order of the dimension ``side``.
SIDES = ("chosen", "rejected", "margin")


@dataclass(frozen=True)
class Sides:
    """Both sides of pairs, encoded: items ``0..n-1`` are the chosen, ``n..2n-1`` the rejected."""

    pairs: Pairs
    encoded: list[Encoded]
    read: list[int]

    @classmethod
    def of(cls, signal: ClassifierRM, pairs: Pairs, position: str | None, truncate: str) -> Sides:
        """Encode both sides with the signal's convention."""
        encoded = signal.encoder.encode([*pairs.chosen, *pairs.rejected], truncate)
        return cls(pairs, encoded, signal.read_index(encoded, position))

    def identical(self, pair: int) -> bool:
        """Whether the trunk is given the same for both sides of a pair."""
        a, b = self.encoded[pair], self.encoded[len(self.pairs) + pair]
        if a.types is None or b.types is None:
            return a.types is b.types and np.array_equal(a.ids, b.ids)
        return np.array_equal(a.ids, b.ids) and np.array_equal(a.types, b.types)

    def split(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Turn ``[2n, ...]`` into ``[3, n, ...]``: chosen, rejected, margin."""
        n = len(self.pairs)
        return np.stack([values[:n], values[n:], values[:n] - values[n:]])

    def pair_coords(self) -> dict[str, Any]:
        """Coordinates of the dimension ``pair``."""
        n = len(self.pairs)
        return {
            "pair": self.pairs.ids,
            "lineage": ("pair", self.pairs.lineages),
            "subset": ("pair", self.pairs.subsets),
            "tokens_chosen": ("pair", [len(e.ids) for e in self.encoded[:n]]),
            "tokens_rejected": ("pair", [len(e.ids) for e in self.encoded[n:]]),
        }
