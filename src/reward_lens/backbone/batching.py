"""Batches: sorted by length, padded on the right by us, positions from the mask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from reward_lens.backbone.tokenise import Encoded
from reward_lens.evidence.arguments import checked_count


@dataclass(frozen=True)
class Batch:
    """Rows laid out for one forward.

    Attributes
    ----------
    index : ndarray of int, [batch]
        Which items the rows are.
    ids, mask, positions : Tensor of int64, [batch, length]
    offset : Tensor of int64, [batch]
        Column of each row's first token (0 when padded on the right).
    lengths : Tensor of int64, [batch]
    types : Tensor of int64, [batch, length], optional
        Token types, where a tokenizer of text pairs gives them.
    items : tuple of Encoded
        The item of each row.
    """

    index: np.ndarray[tuple[int], np.dtype[np.int64]]
    ids: Tensor
    mask: Tensor
    positions: Tensor
    offset: Tensor
    lengths: Tensor
    types: Tensor | None = None
    items: tuple[Encoded, ...] = ()


def collate(
    encoded: Sequence[Encoded],
    index: Sequence[int],
    pad_id: int,
    device: torch.device,
    side: str = "right",
) -> Batch:
    """Lay items out as one padded batch.

    Parameters
    ----------
    encoded : sequence of Encoded
        All items; ``index`` says which are in this batch.
    side : {"right", "left"}
        Where the padding goes. Left is for checks only.
    """
    rows = [torch.from_numpy(encoded[i].ids) for i in index]
    lengths = torch.tensor([len(r) for r in rows])
    width = int(lengths.max())
    ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    offset = width - lengths if side == "left" else torch.zeros_like(lengths)
    for k, row in enumerate(rows):
        start = int(offset[k])
        ids[k, start : start + len(row)] = row
        mask[k, start : start + len(row)] = 1
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    where = np.asarray(index, dtype=np.int64)
    named = {"ids": ids, "mask": mask, "positions": positions, "offset": offset, "lengths": lengths}
    laid = {name: tensor.to(device) for name, tensor in named.items()}
    batch = Batch(index=where, items=tuple(encoded[i] for i in index), **laid)
    kinds = [encoded[i].types for i in index]
    if all(t is None for t in kinds):
        return batch
    types = torch.zeros_like(ids)
    for k, kind in enumerate(kinds):
        if kind is not None:
            start = int(offset[k])
            types[k, start : start + len(kind)] = torch.from_numpy(kind)
    return replace(batch, types=types.to(device))


def plan_batches(
    encoded: Sequence[Encoded], batch_tokens: int, alone_beyond: int | None = None
) -> Iterator[list[int]]:
    """Group items by length so that no batch exceeds ``batch_tokens`` padded tokens.

    An item longer than the budget, or than ``alone_beyond``, is a batch of its own. Longest first,
    so that running out of memory shows at once.
    """
    batch_tokens = checked_count("batch_tokens", batch_tokens, 1)
    order = sorted(range(len(encoded)), key=lambda i: (-len(encoded[i].ids), i))
    batch: list[int] = []
    for i in order:
        longest = len(encoded[batch[0]].ids) if batch else 0
        alone = alone_beyond is not None and longest > alone_beyond
        if batch and (alone or (len(batch) + 1) * longest > batch_tokens):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
