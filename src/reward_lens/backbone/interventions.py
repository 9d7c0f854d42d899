"""Lasting changes: what is done to every forward of a signal, item by item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from reward_lens.backbone.anatomy import Anatomy
from reward_lens.backbone.batching import Batch
from reward_lens.backbone.edits import Change, Placed, Target, edit_handlers
from reward_lens.backbone.sites import Position
from reward_lens.backbone.taps import Around
from reward_lens.backbone.tokenise import MEAN, Encoded
from reward_lens.errors import DataError, RewardLensError


@dataclass(frozen=True)
class Lasting:
    """One thing that is done in every forward.

    Attributes
    ----------
    target : Target
    position : Position
    value : callable
        Given an item and the number of tokens, ``[tokens, width]`` in the coordinates of the
        target's source.
    add : bool
    drawn : bool
        Whether the value depends on the whole item.
    """

    target: Target
    position: Position
    value: Callable[[Encoded, int], Tensor]
    add: bool
    drawn: bool = False

    @property
    def prefixes(self) -> bool:
        """Whether a text that is cut has the same done to the tokens that are left."""
        return self.position.kind == "all" and not self.drawn

    @property
    def replaces(self) -> bool:
        """Whether the stream itself is replaced."""
        kind = self.target.site.kind
        return not self.add and (kind == "final_norm" or kind.startswith(("resid", "norm")))


class Changes:
    """Changes of every forward, while they last.

    Parameters
    ----------
    anatomy : Anatomy
    lasting : sequence of Lasting
    reads : str
        Where the head reads: ``"native"``, ``"last"``, ``"first"`` or ``"mean"``.
    """

    def __init__(self, anatomy: Anatomy, lasting: Sequence[Lasting], reads: str) -> None:
        self.anatomy, self.lasting, self.reads = anatomy, lasting, reads
        #: Whether a text that is cut has the same done to the tokens that are left.
        self.prefixes = all(one.prefixes for one in lasting)
        #: Whether the stream itself is replaced somewhere, so that nothing passes there.
        self.replaces = any(one.replaces for one in lasting)
        self.over = False

    def __call__(self, batch: Batch) -> Around:
        """Handlers for a forward of a batch, which come before whatever else is done in it.

        Raises
        ------
        RewardLensError
            If the changes are over.
        DataError
            If an item does not have the tokens.
        """
        if self.over:
            raise RewardLensError(
                "the intervention has ended: this signal was only good inside its with-block; use "
                "the original signal, or intervene again"
            )
        placed = []
        for one in self.lasting:
            for row, item in enumerate(batch.items):
                start = int(batch.offset[row])
                at = tokens_at(item, one.position, self.reads, int(batch.index[row]))
                change = Change(one.target, at, one.value(item, len(at)), one.add)
                placed.append(Placed(row, tuple(start + t for t in at), change))
        return edit_handlers(self.anatomy, placed, (batch.ids.shape[0], batch.ids.shape[1])), {}


def tokens_at(item: Encoded, position: Position, reads: str, number: int) -> tuple[int, ...]:
    """Token indices of an item that a position means.

    Raises
    ------
    DataError
        If the item does not have them.
    """
    length = len(item.ids)
    if position.kind == "all":
        return tuple(range(length))
    if position.kind == "final":
        read = item.read(reads)
        return tuple(range(length)) if read == MEAN else (read,)
    start, stop = position.start, position.stop
    if position.kind == "index":
        stop = None if start == -1 else (start or 0) + 1
    found = tuple(range(length))[slice(start, stop)]
    inside = all(p is None or -length <= p <= length for p in (start, stop))
    if not found or not inside:
        raise DataError(
            f"item {number} has {length} tokens: position {position} is not in it, so nothing can "
            f"be changed there"
        )
    return found


def unscaled(anatomy: Anatomy, target: Target, vector: Tensor) -> Tensor:
    """A vector in the stream's coordinates, in those of the tensor that is replaced.

    Raises
    ------
    DataError
        If the block multiplies the write by zero.
    """
    if target.site.kind not in ("attn_out", "mlp_out"):
        return vector
    scale = anatomy.write(target.site).scale
    if scale is None:
        return vector
    if bool((scale == 0).any()):
        raise DataError(f"{target} is multiplied by 0 by its block, so nothing can be put there")
    return (vector.double() / scale.to(vector.device)).to(vector.dtype)
