"""Which arguments a trunk's forward takes, found out by asking it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reward_lens.backbone.batching import Batch
from reward_lens.backbone.tracing import tensors_in


@dataclass(frozen=True)
class Inputs:
    """What is passed to a trunk beside ids and mask.

    Attributes
    ----------
    positions : bool
        Position ids counted from the mask: taken, and meaning what we mean. Some types count from
        another number; they get none and make their own.
    types : bool
        Token types of text pairs.
    cache : bool
        Whether a cache has to be turned off.
    """

    positions: bool
    types: bool
    cache: bool

    @classmethod
    def of(cls, base: nn.Module, ids: Tensor) -> Inputs:
        """Ask a trunk, on one unpadded row of ids ``[1, length]``."""
        accepted = inspect.signature(base.forward).parameters
        plain = cls(False, "token_type_ids" in accepted, bool(no_cache(base, ids)))
        if "position_ids" not in accepted:
            return plain
        counted = torch.arange(ids.shape[1], device=ids.device)[None]
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **plain._no_cache()}
        with torch.no_grad():
            try:
                ours = _state(base(**given, position_ids=counted))
            except (IndexError, RuntimeError, ValueError, TypeError):
                return plain
            own = _state(base(**given))
        same = bool((ours - own).abs().max() <= 1e-5 * own.abs().max())
        return cls(same, plain.types, plain.cache)

    def of_batch(self, batch: Batch) -> dict[str, Any]:
        """Keyword arguments for one batch."""
        given: dict[str, Any] = {"input_ids": batch.ids, "attention_mask": batch.mask}
        if self.positions:
            given["position_ids"] = batch.positions
        if self.types and batch.types is not None:
            given["token_type_ids"] = batch.types
        return {**given, **self._no_cache()}

    def _no_cache(self) -> dict[str, bool]:
        return {"use_cache": False} if self.cache else {}


def no_cache(module: nn.Module, ids: Tensor) -> dict[str, bool]:
    """``use_cache=False`` where a forward takes it: a used cache changes what a second call sees.

    A forward may pass it on without naming it; then it is tried on ids ``[1, length]``.
    """
    off = {"use_cache": False}
    accepted = inspect.signature(module.forward).parameters
    if "use_cache" in accepted:
        return off
    if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        return {}
    try:
        with torch.no_grad():
            module(input_ids=ids, attention_mask=torch.ones_like(ids), **off)
    except (TypeError, ValueError):
        return {}
    return off


def _state(output: Any) -> Tensor:
    return next(t for _, t in tensors_in(dict(output)) if t.dim() == 3).float()
