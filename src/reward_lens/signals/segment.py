"""The direction of a margin where the head is not linear."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from reward_lens.backbone import Encoded, Site
from reward_lens.signals.classifier import ClassifierRM
from reward_lens.signals.readouts import Readout

_NODES = 32  # of the quadrature; smooth heads are exact to rounding with far fewer
_NORMED = Site("final_norm")


def margin_directions(
    signal: ClassifierRM,
    encoded: Sequence[Encoded],
    read: Sequence[int],
    readout: Readout,
    batch_tokens: int,
) -> Tensor | None:
    """Mean gradient of the head along the segment between the two head inputs of each pair.

    By the mean value theorem ``f(a) - f(b) = g . (a - b)`` with ``g`` the mean of the gradient over
    the segment from ``b`` to ``a``; the mean is taken by Gauss-Legendre quadrature.

    Parameters
    ----------
    encoded, read : sequences
        Items ``0..n-1`` are the chosen sides, ``n..2n-1`` the rejected.

    Returns
    -------
    Tensor or None
        float64 ``[2n, width]``: the same direction for both sides of a pair. ``None`` for a head
        that is averaged over tokens after it is applied: two texts then share no segment.
    """
    if readout.head.pool == "late":
        return None
    inputs = torch.empty(len(encoded), readout.head.width, dtype=torch.float64)
    for seen in signal.sweep(encoded, [_NORMED], read, batch_tokens=batch_tokens):
        pooled = seen.total(seen.sites[_NORMED].double() * seen.weight[:, None])
        inputs[torch.as_tensor(seen.index)] = pooled.cpu()
    inputs = inputs.to(signal.trunk.device)
    n = len(encoded) // 2
    chosen, rejected, index = inputs[:n], inputs[n:], np.arange(n)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    mean = torch.zeros_like(chosen)
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        _, gradient = readout.local(rejected + float(node) * (chosen - rejected), index)
        mean += float(weight) * gradient
    return torch.cat([mean, mean])
