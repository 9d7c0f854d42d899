"""Gradients and Hessian-vector products of a readout with respect to a site."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reward_lens.backbone import Encoded, Site, Trunk, masked_mean, read_rows
from reward_lens.backbone.batching import Batch
from reward_lens.backbone.gradients import RowScore, differentiate_site
from reward_lens.errors import RewardLensError
from reward_lens.signals.readouts import Readout


def row_score(readout: Readout, read: Sequence[int]) -> RowScore:
    """The readout of every row of a batch as a differentiable function of its normed states.

    Parameters
    ----------
    read : sequence of int
        Token index per item, or ``MEAN``.
    """

    def score(batch: Batch, normed: Tensor) -> Tensor:
        if readout.head.pool == "late":
            return masked_mean(batch, readout.differentiable(normed, batch.index))
        return readout.differentiable(read_rows(read)(batch, normed), batch.index)

    return score


def differentiate(
    trunk: Trunk,
    encoded: Sequence[Encoded],
    read: Sequence[int],
    readout: Readout,
    site: Site,
    batch_tokens: int,
    vectors: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Differentiate a readout of every item with respect to a site.

    Parameters
    ----------
    read : sequence of int
        Token index per item.
    vectors : sequence of Tensor, optional
        ``[n_tokens, width]`` per item: then the Hessian times them, else the gradient.

    Returns
    -------
    list of Tensor
        ``[n_tokens, width]`` per item.

    Raises
    ------
    RewardLensError
        If a vector has another shape than its item.
    """
    if vectors is not None:
        _check_vectors(encoded, vectors, trunk.anatomy.width)
    out: list[Any] = [None] * len(encoded)
    score = row_score(readout, read)
    for batch in trunk.batches(encoded, batch_tokens):
        direction = None
        if vectors is not None:
            rows = [vectors[int(i)] for i in batch.index]
            direction = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        _, result = differentiate_site(trunk, batch, site, partial(score, batch), direction)
        for row, item, length in zip(result, batch.index, batch.lengths, strict=True):
            out[int(item)] = row[: int(length)].clone()
    return out


def _check_vectors(encoded: Sequence[Encoded], vectors: Sequence[Tensor], width: int) -> None:
    shapes = [tuple(v.shape) for v in vectors]
    wanted = [(len(e.ids), width) for e in encoded]
    if shapes != wanted:
        raise RewardLensError(
            f"hvp needs one vector [n_tokens, width] per item: expected {wanted}, got {shapes}"
        )
