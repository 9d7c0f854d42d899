"""The effective reward direction at a site: what a readout gains per unit added to the stream."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import Encoded, Site, Trunk
from reward_lens.signals.classifier import ClassifierRM
from reward_lens.signals.derivatives import differentiate
from reward_lens.signals.readouts import Readout

_CHUNK = 16  # items whose gradients at all tokens are held at once

Index = npt.NDArray[np.int64]


def end_gradient(trunk: Trunk, readout: Readout, states: Tensor, index: Index) -> Tensor:
    """Gradient of a readout with respect to the last state of the token that it reads.

    No forward of the trunk is needed: only the final norm and the head lie behind it.

    Parameters
    ----------
    states : Tensor
        ``[n, width]``, the stream leaving the last block, any dtype.
    index : ndarray of int, [n]
        Which items they are of.

    Returns
    -------
    Tensor
        float32 ``[n, width]``.
    """
    leaf = states.detach().float().requires_grad_(True)
    with torch.enable_grad():
        score = readout.differentiable(_normed(trunk, leaf), index).sum()
        (gradient,) = torch.autograd.grad(score, leaf)
    return gradient


def _normed(trunk: Trunk, states: Tensor) -> Tensor:
    """The model's own final norm, in float32 and differentiable."""
    norm = trunk.anatomy.final_norm
    if norm is None:
        return states
    module = norm.module
    if any(p.dtype != torch.float32 for p in module.parameters()):
        module = copy.deepcopy(module).float()
    out: Tensor = module(states)
    return out


def summed_gradients(
    signal: ClassifierRM,
    encoded: Sequence[Encoded],
    read: Sequence[int],
    readout: str,
    site: Site,
    tokens: Sequence[Sequence[int]],
    batch_tokens: int,
) -> Iterator[tuple[Index, Tensor]]:
    """Gradient of a readout with respect to one vector that is added at several tokens.

    Parameters
    ----------
    readout : str
        Name.
    tokens : sequence of sequences of int, [item]
        Where the vector would be added.

    Yields
    ------
    index : ndarray of int, [n]
        The next items.
    gradients : Tensor
        float64 ``[n, width]``: the sum of the gradients at the tokens.
    """
    for start in range(0, len(encoded), _CHUNK):
        part = slice(start, start + _CHUNK)
        bound = signal.bound(readout, encoded[part], batch_tokens)
        found = differentiate(signal.trunk, encoded[part], read[part], bound, site, batch_tokens)
        rows = zip(found, tokens[part], strict=True)
        summed = torch.stack([gradient[list(at)].double().sum(0) for gradient, at in rows])
        yield np.arange(start, start + len(summed)), summed
