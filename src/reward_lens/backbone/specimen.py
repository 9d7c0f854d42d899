"""One block taken out of a model: a float32 copy with its recorded arguments, to call again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reward_lens.backbone.taps import Handler, Tap, attach
from reward_lens.backbone.tracing import Call, Path, map_tensors, pick, put, trace

TOLERANCE = 1e-5  # relative to what was added; see relative_excess


@dataclass(frozen=True)
class Spot:
    """A tap by the name of its module relative to the block, so that it fits every such block."""

    name: str
    nth: int
    path: Path

    def on(self, block: nn.Module, earlier: Callable[[nn.Module], int] | None = None) -> Tap:
        """The tap at this spot of one block.

        Parameters
        ----------
        earlier : callable, optional
            How often a module was called before this call of the block: blocks may share modules.
        """
        module = block.get_submodule(self.name)
        before = earlier(module) if earlier is not None else 0
        return Tap(module, before + self.nth, self.path)


class Specimen:
    """A copy of one block with its recorded arguments, which can be called again.

    Parameters
    ----------
    call : Call
        The recorded call of the block within the model's own forward.
    enter, leave : Path
        Where the stream is among its inputs and in its output.
    shift : bool
        Add seeded noise to every parameter and to the stream, so that what the block *can* do
        shows: fresh biases of 0 and gains of 1, or weights set to 0 by hand, would hide it.
    dtype : torch.dtype
        float32, or float64 where coefficients are fitted.
    """

    def __init__(
        self,
        call: Call,
        enter: Path,
        leave: Path,
        *,
        shift: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.block = _converted(call.module, dtype).eval()
        self.enter, self.leave = enter, leave
        self.given = map_tensors(
            {"args": call.args, "kwargs": call.kwargs},
            lambda t: t.to(dtype) if t.is_floating_point() else t,
        )
        if shift:
            _shift_parameters(self.block)
            x = pick(self.given, enter)
            generator = torch.Generator().manual_seed(4)
            noise = torch.randn(x.shape, generator=generator).to(x)
            self.given = put(self.given, enter, x + noise * max(0.1 * float(x.std()), 0.02))
        self.x: Tensor = pick(self.given, enter)

    def calls(self) -> list[Call]:
        """Trace one call."""
        return trace(self.block, *self.given["args"], **self.given["kwargs"])

    @torch.no_grad()
    def output(self) -> Tensor:
        """The stream that leaves one call."""
        out: Tensor = pick(self.block(*self.given["args"], **self.given["kwargs"]), self.leave)
        return out

    def rerun(
        self,
        read: list[Spot],
        *,
        x: Tensor | None = None,
        edits: Mapping[Spot, Tensor] | None = None,
    ) -> list[Tensor]:
        """Call with another stream or with some tensors replaced.

        Returns the tensors at ``read`` as they were before any replacement.
        """
        given = self.given if x is None else put(self.given, self.enter, x)
        edits = edits or {}
        seen: dict[Spot, Tensor] = {}

        def handler(spot: Spot) -> Handler:
            def handle(tensor: Tensor) -> Tensor | None:
                seen[spot] = tensor.detach().clone()
                return edits[spot].view_as(tensor) if spot in edits else None

            return handle

        spots = {*read, *edits}
        with attach({s.on(self.block): handler(s) for s in spots}), torch.no_grad():
            self.block(*given["args"], **given["kwargs"])
        return [seen[s] for s in read]


def _converted(block: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in another dtype, each parameter converted as it is copied: never held twice."""
    memo: dict[int, Any] = {
        id(p): nn.Parameter(p.detach().to(dtype, copy=True), requires_grad=False)
        for p in block.parameters()
        if p.is_floating_point()
    }
    return copy.deepcopy(block, memo).to(dtype)


@torch.no_grad()
def _shift_parameters(block: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for p in block.parameters():
        if p.is_floating_point():
            scale = 0.1 if p.dim() == 1 else max(0.1 * float(p.std()), 0.02)
            p.add_(torch.randn(p.shape, generator=generator).to(p), alpha=scale)


def relative_excess(before: Tensor, after: Tensor, parts: list[Tensor]) -> float:
    """How far ``before + Σ parts`` misses ``after``, relative to what was added.

    Per row: the largest ``|after − before − Σ parts|``, less what adding to a large stream rounds
    away, over the largest ``Σ|parts|`` of the row (a single channel can cancel to nothing).
    """
    total = torch.stack([p.double() for p in parts])
    gap = (after.double() - before.double() - total.sum(0)).abs().amax(-1)
    stream = (before.abs() + after.abs()).amax(-1).double()
    rounding = 2 * torch.finfo(torch.float32).eps * stream
    scale = total.abs().sum(0).amax(-1).clamp_min(1e-30)
    return float(((gap - rounding).clamp_min(0) / scale).max())
