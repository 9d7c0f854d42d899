"""Where a mixture of experts chooses: tensors of expert numbers, found by what they are."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from reward_lens.backbone.anatomy import Block
from reward_lens.backbone.taps import Tap
from reward_lens.backbone.tracing import tensors_in


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
    found: dict[int, Tap] = {}
    entered: dict[nn.Module, int] = {}
    owner = threading.get_ident()  # other threads may be running the same modules

    def note(layer: int, module: nn.Module, nth: int, seen: dict[str, object]) -> None:
        for path, tensor in tensors_in(seen):
            whole = not tensor.is_floating_point() and tensor.dtype != torch.bool
            if whole and tensor.dim() == 2 and len(tensor) == ids.numel():
                found.setdefault(layer, Tap(module, nth, path))

    def before(layer: int, module: nn.Module, *rest: Any) -> None:
        if threading.get_ident() == owner:
            nth = entered[module] = entered.get(module, -1) + 1
            note(layer, module, nth, {"args": rest[0], "kwargs": rest[1]})

    def after(layer: int, module: nn.Module, *rest: Any) -> None:
        if threading.get_ident() == owner:
            note(layer, module, entered.get(module, 0), {"out": rest[-1]})

    handles = []
    try:
        for layer, block in enumerate(blocks):
            for module in set(block.enter.module.modules()) - {block.enter.module}:
                handles += [
                    module.register_forward_pre_hook(partial(before, layer), with_kwargs=True),
                    module.register_forward_hook(partial(after, layer), with_kwargs=True),
                ]
        with torch.no_grad():
            base(**given)
    finally:
        for handle in handles:
            handle.remove()
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
