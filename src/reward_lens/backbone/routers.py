"""Where a mixture of experts chooses: tensors of expert numbers, found by what they are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reward_lens.backbone.anatomy import Block
from reward_lens.backbone.taps import Tap
from reward_lens.backbone.tracing import tensors_in, trace


def find_routers(
    base: nn.Module, given: dict[str, object], blocks: Sequence[Block]
) -> dict[int, Tap]:
    """Find, inside the blocks, one tensor of whole numbers ``[tokens, k]`` per routed layer.

    Parameters
    ----------
    given : dict
        Arguments of a forward over a batch of at least two rows.
    blocks : sequence of Block

    Returns
    -------
    dict
        Layer -> tap; empty for a dense model.
    """
    ids = given["input_ids"]
    assert isinstance(ids, Tensor)
    inside = [{id(m) for m in b.enter.module.modules()} - {id(b.enter.module)} for b in blocks]
    found: dict[int, Tap] = {}
    for call in trace(base, **given):
        layer = next((k for k, members in enumerate(inside) if id(call.module) in members), None)
        if layer is None or layer in found:
            continue
        seen = [*call.inputs(), *tensors_in({"out": call.output})]
        for path, tensor in seen:
            whole = not tensor.is_floating_point() and tensor.dtype != torch.bool
            if whole and tensor.dim() == 2 and len(tensor) == ids.numel():
                found[layer] = Tap(call.module, call.nth, path)
                break
    return {layer: found[layer] for layer in sorted(found)}


def choices(tensor: Tensor, shape: tuple[int, int]) -> Tensor:
    """Expert numbers in a fixed order: ``[rows, columns, k]``."""
    return tensor.detach().reshape(*shape, -1).sort(-1).values


#: What configurations call their number of experts.
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def has_experts(config: object) -> bool:
    """Whether a configuration speaks of a choice of experts."""
    numbers = (getattr(config, name, None) for name in _EXPERTS)
    return any(isinstance(n, int) and n > 1 for n in numbers)
