"""A cache of our own: what attention hands to it is kept, and what it gets back is our choice."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

if TYPE_CHECKING:
    from reward_lens.backbone.trunk import Trunk

#: What transformers calls the cache of a forward, newest first.
_NAMES = ("cache", "past_key_values", "layer_past")


def cache_argument(trunk: Trunk) -> str | None:
    """The name of the argument that takes a cache; ``None`` if there is none."""
    if not trunk.inputs.cache:
        return None
    accepted = inspect.signature(trunk.base.forward).parameters
    return next((n for n in _NAMES if n in accepted), None)


class KeyStore(DynamicCache):  # type: ignore[misc]
    """Keeps the keys and values of a forward, one entry per call, without joining anything.

    Parameters
    ----------
    routes : (sequence of int, sequence of int), optional
        Whose keys and whose values each row is handed, inside the block ``within``.
    within : nn.Module, optional

    Attributes
    ----------
    kept : dict
        Number that a layer's attention goes by -> keys, values ``[batch, heads, length, width]``.
    routed : bool
        Whether the routes were followed.
    """

    def __init__(
        self,
        routes: tuple[Sequence[int], Sequence[int]] | None = None,
        within: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.routes = routes
        self.layer = _layer_number(within) if within is not None else None
        self.routed = False

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep keys and values and hand back those of the rows that the routes name."""
        if self.routes is not None and layer_idx == self.layer:
            self.routed = True
            keys, values = (torch.as_tensor(r, device=key_states.device) for r in self.routes)
            return key_states[keys], value_states[values]
        if self.routes is None:
            self.kept[layer_idx] = (key_states, value_states)
        return key_states, value_states


class JoinedKeys(DynamicCache):  # type: ignore[misc]
    """Hands attention the keys of a prefix, then its own.

    Parameters
    ----------
    prefix : tuple of Tensor
        Keys and values, laid out for this call.
    routes : (sequence of int, sequence of int), optional
        Whose keys and whose values each lane of the call is handed for its own.
    dim : int
        The dimension of the keys that the lanes are along.
    """

    def __init__(
        self,
        prefix: tuple[Tensor, Tensor],
        routes: tuple[Sequence[int], Sequence[int]] | None,
        dim: int,
    ) -> None:
        super().__init__()
        self.prefix, self.routes, self.dim = prefix, routes, dim

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Join the prefix and the call's own keys and values."""
        if self.routes is not None:
            keys, values = (torch.as_tensor(r, device=key_states.device) for r in self.routes)
            key_states = key_states.index_select(self.dim, keys)
            value_states = value_states.index_select(self.dim, values)
        before = self.prefix
        return torch.cat([before[0], key_states], -2), torch.cat([before[1], value_states], -2)


def _layer_number(block: nn.Module) -> int | None:
    """The number that a block's attention goes by in a cache."""
    for module in block.modules():
        number = getattr(module, "layer_idx", None)
        if isinstance(number, int):
            return number
    return None
