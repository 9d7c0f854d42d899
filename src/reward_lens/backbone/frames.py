"""Where the tokens of a replayed run stand in the clean one, and what a block is called with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reward_lens.backbone.edits import Change, Placed
from reward_lens.backbone.plants import Cell
from reward_lens.backbone.tokenise import Encoded


@dataclass(frozen=True)
class Frame:
    """Lanes of a tree row (tokens of a row) or of a joining batch (rows).

    Attributes
    ----------
    tree : bool
    items : tuple of int
        Rows of the clean batch: one per row of a tree, a single one for a joining batch.
    read : tuple of int
        The token of each item that the head reads; the last one that is run.
    start : int
        Of a joining batch, the first token that is run again.
    """

    tree: bool
    items: tuple[int, ...]
    read: tuple[int, ...]
    start: int = 0

    @property
    def dim(self) -> int:
        """The dimension of the states that the lanes are along."""
        return 1 if self.tree else 0

    def lanes(self, stream: Tensor, n: int) -> Tensor:
        """Clean states ``[batch, length, width]`` as ``n`` new lanes.

        Of a tree row also ``[batch, width]``, the read tokens alone.
        """
        if self.tree:
            rows, at = self._where(stream.device)
            own = stream[rows] if stream.dim() == 2 else stream[rows, at]
            return own[:, None].expand(-1, n, -1)
        own = stream[self.items[0], self.start : self.read[0] + 1]
        return own[None].expand(n, -1, -1)

    def read_states(self, states: Tensor) -> Tensor:
        """The read token of every lane: ``[rows, run, width]``."""
        return states if self.tree else states[:, -1][None]

    def by_lane(self, counts: Tensor) -> Tensor:
        """Counts per token of a call, per ``[row, lane]``."""
        return counts if self.tree else counts.sum(-1)[None]

    def place(self, row: int, lane: int, change: Change) -> Placed:
        """A change of one row's lane, at tokens up to the read one, in the call's coordinates."""
        if self.tree:
            return Placed(row, (lane,), change)
        return Placed(lane, tuple(token - self.start for token in change.at), change)

    def cells(self, items: Sequence[Encoded], tokens: Sequence[int], lanes: int) -> list[Cell]:
        """Where one token of each row's item stands in a call: nowhere if it is not run again.

        Parameters
        ----------
        items : sequence of Encoded
            Of the clean batch.
        tokens : sequence of int, [row]
        lanes : int
            How many the call has.
        """
        if not self.tree:
            if not self.start <= tokens[0] <= self.read[0]:
                return []
            own = items[self.items[0]]
            return [Cell(lane, tokens[0] - self.start, own) for lane in range(lanes)]
        return [
            Cell(row, lane, items[self.items[row]])
            for row, token in enumerate(tokens)
            if token == self.read[row]
            for lane in range(lanes)
        ]

    def lane_of(self, placed: Placed) -> int:
        """The lane of a placed change."""
        return placed.columns[0] if self.tree else placed.row

    def moved(self, placed: Placed, lane: int) -> Placed:
        """The same change in another lane."""
        if self.tree:
            return replace(placed, columns=(lane,))
        return replace(placed, row=lane)

    def written(
        self, tensor: Tensor, row: int, lane: int, first: int
    ) -> tuple[tuple[int, ...], Tensor]:
        """What a lane wrote from a token on: which tokens, and ``[tokens, width]``."""
        if self.tree:
            return (self.read[row],), tensor[row, lane][None]
        return tuple(range(first, self.read[0] + 1)), tensor[lane, first - self.start :]

    def gathered(self, tensor: Tensor, shape: tuple[int, int]) -> Tensor:
        """An argument laid out by token, ``[batch or 1, length, ...]``, for these tokens."""
        if self.tree:
            rows, at = self._where(tensor.device)
            own = tensor[rows if len(tensor) > 1 else 0 * rows, at][:, None]
        else:
            item = self.items[0] if len(tensor) > 1 else 0
            own = tensor[item, self.start : self.read[0] + 1][None]
        return own.expand(*shape, *own.shape[2:])

    def clean_values(self, tensor: Tensor, shape: tuple[int, int]) -> Tensor:
        """What the clean run has at these tokens: ``[batch, length, ...]`` to the call's shape."""
        return self.gathered(tensor, shape)

    def prefix(self, kept: Tensor, shape: tuple[int, int]) -> Tensor:
        """Clean keys or values ``[batch, heads, length, width]`` before these tokens."""
        if not self.tree:
            own = kept[self.items[0] : self.items[0] + 1, :, : self.start]
            return own.expand(shape[0], -1, -1, -1)
        kept = kept[:, :, : max(self.read)]
        if self.items == tuple(range(len(kept))):
            return kept
        return kept[torch.tensor(self.items, device=kept.device)]

    def mask(self, mask: Tensor, shape: tuple[int, int]) -> Tensor:
        """The model's own mask ``[batch or 1, heads or 1, length, length]`` for these tokens."""
        if not self.tree:
            item = self.items[0] if len(mask) > 1 else 0
            stop = self.read[0] + 1
            own = mask[item : item + 1, :, self.start : stop, :stop]
            return own.expand(shape[0], -1, -1, -1)
        rows, at = self._where(mask.device)
        mine = mask[rows if len(mask) > 1 else 0 * rows, :, at]  # [rows, heads, length]
        longest, n = max(self.read), shape[1]
        own = mine.gather(-1, at[:, None, None].expand(-1, mine.shape[1], 1))
        nothing = torch.full_like(mine[..., :1], _hidden(mask.dtype))
        before = torch.arange(longest, device=mask.device) < at[:, None, None]
        clean = torch.where(before, mine[..., :longest], nothing)[:, :, None]
        itself = torch.eye(n, dtype=torch.bool, device=mask.device)
        lanes = torch.where(itself, own[..., None], nothing[..., None])
        return torch.cat([clean.expand(-1, -1, n, -1), lanes.expand(len(clean), -1, -1, -1)], -1)

    def _where(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Clean batch rows and read tokens, ``[rows]`` each."""
        return torch.tensor(self.items, device=device), torch.tensor(self.read, device=device)


def _hidden(dtype: torch.dtype) -> float | bool:
    """What a mask holds where nothing is seen."""
    return torch.finfo(dtype).min if dtype.is_floating_point else False
