"""Which rows of a batch's tensors are kept: those that the head reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reward_lens.backbone.batching import Batch
from reward_lens.backbone.tokenise import MEAN

#: Rows to keep of a batch's tensor ``[batch, length, ...]``, or ``None`` for all of them.
Rows = Callable[[Batch, Tensor], Tensor]


def masked_mean(batch: Batch, tensor: Tensor) -> Tensor:
    """Mean over each row's tokens: ``[batch, length, ...] -> [batch, ...]``, float32."""
    mask = batch.mask.to(tensor.device)
    mask = mask.reshape(*mask.shape, *(1,) * (tensor.dim() - 2)).float()
    return (tensor.float() * mask).sum(1) / mask.sum(1)


@dataclass(frozen=True)
class ReadRows:
    """Selects one row per item: ``[batch, length, width] -> [batch, width]``.

    Attributes
    ----------
    read : sequence of int
        The index of each item's token, or ``MEAN``.
    """

    read: Sequence[int]

    def __call__(self, batch: Batch, tensor: Tensor) -> Tensor:
        """The rows of a batch."""
        if self.read[int(batch.index[0])] == MEAN:
            return masked_mean(batch, tensor)
        at = torch.as_tensor([self.read[int(i)] for i in batch.index], device=tensor.device)
        columns = at + batch.offset.to(tensor.device)
        return tensor[torch.arange(len(columns), device=tensor.device), columns]


def read_rows(read: Sequence[int]) -> ReadRows:
    """Select one row per item: ``read[i]`` is the index of item ``i``'s token, or ``MEAN``."""
    return ReadRows(read)
