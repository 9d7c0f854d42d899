"""Which token of one side of a pair stands beside which of the other: by a diff of the ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import numpy.typing as npt

from reward_lens.backbone import MEAN, Position
from reward_lens.errors import CapabilityError, DataError
from reward_lens.instruments.sides import Sides

#: The kinds of tokens that can be patched, with the words that describe them.
POSITIONS = {
    "final": "each side's own read token",
    "aligned": "every token that a diff of the ids pairs with one of the other side",
    "all": "every token, where both sides have the same number",
    "index": "one token index of both sides",
    "span": "a half-open span of token indices of both sides",
}

#: What names the tokens to patch: a word, an index, ``(start, stop)`` or a ``Position``.
Where = str | int | tuple[int, int | None] | Position

Ids = Sequence[int] | npt.NDArray[np.int64]


@dataclass(frozen=True)
class Aligned:
    """Tokens of the two sides of a pair, beside each other.

    Attributes
    ----------
    chosen, rejected : tuple of int
        Token indices, equally many and both rising: entry ``j`` of one stands beside entry ``j`` of
        the other.
    same : int
        How many of them have the same id on both sides.
    """

    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    same: int

    def __len__(self) -> int:
        return len(self.chosen)


def shared_prefix(first: Ids, second: Ids) -> int:
    """Number of leading ids that two rows have in common."""
    shorter = min(len(first), len(second))
    differs = np.asarray(first)[:shorter] != np.asarray(second)[:shorter]
    return int(differs.argmax()) if differs.any() else shorter


def align_tokens(chosen: Ids, rejected: Ids) -> Aligned:
    """Align the tokens of two rows of ids.

    Parameters
    ----------
    chosen, rejected : sequence of int, [n_tokens]

    Returns
    -------
    Aligned

    Notes
    -----
    The shared beginning and the shared end are aligned first, because a template puts the same
    tokens there and the read token is among them; what lies between is compared by
    :class:`difflib.SequenceMatcher` (without its rule for frequent elements, which would leave out
    common tokens in long texts). Tokens that the diff replaces one for one, that is, runs of equal
    length between two matches, are aligned with each other too: a word exchanged for another is the
    usual counterfactual, and it is exactly what should be patched. Runs of unequal length are not
    aligned, since nothing says which token would stand beside which.
    """
    a, b = [int(i) for i in chosen], [int(i) for i in rejected]
    start = shared_prefix(a, b)
    end = shared_prefix(a[start:][::-1], b[start:][::-1])
    pairs = [(k, k) for k in range(start)]
    diff = SequenceMatcher(None, a[start : len(a) - end], b[start : len(b) - end], autojunk=False)
    for _, i, i_stop, j, j_stop in diff.get_opcodes():
        if i_stop - i == j_stop - j:  # equal, or replaced one for one
            pairs += [(start + i + k, start + j + k) for k in range(i_stop - i)]
    pairs += [(len(a) - k, len(b) - k) for k in range(end, 0, -1)]
    return _aligned(pairs, a, b)


def patched_tokens(sides: Sides, positions: Where) -> list[Aligned]:
    """The tokens of every pair that are patched.

    Parameters
    ----------
    sides : Sides
    positions : {"final", "aligned", "all"}, int, (start, stop) or Position
        Indices may be negative: then they count from the end of each side. ``stop`` may be
        ``None``: to the end, which must then be equally far on both sides.

    Returns
    -------
    list of Aligned
        One per pair.

    Raises
    ------
    CapabilityError
        If ``positions`` is none of these, or it is ``final`` and the head reads the mean over all
        tokens.
    DataError
        If a pair does not have the tokens, or not equally many of them; names the pair.
    """
    position = as_position(positions)
    if position.kind == "final" and MEAN in sides.read:
        raise CapabilityError(
            "positions='final': this head reads the mean over all tokens, so there is no one token "
            "that it reads; patch positions='aligned', or 'all' where both sides are equally long"
        )
    n = len(sides.pairs)
    return [_of_pair(sides, k, n + k, position) for k in range(n)]


def as_position(positions: Where) -> Position:
    """Read what the option ``positions`` accepts.

    Raises
    ------
    CapabilityError
        If it is none of it.
    """
    position: Any = positions
    if isinstance(positions, tuple) and len(positions) == 2:
        position = Position("span", *positions)
    elif isinstance(positions, int) and not isinstance(positions, bool):
        position = Position("index", positions)
    elif isinstance(positions, str):
        position = Position(positions)
    known = isinstance(position, Position) and position.kind in POSITIONS
    if not known or (position.kind in ("index", "span") and not isinstance(position.start, int)):
        raise CapabilityError(
            f"positions={positions!r}: choose 'final', 'aligned', 'all', a token index, or a span "
            f"(start, stop)"
        )
    found: Position = position
    return found


def _of_pair(sides: Sides, chosen: int, rejected: int, position: Position) -> Aligned:
    """The tokens of one pair, whose sides are the items ``chosen`` and ``rejected``."""
    a, b = sides.encoded[chosen].ids, sides.encoded[rejected].ids
    if position.kind == "aligned":
        return align_tokens(a, b)
    if position.kind == "final":
        return _aligned([(sides.read[chosen], sides.read[rejected])], a, b)
    here = f"pair {sides.pairs.ids[chosen]!r}"
    if position.kind == "all" and len(a) != len(b):
        raise DataError(
            f"{here}: positions='all' needs sides of equal length, and these have {len(a)} and "
            f"{len(b)} tokens; use positions='aligned' or 'final', or leave such pairs out"
        )
    rows = [token_indices(position, len(ids), f"{here}, the {side} side")
            for ids, side in ((a, "chosen"), (b, "rejected"))]  # fmt: skip
    if len(rows[0]) != len(rows[1]):
        raise DataError(
            f"{here}: positions={position} is {len(rows[0])} tokens of the chosen side and "
            f"{len(rows[1])} of the rejected; give a span that is equally long on both"
        )
    return _aligned(list(zip(*rows, strict=True)), a, b)


def token_indices(position: Position, length: int, where: str) -> range:
    """Token indices of ``all``, an index or a span in an item of ``length`` tokens.

    Raises
    ------
    DataError
        If the item does not have them; names ``where``.
    """
    if position.kind == "all":
        return range(length)
    start, stop = position.start, position.stop
    assert start is not None  # a position that has none was refused
    first = start + length if start < 0 else start
    if position.kind == "index":
        last = first + 1
    else:
        last = length if stop is None else stop + length if stop < 0 else stop
    if not 0 <= first < last <= length:
        raise DataError(
            f"{where} has {length} tokens: positions={position} is empty or reaches beyond them"
        )
    return range(first, last)


def _aligned(pairs: list[tuple[int, int]], a: Ids, b: Ids) -> Aligned:
    same = sum(int(a[i]) == int(b[j]) for i, j in pairs)
    return Aligned(tuple(i for i, _ in pairs), tuple(j for _, j in pairs), same)
