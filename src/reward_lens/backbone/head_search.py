"""Finding the head: which tokens are read, and what is done to them until they are logits.

After the last block the traced calls are followed by value: each next step is a call whose one
input is the current value (or one token of it, or its mean, or a known activation of it). What a
module does inside is followed first; only where that leads nowhere is it taken whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from reward_lens.backbone.head_map import HeadMap, HeadStep, is_affine_head
from reward_lens.backbone.linear import is_affine
from reward_lens.backbone.tracing import Call, tensors_in

_CLOSE = {torch.float32: 1e-5}  # of the largest value
_COARSE = 2e-2  # half precision rounds means and activations
_ACTIVATIONS = (
    "tanh", "gelu", "relu", "silu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "sigmoid",
    "mish", "leaky_relu",
)  # fmt: skip


@dataclass(frozen=True)
class _Path:
    """A partial way from the trunk's output to the logits."""

    value: Tensor  # [tokens, channels] before pooling, [channels] after
    order: int
    pool: str | None
    steps: tuple[HeadStep, ...]


def find_head(
    calls: list[Call], state: Tensor, after: int, holds: Callable[[HeadMap], bool]
) -> HeadMap | None:
    """Find the head of a traced classifier.

    Parameters
    ----------
    calls : list of Call
        A traced forward of one text; ``calls[0].output["logits"]`` is ``[1, rows]``.
    state : Tensor
        ``[1, tokens, width]``, the trunk's output.
    after : int
        Order of the call that put it out.
    holds : callable
        Judges a candidate on states that are not the traced text's: an activation that does
        nothing there (a ReLU on positive values) would be lost otherwise.

    Returns
    -------
    HeadMap or None
    """
    logits = calls[0].output["logits"]
    logits = logits.reshape(-1, logits.shape[-1])[-1] if logits.dim() != 1 else logits
    start = _Path(state[0], after, None, ())
    whole = next((c for c in calls if c.order == after), None)
    inside = _inside(calls, whole)
    later = [c for c in calls[after + 1 :] if c.order not in inside]
    for path in _follow(start, later, logits, depth=0):
        last = path.steps[-1]
        x = _states(state, path.pool or "read")
        if not is_affine(last.module, _input_of_last(path.steps, x)):
            continue
        affine = is_affine_head(path.steps, x)
        found = HeadMap(path.steps, path.pool or "read", state.shape[-1], affine)
        if holds(found):
            return found
    return None


def _states(state: Tensor, pool: str) -> Tensor:
    return state[0] if pool in ("read", "late", "first") else state[0].mean(0, keepdim=True)


@torch.no_grad()
def _input_of_last(steps: tuple[HeadStep, ...], x: Tensor) -> Tensor:
    head = HeadMap(steps, "read", x.shape[-1], affine=False)
    return head.features(x)


def _follow(start: _Path, calls: list[Call], logits: Tensor, depth: int) -> Iterator[_Path]:
    """Every way from ``start`` through the calls that ends at the logits."""
    end = _finished(start, logits)
    if end is not None and start.steps:
        yield end
        return
    if depth > 12:
        return
    for call in calls:
        if call.order <= start.order:
            continue
        inside = _inside(calls, call)
        for step in _steps(start, call):
            if len(inside) > 1:
                inner = [c for c in calls if c.order in inside and c is not call]
                yield from _through(start, inner, calls, call, logits, depth)
            yield from _follow(replace(step, order=max(inside)), calls, logits, depth + 1)


def _through(
    start: _Path, inner: list[Call], calls: list[Call], call: Call, logits: Tensor, depth: int
) -> Iterator[_Path]:
    """Ways that follow what a module does inside, to its own output and on."""
    target = call.output if isinstance(call.output, Tensor) else None
    if target is None:
        return
    for path in _follow(replace(start, order=call.order), inner, target, depth + 1):
        yield from _follow(path, calls, logits, depth + 1)


def _steps(path: _Path, call: Call) -> Iterator[_Path]:
    """The ways one call can continue a path: its input is the value, a part or a function of it."""
    inputs = [t for _, t in tensors_in({"args": call.args}) if t.is_floating_point()]
    inputs += [t for _, t in tensors_in({"kwargs": call.kwargs}) if t.is_floating_point()]
    if len(inputs) != 1 or not isinstance(call.output, Tensor):
        return
    given, out = inputs[0], call.output
    for pool, value in _views(path):
        for name in (None, *_ACTIVATIONS):
            seen = value if name is None else ACT2FN[name](value.float()).to(value.dtype)
            if not _equal(seen, given):
                continue
            yield from _continued(path, call, name, pool, seen, out)


def _views(path: _Path) -> Iterator[tuple[str | None, Tensor]]:
    """The current value as it is, and, before pooling, the ways it can be pooled."""
    yield path.pool, path.value
    if path.pool is None and path.value.dim() == 2:
        yield "read", path.value[-1]
        yield "first", path.value[0]
        yield "mean", path.value.mean(0)


def _equal(value: Tensor, given: Tensor) -> bool:
    if given.numel() != value.numel() or given.shape[-1] != value.shape[-1]:
        return False
    a, b = given.reshape(value.shape).float(), value.float()
    allowed = _CLOSE.get(given.dtype, _COARSE)
    return bool((a - b).abs().max() <= allowed * b.abs().max())


def _continued(
    path: _Path, call: Call, act: str | None, pool: str | None, seen: Tensor, out: Tensor
) -> Iterator[_Path]:
    step = HeadStep(call.name, call.module, act)
    rows = out.numel() // out.shape[-1]
    if rows == seen.numel() // seen.shape[-1]:
        value = out.reshape(*seen.shape[:-1], out.shape[-1])
        if act is None and torch.equal(out.reshape(-1), seen.reshape(-1)):
            yield replace(path, value=value, order=call.order, pool=pool)  # dropout in eval
        else:
            yield replace(path, value=value, pool=pool, steps=(*path.steps, step))
    elif rows == 1 and pool is None:  # the module picks a token itself
        chosen = _picked_inside(call.module, seen, out.reshape(-1))
        if chosen is not None:
            step = replace(step, unsqueeze=True)
            yield replace(path, value=out.reshape(-1), pool=chosen, steps=(*path.steps, step))


@torch.no_grad()
def _picked_inside(module: nn.Module, states: Tensor, out: Tensor) -> str | None:
    """Which one token, handed over as a text of its own, gives the module's output."""
    for pool, one in (("first", states[0]), ("read", states[-1]), ("mean", states.mean(0))):
        try:
            alone = module(one[None, None])
        except Exception:  # whatever a module raises on a text of one token
            return None
        if isinstance(alone, Tensor) and _equal(out, alone):
            return pool
    return None


def _finished(path: _Path, target: Tensor) -> _Path | None:
    """The path at its end: its value is the target, or its last or first token or mean is."""
    rows = target.reshape(-1, target.shape[-1])
    if path.value.numel() == rows.numel():
        return path if _equal(path.value, target) else None
    if path.pool is not None or len(rows) > 1:
        return None
    pools = (("read", path.value[-1]), ("first", path.value[0]), ("late", path.value.mean(0)))
    for pool, one in pools:
        if _equal(one, rows):
            return replace(path, value=rows[0], pool=pool)
    return None


def _inside(calls: list[Call], top: Call | None) -> set[int]:
    """Orders of a call and of everything it called."""
    if top is None:
        return set()
    inside = {top.order}
    for call in calls:
        if call.order > top.order and call.parent in inside:
            inside.add(call.order)
    return inside
