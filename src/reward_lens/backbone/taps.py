"""Seeing and replacing tensors inside one forward, safely when several threads share a model.

Hooks are registered for the duration of one forward and removed whatever happens. They act only in
the thread that attached them. A hook may still be called by another thread in the moment it is
being removed, then with fewer arguments; so hooks take any arguments and ask for the thread first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from reward_lens.backbone.tracing import Path, pick, put
from reward_lens.errors import AnatomyError

#: What to do with a tensor: look (return None) or give the one to use in its place.
Handler = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True, repr=False)
class Tap:
    """Where one tensor can be seen: a call of a module, and the path inside it.

    Attributes
    ----------
    module : nn.Module
    nth : int
        Which call of this module within one forward (a module may be called several times).
    path : tuple
        ``("args", 0)`` or ``("kwargs", name)`` for an input; ``("out", ...)`` for an output.
    """

    module: nn.Module
    nth: int
    path: Path

    def __repr__(self) -> str:
        return f"Tap({type(self.module).__name__}, call {self.nth}, {self.path})"


#: Handlers that run before, and handlers that run after, whatever else is done in a forward.
Around = tuple[Mapping[Tap, Handler], Mapping[Tap, Handler]]


@contextmanager
def attach(handlers: Mapping[Tap, Handler]) -> Iterator[None]:
    """Call each handler with the tensor at its tap during the one forward run inside the block.

    Parameters
    ----------
    handlers : mapping of Tap to callable
        A handler that returns a tensor replaces what the tap saw.

    Raises
    ------
    AnatomyError
        If a tap was not passed: what it is on is no longer part of the model.
    """
    owner = threading.get_ident()
    by_module: dict[nn.Module, list[tuple[Tap, Handler]]] = {}
    met: set[Tap] = set()
    for tap, handler in handlers.items():
        by_module.setdefault(tap.module, []).append((tap, _noting(met, tap, handler)))
    entered: dict[nn.Module, int] = dict.fromkeys(by_module, 0)
    left: dict[nn.Module, int] = dict.fromkeys(by_module, 0)

    def before(module: nn.Module, *rest: Any) -> Any:
        if threading.get_ident() != owner:
            return None
        nth, entered[module] = entered[module], entered[module] + 1
        given = {"args": rest[0], "kwargs": rest[1]}
        edited = _run(by_module[module], nth, given, inputs=True)
        return None if edited is None else (edited["args"], edited["kwargs"])

    def after(module: nn.Module, *rest: Any) -> Any:
        if threading.get_ident() != owner:
            return None
        nth, left[module] = left[module], left[module] + 1
        edited = _run(by_module[module], nth, {"out": rest[-1]}, inputs=False)
        return None if edited is None else edited["out"]

    handles = []
    try:
        for module, taps in by_module.items():
            if any(tap.path[0] != "out" for tap, _ in taps):
                handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            if any(tap.path[0] == "out" for tap, _ in taps):
                handles.append(module.register_forward_hook(after, with_kwargs=True))
        yield
        if len(met) < len(handlers):
            tap = next(t for t in handlers if t not in met)
            raise AnatomyError(
                f"a {type(tap.module).__name__} that was found inside this model is not called any "
                f"more: the model was rebuilt after it was wrapped; wrap it again"
            )
    finally:
        for handle in handles:
            handle.remove()


def _noting(met: set[Tap], tap: Tap, handler: Handler) -> Handler:
    def note(tensor: Tensor) -> Tensor | None:
        met.add(tap)
        return handler(tensor)

    return note


def _run(
    taps: list[tuple[Tap, Handler]], nth: int, given: dict[str, Any], *, inputs: bool
) -> dict[str, Any] | None:
    changed = False
    for tap, handler in taps:
        if tap.nth == nth and (tap.path[0] != "out") == inputs:
            seen = pick(given, tap.path)
            new = handler(seen)
            if new is not None:  # in the dtype and on the device of what it replaces
                given, changed = put(given, tap.path, new.to(seen)), True
    return given if changed else None


def merge(*handlers: Mapping[Tap, Handler]) -> dict[Tap, Handler]:
    """Join handlers; two on one tap run one after the other."""
    merged: dict[Tap, Handler] = {}
    for group in handlers:
        for tap, handler in group.items():
            merged[tap] = _then(merged[tap], handler) if tap in merged else handler
    return merged


def _then(first: Handler, second: Handler) -> Handler:
    def both(tensor: Tensor) -> Tensor | None:
        new = first(tensor)
        later = second(tensor if new is None else new)
        return new if later is None else later

    return both
