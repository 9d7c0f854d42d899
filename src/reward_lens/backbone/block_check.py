"""Verifying a plan on one block's real weights, and filling in the anatomy from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from reward_lens.backbone.anatomy import Block, Heads, StreamNorm, Sum, Write
from reward_lens.backbone.block_search import BlockPlan, WritePlan
from reward_lens.backbone.head_split import HeadsPlan
from reward_lens.backbone.norms import Norm, probe_norm
from reward_lens.backbone.specimen import TOLERANCE, Specimen, Spot, relative_excess
from reward_lens.backbone.stream_search import NormPlan, SumPlan, fit_sum, scaled
from reward_lens.backbone.taps import Tap
from reward_lens.backbone.tracing import Call, Path

Earlier = Callable[[nn.Module], int]


def checked_block(
    call: Call, enter: Path, leave: Path, plan: BlockPlan, earlier: Earlier
) -> tuple[Block, dict[str, str]]:
    """Verify a plan on one call of a block, in a float32 copy.

    Parameters
    ----------
    earlier : callable
        How often a module was called in the forward before this call.

    Returns
    -------
    block : Block
        With what verified.
    reasons : dict
        Granularity -> why it did not.
    """
    reasons = dict(plan.missing)
    bare = Block(
        enter=Tap(call.module, call.nth, enter), leave=Tap(call.module, call.nth, ("out", *leave))
    )
    if "sublayer" in reasons:
        return bare, reasons
    specimen = Specimen(call, enter, leave, shift=False)
    steps = _steps(call, specimen, plan, (enter, leave), earlier)
    if isinstance(steps, str):
        return bare, {**reasons, "sublayer": steps}
    if plan.attn is not None and plan.attn.heads is not None:
        gap = _head_gap(specimen, plan.attn, plan.attn.heads)
        if gap > TOLERANCE:
            reasons["head"] = f"head writes miss the attention write by {gap:.1e} of its size"
    scales, filled = steps
    width = specimen.x.shape[-1]

    def write(plan: WritePlan, with_heads: bool) -> Write:
        return _write(call, plan, scales, width, earlier, with_heads)

    block = replace(
        bare,
        steps=filled,
        attn=write(plan.attn, "head" not in reasons) if plan.attn else None,
        mlp=write(plan.mlp, False) if plan.mlp else None,
        sequential=plan.sequential,
    )
    return block, reasons


Scales = dict[Spot, Tensor | None]


def _steps(
    call: Call,
    specimen: Specimen,
    plan: BlockPlan,
    ends: tuple[Path, Path],
    earlier: Earlier,
) -> tuple[Scales, tuple[Sum | StreamNorm, ...]] | str:
    """Run the program on the block as it is; return coefficients and steps, or what failed."""
    fitted = any(isinstance(s, SumPlan) and s.fit != "one" for s in plan.program)
    exact = _in_float64(call, ends) if fitted else None
    kinds = {w.spot: k for w, k in ((plan.attn, "attn_out"), (plan.mlp, "mlp_out")) if w}
    scales: Scales = {}
    steps: list[Sum | StreamNorm] = []
    for k, step in enumerate(plan.program):
        if isinstance(step, NormPlan):
            norm = _norm(call.module, step.name, specimen.x.shape[-1])
            if norm is None:
                return f"{step.name} is no norm in this block"
            taps = (spot.on(call.module, earlier) for spot in (step.entered, step.left))
            steps.append(StreamNorm(norm, *taps))
            continue
        fit_on = exact if exact is not None and step.fit != "one" else specimen
        base, target, values = _terms(fit_on, plan.program, k)
        coefficients = fit_sum(base, target, values, step.fit)
        base, target, values = _terms(specimen, plan.program, k)
        first, *parts = [scaled(t, c) for t, c in zip((base, *values), coefficients, strict=True)]
        error = relative_excess(first, target, parts)
        if error > TOLERANCE:
            return f"the writes miss what the block adds by {error:.1e} of its size"
        scales.update(zip(step.writes, coefficients[1:], strict=True))
        steps.append(Sum(tuple(kinds[s] for s in step.writes), coefficients[0]))
    return scales, tuple(steps)


def _in_float64(call: Call, ends: tuple[Path, Path]) -> Specimen | None:
    """The block in float64, where coefficients come out exact; ``None`` if it does not run so."""
    try:
        specimen = Specimen(call, *ends, shift=False, dtype=torch.float64)
        specimen.output()
    except RuntimeError:  # some fused kernels refuse float64
        return None
    return specimen


def _terms(
    specimen: Specimen, program: Sequence[SumPlan | NormPlan], k: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """What sum ``k`` starts from, what it arrives at, and what it adds."""
    step = program[k]
    assert isinstance(step, SumPlan)
    before = program[k - 1] if k else None
    after = program[k + 1] if k + 1 < len(program) else None
    spots = list(step.writes)
    spots += [before.left] if isinstance(before, NormPlan) else []
    spots += [after.entered] if isinstance(after, NormPlan) else []
    seen = dict(zip(spots, specimen.rerun(spots), strict=True))
    shape = specimen.x.shape
    base = seen[before.left].reshape(shape) if isinstance(before, NormPlan) else specimen.x
    target = (
        seen[after.entered].reshape(shape) if isinstance(after, NormPlan) else specimen.output()
    )
    return base, target, [seen[s].reshape(shape) for s in step.writes]


def _head_gap(specimen: Specimen, write: WritePlan, heads: HeadsPlan) -> float:
    """Relative gap between the attention write and the sum over heads of the linear map."""
    spot = write.norm_input or write.spot
    z, out = specimen.rerun([heads.mixed, spot])
    linear = specimen.block.get_submodule(heads.linear)
    z = z.reshape(-1, z.shape[-1])
    with torch.no_grad():
        constant = linear(torch.zeros_like(z[:1]))
        parts = [constant.expand(len(z), -1)]
        for h in range(heads.n):
            only = torch.zeros_like(z)
            at = slice(h * heads.width, (h + 1) * heads.width)
            only[:, at] = z[:, at]
            parts.append(linear(only) - constant)
    out = out.reshape(len(z), -1)
    return relative_excess(torch.zeros_like(out), out, parts)


def _norm(block: nn.Module, name: str, width: int) -> Norm | None:
    module = block.get_submodule(name)
    device = next((p.device for p in block.parameters()), torch.device("cpu"))
    return probe_norm(module, width, device)


def _write(
    call: Call, plan: WritePlan, scales: Scales, width: int, earlier: Earlier, with_heads: bool
) -> Write:
    block: nn.Module = call.module
    heads = None
    if with_heads and plan.heads is not None:
        h = plan.heads
        heads = Heads(h.mixed.on(block, earlier), block.get_submodule(h.linear), h.n, h.width)
    norm: Any = None
    if plan.norm is not None:
        norm = _norm(block, plan.norm, width)
    return Write(
        tap=plan.spot.on(block, earlier),
        scale=scales.get(plan.spot),
        norm=norm,
        norm_input=plan.norm_input.on(block, earlier) if plan.norm_input is not None else None,
        heads=heads,
    )
