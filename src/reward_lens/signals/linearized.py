"""A readout made linear in the residual stream: head, final norm and block norms held at the item.

An affine head is its own linear form. A head that is not affine is replaced by its gradient at the
item (or by directions that are handed in), and what that leaves of the score stands apart as
``head_constant``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reward_lens.backbone import FrozenNorm, Site, Trunk
from reward_lens.signals.readouts import Readout
from reward_lens.signals.sweeping import Swept


@dataclass(frozen=True)
class Linearized:
    """A readout of the items of one batch as a linear function of their last states.

    Attributes
    ----------
    u : Tensor
        float64 ``[row, width]``: the functional on the last state of each row (an item's read
        token, or each of its tokens where the head reads their mean).
    direction : Tensor
        float64 ``[row, width]``: the same after the final norm.
    score : Tensor
        float64 ``[item]``.
    constant : Tensor
        float64 ``[item]``: biases of the final norm and of an affine head.
    head_constant : Tensor
        float64 ``[item]``: what a head that is not affine has beside its direction; else 0.
    rounding : Tensor
        float64 ``[item]``: what the final norm's own arithmetic loses, along the direction.
    """

    u: Tensor
    direction: Tensor
    score: Tensor
    constant: Tensor
    head_constant: Tensor
    rounding: Tensor


def linearize(
    trunk: Trunk, readout: Readout, seen: Swept, directions: Tensor | None = None
) -> Linearized:
    """Hold a readout at its value on the items of a batch.

    Parameters
    ----------
    seen : Swept
        With the last block's stream and ``final_norm``.
    directions : Tensor, optional
        float64 ``[item, width]`` to use instead of the gradient of the head; indexed by all items.
    """
    last = seen.sites[Site("resid_post", trunk.n_layers - 1)]
    normed = seen.sites[Site("final_norm")].double()
    score, per_row = _directions(readout, seen, normed)
    if directions is not None:
        given = directions[torch.as_tensor(seen.index, device=normed.device)]
        per_row = given[seen.owner] * seen.weight[:, None]
    frozen: FrozenNorm | None = trunk.freeze_final_norm(last)
    exact = frozen.apply(last) if frozen is not None else last.double()
    rounding = seen.total(((normed - exact) * per_row).sum(-1))
    rest = score - seen.total((normed * per_row).sum(-1))
    zero = torch.zeros_like(rest)
    constant, head_constant = (rest, zero) if readout.affine else (zero, rest)
    if frozen is not None:
        constant = constant + seen.total((per_row * frozen.bias).sum(-1))
    u = frozen.pull_back(per_row) if frozen is not None else per_row
    return Linearized(u, per_row, score, constant, head_constant, rounding)


def _directions(readout: Readout, seen: Swept, normed: Tensor) -> tuple[Tensor, Tensor]:
    """Score per item, and the direction on each row's normed state that it has there."""
    if readout.head.pool == "late":  # the head first, then the mean
        value, gradient = readout.local(normed, seen.index[seen.owner.cpu().numpy()])
        return seen.total(value * seen.weight), gradient * seen.weight[:, None]
    pooled = seen.total(normed * seen.weight[:, None])
    value, gradient = readout.local(pooled, seen.index)
    return value, gradient[seen.owner] * seen.weight[:, None]
