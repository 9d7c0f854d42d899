"""How an attention write splits by query head, measured by bumping channels.

A head is a run of channels of the last linear map's input that move together when one channel of an
earlier output of the block is bumped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reward_lens.backbone.linear import is_affine
from reward_lens.backbone.specimen import Specimen, Spot
from reward_lens.backbone.tracing import Call, Path, tensors_in

_BUMPED_CHANNELS = 12  # fewer can miss the query rows of a fused projection


@dataclass(frozen=True)
class HeadsPlan:
    """The last linear map of an attention write, where its input is seen, and its split."""

    linear: str
    mixed: Spot
    n: int
    width: int


def plan_heads(
    specimen: Specimen, calls: list[Call], target_spot: Spot, expected: int | None
) -> HeadsPlan | str:
    """Find the last linear map below an attention write and the head that each channel belongs to.

    Parameters
    ----------
    target_spot : Spot
        The write, or the input of its post-norm.
    expected : int, optional
        The configuration's head count.

    Returns the plan, or the reason why there is none.
    """
    (target,) = specimen.rerun([target_spot])
    last = _linear_source(calls, target)
    if last is None:
        return "the write is not the output of a linear map of one input"
    call, path = last
    mixed = Spot(call.name, call.nth, path)
    (z,) = specimen.rerun([mixed])
    width = _head_width(specimen, calls, call, mixed, z)
    if width is None:
        return "no group of channels of the last linear map's input moves as one head"
    n = z.shape[-1] // width
    if n * width != z.shape[-1] or (expected is not None and n != expected):
        return f"measured {n} heads of {width} channels, the configuration says {expected}"
    return HeadsPlan(call.name, mixed, n, width)


def _linear_source(calls: list[Call], target: Tensor) -> tuple[Call, Path] | None:
    """The deepest call that puts the target out and is affine in its one float input."""
    for call in reversed(calls[1:]):
        inputs = [(p, t) for p, t in call.inputs() if t.is_floating_point()]
        if len(inputs) != 1 or not isinstance(call.output, Tensor):
            continue
        if call.output.shape[-1] != target.shape[-1] or call.output.numel() != target.numel():
            continue
        if not torch.equal(call.output.reshape(target.shape), target):
            continue
        held = (*call.module.parameters(), *call.module.buffers())  # packed weights are buffers
        if not any(p.dim() >= 2 for p in held):
            continue
        if is_affine(call.module, inputs[0][1]):
            return call, inputs[0][0]
    return None


def _head_width(
    specimen: Specimen, calls: list[Call], last: Call, mixed: Spot, z: Tensor
) -> int | None:
    """Width of the smallest aligned run of channels that one earlier channel moves.

    A query channel moves its whole head; a value channel moves one channel of each head that shares
    it; a key channel moves all heads of its group.
    """
    widths: set[int] = set()
    for call in calls[1 : last.order]:
        for path, tensor in tensors_in({"out": call.output}):
            if not tensor.is_floating_point() or tensor.dim() < 2 or tensor.shape[-1] < 2:
                continue
            spot = Spot(call.name, call.nth, path)
            channels = np.linspace(0, tensor.shape[-1] - 1, _BUMPED_CHANNELS).astype(int)
            for channel in np.unique(channels).tolist():
                bumped = tensor.clone()
                bumped[..., channel] += 0.5 * tensor.std() + 0.1
                (moved,) = specimen.rerun([mixed], edits={spot: bumped})
                gap = (moved - z).abs().reshape(-1, z.shape[-1]).amax(0)
                hit = torch.nonzero(gap > 1e-6 * z.abs().max()).flatten()
                run = int(hit[-1] - hit[0] + 1) if len(hit) else 0
                if run > 1 and len(hit) == run and hit[0] % run == 0:
                    widths.add(run)
    return min(widths) if widths else None
