"""One pass over items: what each forward of it saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import MEAN, Batch, Encoded, Site, Trunk, read_rows
from reward_lens.progress import Progress, expect


@dataclass(frozen=True)
class Swept:
    """What one forward of a sweep saw.

    Attributes
    ----------
    index : ndarray of int, [item]
        Which items.
    sites : dict
        Site -> tensor in the trunk's dtype, ``[row, width]``: the read token of each item, or all
        its tokens where the head reads their mean; ``[item, length, width]`` where all positions
        were asked for.
    lengths : ndarray of int, [item]
    owner : Tensor of int64, [row]
        The place in ``index`` of the item that a row belongs to.
    weight : Tensor of float64, [row]
        The share of the row in its item's mean; 1 for a read token.
    """

    index: npt.NDArray[np.int64]
    sites: dict[Site, Tensor]
    lengths: npt.NDArray[np.int64]
    owner: Tensor
    weight: Tensor

    def total(self, rows: Tensor) -> Tensor:
        """Add up rows by item: ``[row, ...] -> [item, ...]``."""
        if len(rows) == len(self.index):
            return rows
        out = torch.zeros(len(self.index), *rows.shape[1:], dtype=rows.dtype, device=rows.device)
        return out.index_add_(0, self.owner, rows)

    def mean(self, rows: Tensor) -> Tensor:
        """Mean of each item's rows, in their dtype: ``[row, ...] -> [item, ...]``."""
        if len(rows) == len(self.index):
            return rows
        weight = self.weight.reshape(-1, *(1,) * (rows.dim() - 1))
        return self.total(rows.double() * weight).to(rows.dtype)


def sweep(
    trunk: Trunk,
    encoded: Sequence[Encoded],
    sites: Sequence[Site],
    read: Sequence[int] | None,
    batch_tokens: int,
    progress: Progress | None,
) -> Iterator[Swept]:
    """Run all items once, a batch at a time; see :meth:`ClassifierRM.sweep`."""
    averaged = read is not None and len(read) > 0 and read[0] == MEAN
    rows = read_rows(read) if read is not None and not averaged else None
    expect(progress, len(encoded))
    for batch in trunk.batches(encoded, batch_tokens):
        seen = trunk.capture(batch, sites, rows)
        lengths = batch.lengths.cpu().numpy()
        if averaged:
            yield _flattened(batch, seen, lengths)
        else:
            owner = torch.arange(len(batch.index), device=trunk.device)
            yield Swept(batch.index, seen, lengths, owner, torch.ones_like(owner).double())
        if progress is not None:
            progress(len(batch.index))


def _flattened(batch: Batch, seen: dict[Site, Tensor], lengths: npt.NDArray[np.int64]) -> Swept:
    """All tokens of all items as rows, each with its share of the item's mean."""
    real = batch.mask.bool()
    owner = torch.nonzero(real)[:, 0]
    weight = 1.0 / batch.lengths.double()[owner]
    return Swept(batch.index, {s: t[real] for s, t in seen.items()}, lengths, owner, weight)
