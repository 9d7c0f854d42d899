"""Finding what one residual block does, from one recorded call of it.

Inputs are numbers only: which module outputs add up to the stream that leaves
(:mod:`.stream_search`), which of them depend on other positions, and which channels of the last
linear map's input move together (:mod:`.head_split`). The search runs on a float32 copy with a
little noise added, because fresh biases of 0 and gains of 1 would hide an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from reward_lens.backbone.head_split import HeadsPlan, plan_heads
from reward_lens.backbone.norms import probe_norm
from reward_lens.backbone.specimen import Specimen, Spot
from reward_lens.backbone.stream_search import Program, StreamSearch, SumPlan
from reward_lens.backbone.tracing import Call, pick


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
    """What the search found in one kind of block; ``missing`` gives reasons by granularity.

    ``attn`` is the first write that mixes positions, ``mlp`` the other one.
    """

    program: Program = ()
    attn: WritePlan | None = None
    mlp: WritePlan | None = None
    sequential: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def writes(self) -> list[WritePlan]:
        """The writes that were found."""
        return [w for w in (self.attn, self.mlp) if w is not None]


def plan_block(
    specimen: Specimen, expected_heads: int | None, among: Sequence[str] | None = None
) -> BlockPlan:
    """Search one block for its writes, their roles, their order, and the heads.

    Parameters
    ----------
    specimen : Specimen
    expected_heads : int, optional
        The configuration's head count; a split that differs from it is not granted.
    among : sequence of str, optional
        Names of the modules whose outputs may be writes; all by default.
    """
    calls = specimen.calls()
    y = pick({"out": calls[0].output}, ("out", *specimen.leave))
    search = StreamSearch(specimen, calls, among)
    program = search.explain(y)
    if not program:
        return BlockPlan(
            missing={"sublayer": "no module outputs (scaled, or with norms of the stream between "
                     "them) add up to what the block does"}
        )  # fmt: skip
    chosen = [(s, search.values[s]) for step in program if isinstance(step, SumPlan)
              for s in step.writes]  # fmt: skip
    roles = _roles(specimen, chosen)
    if isinstance(roles, str):
        return BlockPlan(missing={"sublayer": roles})
    attn, mlp = (
        _with_norm(specimen, calls, chosen[k], mixes) if k is not None else None
        for k, mixes in zip(roles, (True, False), strict=True)
    )
    missing: dict[str, str] = {}
    if attn is not None:
        heads = plan_heads(specimen, calls, attn.norm_input or attn.spot, expected_heads)
        if isinstance(heads, str):
            missing["head"] = heads
        else:
            attn = replace(attn, heads=heads)
    sequential = attn is not None and mlp is not None and _sequential(specimen, attn, mlp)
    return BlockPlan(program, attn, mlp, sequential, missing)


def _roles(
    specimen: Specimen, chosen: list[tuple[Spot, Tensor]]
) -> tuple[int | None, int | None] | str:
    """Which write is the attention and which the MLP: indices, or why that cannot be said."""
    mixing = [_mixes(specimen, chosen, i) for i in range(len(chosen))]
    if len(chosen) == 1:
        return (0, None) if mixing[0] else (None, 0)
    if len(chosen) == 2 and any(mixing):
        # Where both mix (experts that choose among all tokens), the one that enters first attends.
        first = mixing.index(True)
        return first, 1 - first
    named = zip((spot.name for spot, _ in chosen), mixing, strict=True)
    found = ", ".join(f"{name} ({'mixing' if m else 'per token'})" for name, m in named)
    return f"expected one mixing and one other write, found {found}"


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


def _sequential(specimen: Specimen, attn: WritePlan, mlp: WritePlan) -> bool:
    """Whether the other write changes when the mixing write is replaced by zero."""
    (clean,) = specimen.rerun([mlp.spot])
    (seen,) = specimen.rerun([mlp.spot], edits={attn.spot: torch.zeros_like(specimen.x)})
    return not torch.equal(clean, seen)


def _with_norm(
    specimen: Specimen, calls: list[Call], write: tuple[Spot, Tensor], mixes: bool
) -> WritePlan:
    """Note the post-norm where the write is a norm's output (or an alias of it)."""
    spot, value = write
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
