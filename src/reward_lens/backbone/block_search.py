"""Finding what one residual block adds to the stream, from one recorded call of it.

Inputs are numbers only: which module outputs add up to the difference of the stream, which of them
depend on other positions, and which channels of the last linear map's input move together. The
search runs on a float32 copy with a little noise added, because fresh biases of 0 and gains of 1
would hide an error.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from reward_lens.backbone.norms import probe_norm
from reward_lens.backbone.taps import Handler, Tap, attach
from reward_lens.backbone.tracing import Call, Path, map_tensors, pick, put, tensors_in, trace

TOLERANCE = 1e-5  # relative to what was added; see relative_excess
_MAX_WRITES = 3
_BUMPED_CHANNELS = 12  # fewer can miss the query rows of a fused projection


@dataclass(frozen=True)
class Spot:
    """A tap by the name of its module relative to the block, so that it fits every such block."""

    name: str
    nth: int
    path: Path

    def on(self, block: nn.Module) -> Tap:
        """The tap at this spot of one block."""
        return Tap(block.get_submodule(self.name), self.nth, self.path)


@dataclass(frozen=True)
class HeadsPlan:
    """The last linear map of an attention write, where its input is seen, and its split."""

    linear: str
    mixed: Spot
    n: int
    width: int


@dataclass(frozen=True)
class WritePlan:
    """A write; ``norm`` names the post-norm whose output it is, where there is one."""

    spot: Spot
    mixes: bool
    norm: str | None = None
    norm_input: Spot | None = None
    heads: HeadsPlan | None = None


@dataclass(frozen=True)
class BlockPlan:
    """What the search found in one kind of block; ``missing`` gives reasons by granularity."""

    writes: tuple[WritePlan, ...] = ()
    sequential: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)


class Specimen:
    """A float32 copy of one block with its recorded arguments, which can be called again.

    Parameters
    ----------
    call : Call
        The recorded call of the block within the model's own forward.
    enter, leave : Path
        Where the stream is among its inputs and in its output.
    shift : bool
        Add seeded noise to every parameter and to the stream, so that what the block *can* do
        shows: fresh biases of 0 and gains of 1, or weights set to 0 by hand, would hide it.
    """

    def __init__(self, call: Call, enter: Path, leave: Path, *, shift: bool) -> None:
        self.block = copy.deepcopy(call.module).float().eval()
        self.enter, self.leave = enter, leave
        self.given = map_tensors(
            {"args": call.args, "kwargs": call.kwargs},
            lambda t: t.float() if t.is_floating_point() else t,
        )
        if shift:
            _shift_parameters(self.block)
            x = pick(self.given, enter)
            generator = torch.Generator().manual_seed(4)
            noise = torch.randn(x.shape, generator=generator).to(x.device)
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


@torch.no_grad()
def _shift_parameters(block: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for p in block.parameters():
        if p.is_floating_point():
            scale = 0.1 if p.dim() == 1 else max(0.1 * float(p.std()), 0.02)
            p.add_(scale * torch.randn(p.shape, generator=generator).to(p.device))


def plan_block(specimen: Specimen, expected_heads: int | None) -> BlockPlan:
    """Search one block for its writes, their roles, their order, and the heads.

    Parameters
    ----------
    specimen : Specimen
    expected_heads : int, optional
        The configuration's head count; a split that differs from it is not granted.
    """
    calls = specimen.calls()
    candidates = _candidates(calls, specimen.x)
    y = pick({"out": calls[0].output}, ("out", *specimen.leave))
    chosen = _summands(specimen.x, y, candidates)
    if chosen is None:
        return BlockPlan(missing={"sublayer": "no module outputs add up to what the block adds"})
    mixing = [_mixes(specimen, chosen, i) for i in range(len(chosen))]
    if sorted(mixing) != [False, True]:
        roles = zip((spot.name for spot, _ in chosen), mixing, strict=True)
        found = ", ".join(f"{name} ({'mixing' if m else 'per token'})" for name, m in roles)
        return BlockPlan(
            missing={"sublayer": f"expected one mixing and one other write, found {found}"}
        )
    missing: dict[str, str] = {}
    writes = []
    for (spot, value), mixes in zip(chosen, mixing, strict=True):
        plan = _with_norm(specimen, calls, spot, value, mixes)
        if mixes:
            heads = plan_heads(specimen, calls, plan, expected_heads)
            if isinstance(heads, str):
                missing["head"] = heads
            else:
                plan = WritePlan(plan.spot, mixes, plan.norm, plan.norm_input, heads)
        writes.append(plan)
    return BlockPlan(tuple(writes), _sequential(specimen, writes), missing)


def _candidates(calls: list[Call], x: Tensor) -> list[tuple[Spot, Tensor]]:
    """Every distinct output inside the block that has the stream's size; the shallowest of equals.

    Two calls with equal outputs are one tensor passed on; the one entered first is outermost.
    """
    found: list[tuple[Spot, Tensor]] = []
    for call in calls[1:]:
        for path, tensor in tensors_in({"out": call.output}):
            if tensor.shape[-1] != x.shape[-1] or tensor.numel() != x.numel():
                continue
            value = tensor.reshape(x.shape)
            if not any(torch.equal(value, other) for _, other in found):
                found.append((Spot(call.name, call.nth, path), value))
    return found


def _summands(
    before: Tensor, after: Tensor, candidates: list[tuple[Spot, Tensor]]
) -> list[tuple[Spot, Tensor]] | None:
    """The smallest set of candidates that makes ``after`` of ``before``; the best of equals."""
    for k in range(1, _MAX_WRITES + 1):
        best: tuple[float, list[tuple[Spot, Tensor]]] | None = None
        for subset in itertools.combinations(candidates, k):
            error = relative_excess(before, after, [v for _, v in subset])
            if error <= TOLERANCE and (best is None or error < best[0]):
                best = (error, list(subset))
        if best is not None:
            return best[1]
    return None


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


def _perturbed_before_last(specimen: Specimen) -> Tensor:
    """The stream with every position but the last changed: one far token can go unnoticed."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(specimen.x.shape, generator=generator).to(specimen.x.device)
    noise[..., -1, :] = 0
    return specimen.x + noise * specimen.x.std()


def _mixes(specimen: Specimen, writes: list[tuple[Spot, Tensor]], which: int) -> bool:
    """Whether a write at the last position changes with earlier ones, other writes held."""
    spot, value = writes[which]
    held = {s: v for i, (s, v) in enumerate(writes) if i != which}
    (seen,) = specimen.rerun([spot], x=_perturbed_before_last(specimen), edits=held)
    gap = (seen.reshape(value.shape)[..., -1, :] - value[..., -1, :]).abs().max()
    return bool(gap > 1e-4 * value[..., -1, :].abs().max())


def _sequential(specimen: Specimen, writes: list[WritePlan]) -> bool:
    """Whether the other write changes when the mixing write is replaced by zero."""
    mixing = next(w for w in writes if w.mixes)
    other = next(w for w in writes if not w.mixes)
    (clean,) = specimen.rerun([other.spot])
    zero = torch.zeros_like(specimen.x)
    (seen,) = specimen.rerun([other.spot], edits={mixing.spot: zero})
    return not torch.equal(clean, seen)


def _with_norm(
    specimen: Specimen, calls: list[Call], spot: Spot, value: Tensor, mixes: bool
) -> WritePlan:
    """Note the post-norm where the write is a norm's output (or an alias of it)."""
    width = specimen.x.shape[-1]
    for call in calls[1:]:
        inputs = [(p, t) for p, t in call.inputs() if t.shape[-1] == width]
        if len(inputs) != 1 or not isinstance(call.output, Tensor):
            continue
        if call.output.numel() != value.numel():
            continue
        if not torch.equal(call.output.reshape(value.shape), value):
            continue
        if probe_norm(call.module, width, value.device) is not None:
            return WritePlan(spot, mixes, call.name, Spot(call.name, call.nth, inputs[0][0]))
    return WritePlan(spot, mixes)


def plan_heads(
    specimen: Specimen, calls: list[Call], write: WritePlan, expected: int | None
) -> HeadsPlan | str:
    """Find the last linear map below an attention write and the head that each channel belongs to.

    Returns the plan, or the reason why there is none.
    """
    target_spot = write.norm_input or write.spot
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
        if not any(p.dim() >= 2 for p in call.module.parameters()):
            continue
        if is_affine(call.module, inputs[0][1]):
            return call, inputs[0][0]
    return None


@torch.no_grad()
def is_affine(module: nn.Module, x: Tensor) -> bool:
    """Whether ``f(x + y) - f(x) == f(y) - f(0)`` on two unrelated inputs."""
    generator = torch.Generator().manual_seed(2)
    y = torch.randn(x.shape, generator=generator).to(x) * x.std()
    zero = torch.zeros_like(x)
    left, right = module(x + y) - module(x), module(y) - module(zero)
    return bool((left - right).abs().max() <= 1e-4 * right.abs().max())


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
