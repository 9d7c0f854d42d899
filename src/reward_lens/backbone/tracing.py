"""Watching one forward: every module call with what went in and what came out.

Tensors are cloned when the hook fires, because several models add in place afterwards and a
reference taken now would hold a later value.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

# A path names one tensor inside nested arguments or outputs: ("args", 0) or ("out",) or ("out", 0).
Path = tuple[str | int, ...]


def map_tensors(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """Apply ``fn`` to every tensor in nested tuples, lists and dicts; leave the rest."""
    if isinstance(value, Tensor):
        return fn(value)
    if type(value) in (tuple, list):
        return type(value)(map_tensors(v, fn) for v in value)
    if type(value) is dict:
        return {k: map_tensors(v, fn) for k, v in value.items()}
    return value


def tensors_in(value: Any, prefix: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Yield ``(path, tensor)`` for every tensor in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        yield prefix, value
    elif isinstance(value, (tuple, list)):
        for i, v in enumerate(value):
            yield from tensors_in(v, (*prefix, i))
    elif isinstance(value, dict):
        for k, v in value.items():
            yield from tensors_in(v, (*prefix, str(k)))


def pick(value: Any, path: Path) -> Any:
    """Return what ``path`` names inside nested containers."""
    for step in path:
        value = value[step]
    return value


def put(value: Any, path: Path, new: Any) -> Any:
    """Return a copy of the nested containers with ``new`` at ``path``."""
    if not path:
        return new
    head, *rest = path
    if isinstance(value, dict):
        changed = copy.copy(value)  # an output object stays one
        changed[head] = put(value[head], tuple(rest), new)
        return changed
    items = list(value)
    items[int(head)] = put(items[int(head)], tuple(rest), new)
    return type(value)(items) if type(value) in (tuple, list) else tuple(items)


@dataclass
class Call:
    """One call of one module.

    Attributes
    ----------
    name : str
        Dotted name relative to the traced module.
    order, parent : int
        Order of entry, and the order of the enclosing call (-1 at the top).
    nth : int
        How many calls of the same module came before.
    """

    name: str
    module: nn.Module
    order: int
    parent: int
    nth: int
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    output: Any = None

    def inputs(self) -> Iterator[tuple[Path, Tensor]]:
        """Every input tensor with its path: ``("args", 0)`` or ``("kwargs", "hidden_states")``."""
        yield from tensors_in({"args": self.args, "kwargs": self.kwargs})


def trace(module: nn.Module, *args: Any, **kwargs: Any) -> list[Call]:
    """Run ``module`` once without gradients and return its calls in order of entry."""
    calls: list[Call] = []
    stack: list[Call] = []
    counts: dict[int, int] = {}
    names = {id(m): n for n, m in module.named_modules()}

    def snapshot(value: Any) -> Any:
        if isinstance(value, dict):  # ModelOutput and the like become plain dicts
            value = dict(value)
        return map_tensors(value, lambda t: t.detach().clone())

    owner = threading.get_ident()  # other threads may be running the same modules

    def before(m: nn.Module, *rest: Any) -> None:
        if threading.get_ident() != owner:
            return
        a, k = rest
        nth = counts.get(id(m), 0)
        counts[id(m)] = nth + 1
        parent = stack[-1].order if stack else -1
        call = Call(names[id(m)], m, len(calls), parent, nth, snapshot(a), snapshot(k))
        calls.append(call)
        stack.append(call)

    def after(m: nn.Module, *rest: Any) -> None:
        if threading.get_ident() == owner:
            stack.pop().output = snapshot(rest[-1])

    handles: list[Any] = []
    try:
        for m in module.modules():
            handles.append(m.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(m.register_forward_hook(after, with_kwargs=True))
        with torch.no_grad():
            module(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return calls
