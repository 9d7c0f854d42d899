"""Judging a head on states of all sizes, put in place of the trunk's own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reward_lens.backbone.head_map import HeadMap
from reward_lens.backbone.taps import Tap, attach

#: Sizes of the states that are tried, in sizes of the traced text's own.
_SIZES = (0.1, 1.0, 5.0, 30.0)
_DRAWS = 4  # per size
_CLOSE = {torch.float32: 1e-4, torch.float64: 1e-4}  # of the largest logit
_COARSE = 3e-2


@torch.no_grad()
def head_holds(
    model: Any, ids: Tensor, given: Mapping[str, Any], normed: Tap, head: HeadMap
) -> bool:
    """Whether a head map gives the model's own logits for random states at its input.

    Parameters
    ----------
    ids : Tensor
        ``[1, length]``.
    given : mapping
        The other arguments of the model's forward.
    normed : Tap
        Where the states go in.
    """
    seen: list[Tensor] = []
    with attach({normed: seen.append}):
        model(input_ids=ids, **given)
    own, generator = seen[0], torch.Generator().manual_seed(5)
    size = torch.tensor(_SIZES).repeat_interleave(_DRAWS)[:, None, None] * float(own.float().std())
    noise = torch.randn(len(size), *own.shape[1:], generator=generator)
    states = (size * noise).to(own)
    padless = model.config.get_text_config().pad_token_id is None  # then one text at a time
    parts = torch.split(states, 1 if padless else len(states))
    logits = torch.cat([_logits(model, ids, given, normed, part) for part in parts])
    ours = torch.stack([_pooled(head, s).float() for s in states])
    gap, scale = (ours - logits).abs().amax(-1), logits.abs().amax(-1)
    largest = scale.reshape(-1, _DRAWS).amax(1).repeat_interleave(_DRAWS)  # among equal sizes
    return bool((gap <= _CLOSE.get(own.dtype, _COARSE) * largest).all())


def _logits(
    model: Any, ids: Tensor, given: Mapping[str, Any], normed: Tap, states: Tensor
) -> Tensor:
    """The model's logits with states ``[n, length, width]`` in place of the trunk's."""
    n = len(states)
    rows = {k: v.expand(n, -1) if isinstance(v, Tensor) else v for k, v in given.items()}
    with attach({normed: partial(_instead, states)}):
        logits: Tensor = model(input_ids=ids.expand(n, -1), **rows).logits.float()
    return logits


def _instead(new: Tensor, _: Tensor) -> Tensor:
    return new


def _pooled(head: HeadMap, states: Tensor) -> Tensor:
    """What we read off the states ``[length, width]`` of one text."""
    weight, bias = head.rows()
    x = states if states.dtype == torch.float64 else states.float()
    if head.pool == "late":
        return (head.features(x) @ weight.to(x).T + bias.to(x)).mean(0)
    at = {"read": x[-1:], "first": x[:1], "mean": x.mean(0, keepdim=True)}
    return (head.features(at[head.pool]) @ weight.to(x).T + bias.to(x))[0]
