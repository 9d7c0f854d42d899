"""Finding a trunk's anatomy from one traced forward, and verifying it block by block.

Blocks are a chain of calls whose output is, bit for bit, the next call's input. The final norm is
the call after them that computes one; the head is the linear map that puts the logits out. Each
kind of block is searched once (:mod:`.block_search`); the plan is then verified on every block with
its real weights, one at a time in float32.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reward_lens.backbone.anatomy import Anatomy, Block, Heads, Write
from reward_lens.backbone.block_search import (
    TOLERANCE,
    BlockPlan,
    HeadsPlan,
    Specimen,
    WritePlan,
    is_affine,
    plan_block,
    relative_excess,
)
from reward_lens.backbone.norms import Norm, probe_norm
from reward_lens.backbone.taps import Tap
from reward_lens.backbone.tracing import Call, Path, pick, tensors_in, trace
from reward_lens.errors import AnatomyError

_PROBE_LENGTH = 9


def find_anatomy(model: nn.Module, config: Any, device: torch.device) -> Anatomy:
    """Find and verify the anatomy of a sequence classifier.

    Parameters
    ----------
    model : nn.Module
        Takes ``input_ids`` and ``attention_mask``; returns ``logits``.
    config : object
        Its configuration; read for the vocabulary size, the pad id and the head count only.
    device : torch.device
        Where the ids go.

    Returns
    -------
    Anatomy

    Raises
    ------
    AnatomyError
        If no chain of blocks, or no linear head that reads it, is found.
    """
    ids = probe_ids(config, device)
    calls = trace(model, input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    chain, enter, leave = find_blocks(calls)
    x = pick(_given(chain[0]), enter)
    expected = getattr(config, "num_attention_heads", None)
    state = pick(chain[-1].output, leave)
    norm, norm_call = _final_norm(calls, chain[-1], state, x.shape[-1])
    normed = (
        Tap(norm_call.module, norm_call.nth, ("out",))
        if norm_call is not None
        else Tap(chain[-1].module, chain[-1].nth, ("out", *leave))
    )
    head = _head(calls, norm_call.output if norm_call is not None else state)
    missing: dict[str, str] = {}
    blocks = _blocks(chain, enter, leave, expected, missing)
    causal = _is_causal(model, ids, normed)
    return Anatomy(blocks, norm, normed, x.shape[-1], head, causal, missing)


def probe_ids(config: Any, device: torch.device) -> Tensor:
    """A short row of distinct ids ``[1, 9]``, spread over the vocabulary and free of the pad id."""
    spread = np.unique(np.linspace(1, config.vocab_size - 2, _PROBE_LENGTH + 1).astype(int))
    kept = spread[spread != (config.pad_token_id if config.pad_token_id is not None else -1)]
    return torch.tensor(kept[:_PROBE_LENGTH], device=device)[None]


def find_blocks(calls: list[Call]) -> tuple[list[Call], Path, Path]:
    """Return the chain of block calls, where the stream enters each, and where it leaves.

    Of all module lists, the one with the most links wins, where a link is an output tensor that is
    the next member's input bit for bit; among equals, the first.

    Raises
    ------
    AnatomyError
        If there is none.
    """
    root = calls[0].module
    best: tuple[int, list[Call], Path, Path] | None = None
    for container in (m for m in root.modules() if isinstance(m, nn.ModuleList)):
        members = {id(m) for m in container}
        chain = [c for c in calls if id(c.module) in members]
        if not chain:
            continue
        links = _links(chain)
        if links is None:
            continue
        count, enter, leave = links
        if best is None or count > best[0]:
            best = (count, chain, enter, leave)
    if best is None:
        raise AnatomyError(
            "no chain of residual blocks was found: no list of modules passes a stream of one "
            "shape from each member to the next. This trunk can be scored, not looked into."
        )
    return best[1], best[2], best[3]


def _links(chain: list[Call]) -> tuple[int, Path, Path] | None:
    """Count links of a chain that share one pair of paths; all of them must be links."""
    if len(chain) == 1:
        return _single(chain[0])
    for leave, out in tensors_in(chain[0].output):
        for enter, given in chain[1].inputs():
            if given.shape != out.shape or out.dim() != 3 or not torch.equal(given, out):
                continue
            pairs = itertools.pairwise(chain)
            if all(_linked(a, b, enter, leave) for a, b in pairs):
                return len(chain), enter, leave
    return None


def _single(call: Call) -> tuple[int, Path, Path] | None:
    for leave, out in tensors_in(call.output):
        for enter, given in call.inputs():
            if out.dim() == 3 and given.shape == out.shape and out.is_floating_point():
                return 1, enter, leave
    return None


def _linked(a: Call, b: Call, enter: Path, leave: Path) -> bool:
    try:
        return torch.equal(pick(a.output, leave), pick(_given(b), enter))
    except (KeyError, IndexError, TypeError, RuntimeError):
        return False


def _given(call: Call) -> dict[str, Any]:
    return {"args": call.args, "kwargs": call.kwargs}


def _final_norm(
    calls: list[Call], last: Call, state: Tensor, width: int
) -> tuple[Norm | None, Call | None]:
    """The first call after the blocks that takes the last state and computes a norm."""
    inside = _descendants(calls, last)
    for call in calls[last.order + 1 :]:
        if call.order in inside or not isinstance(call.output, Tensor):
            continue
        if any(t.shape == state.shape and torch.equal(t, state) for _, t in call.inputs()):
            norm = probe_norm(call.module, width, state.device)
            if norm is not None:
                return norm, call
    return None, None


def _descendants(calls: list[Call], top: Call) -> set[int]:
    inside = {top.order}
    for call in calls[top.order + 1 :]:
        if call.parent in inside:
            inside.add(call.order)
    return inside


def _head(calls: list[Call], read: Tensor) -> nn.Module:
    """The linear map whose input is the trunk's output and whose output becomes the logits."""
    logits = calls[0].output["logits"]
    for call in reversed(calls[1:]):
        inputs = [t for _, t in call.inputs()]
        if len(inputs) != 1 or not isinstance(call.output, Tensor):
            continue
        if call.output.shape[-1] != logits.shape[-1] or inputs[0].shape[-1] != read.shape[-1]:
            continue
        rows = call.output.reshape(-1, logits.shape[-1])
        if not (rows == logits.reshape(-1, logits.shape[-1])[0]).all(-1).any():
            continue
        x = inputs[0].float()
        if torch.equal(inputs[0], read) and hasattr(call.module, "weight"):
            if call.module.weight.dtype == torch.float32 and not is_affine(call.module, x):
                continue
            return call.module
    raise AnatomyError(
        "no linear head that reads the trunk's last state was found; models whose head is not "
        "linear are not supported by this version"
    )


def _blocks(
    chain: list[Call],
    enter: Path,
    leave: Path,
    expected: int | None,
    missing: dict[str, str],
) -> tuple[Block, ...]:
    """Plan each kind of block once and verify the plan on every block."""
    plans: dict[tuple[Any, ...], BlockPlan] = {}
    blocks = []
    for layer, call in enumerate(chain):
        kind = _kind(call.module)
        if kind not in plans:
            plans[kind] = plan_block(Specimen(call, enter, leave, shift=True), expected)
        plan = plans[kind]
        specimen = Specimen(call, enter, leave, shift=False)
        writes = {w.mixes: w for w in plan.writes}
        reasons = dict(plan.missing)
        if plan.writes:
            reasons.update(_verify(specimen, plan))
        missing.update({f"L{layer}.{name}": why for name, why in reasons.items()})
        ok = bool(plan.writes) and "sublayer" not in reasons
        blocks.append(
            Block(
                enter=Tap(call.module, call.nth, enter),
                leave=Tap(call.module, call.nth, ("out", *leave)),
                attn=_write(call, writes[True], "head" not in reasons) if ok else None,
                mlp=_write(call, writes[False], False) if ok else None,
                sequential=ok and plan.sequential,
            )
        )
    return tuple(blocks)


def _kind(block: nn.Module) -> tuple[Any, ...]:
    """What makes two blocks of one kind: the same modules with parameters of the same shapes."""
    modules = tuple((n, type(m).__qualname__) for n, m in block.named_modules())
    shapes = tuple((n, tuple(p.shape)) for n, p in block.named_parameters())
    return modules, shapes


def _verify(specimen: Specimen, plan: BlockPlan) -> dict[str, str]:
    """Check a plan on one block's real weights; return what failed and why."""
    reasons: dict[str, str] = {}
    values = specimen.rerun([w.spot for w in plan.writes])
    error = relative_excess(
        specimen.x, specimen.output(), [v.reshape(specimen.x.shape) for v in values]
    )
    if error > TOLERANCE:
        reasons["sublayer"] = f"the writes miss what the block adds by {error:.1e} of its size"
    for write in plan.writes:
        if write.heads is not None:
            gap = _head_gap(specimen, write, write.heads)
            if gap > TOLERANCE:
                reasons["head"] = f"head writes miss the attention write by {gap:.1e} of its size"
    return reasons


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
            only[:, h * heads.width : (h + 1) * heads.width] = z[
                :, h * heads.width : (h + 1) * heads.width
            ]
            parts.append(linear(only) - constant)
    out = out.reshape(len(z), -1)
    return relative_excess(torch.zeros_like(out), out, parts)


def _write(call: Call, plan: WritePlan, with_heads: bool) -> Write:
    block: nn.Module = call.module
    heads = None
    if with_heads and plan.heads is not None:
        h = plan.heads
        heads = Heads(h.mixed.on(block), block.get_submodule(h.linear), h.n, h.width)
    norm = None
    if plan.norm is not None:
        module = block.get_submodule(plan.norm)
        width = next(iter(module.parameters())).shape[-1]
        norm = probe_norm(module, width, next(module.parameters()).device)
    return Write(
        tap=plan.spot.on(block),
        norm=norm,
        norm_input=plan.norm_input.on(block) if plan.norm_input is not None else None,
        heads=heads,
    )


def _is_causal(model: nn.Module, ids: Tensor, normed: Tap) -> bool:
    """Whether changing the last token leaves every earlier state exactly as it was."""
    from reward_lens.backbone.taps import attach

    def states(row: Tensor) -> Tensor:
        seen: list[Tensor] = []
        with attach({normed: seen.append}), torch.no_grad():
            model(input_ids=row, attention_mask=torch.ones_like(row), use_cache=False)
        return seen[0]

    other = ids.clone()
    other[0, -1] = ids[0, 0]
    a, b = states(ids)[:, :-1].float(), states(other)[:, :-1].float()
    return bool((a - b).abs().max() <= 1e-4 * a.abs().max())
