"""Finding a trunk's anatomy from one traced forward, and verifying it block by block.

Blocks are a chain of calls whose output is, bit for bit, the next call's input. The final norm is
the call after them that computes one; the head is followed by value to the logits
(:mod:`.head_search`). Each kind of block is searched once (:mod:`.block_search`); the plan is then
verified on every block with its real weights (:mod:`.block_check`).
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reward_lens.backbone.anatomy import Anatomy, Block
from reward_lens.backbone.block_check import checked_block
from reward_lens.backbone.block_search import BlockPlan, plan_block
from reward_lens.backbone.head_check import head_holds
from reward_lens.backbone.head_search import find_head
from reward_lens.backbone.inputs import no_cache
from reward_lens.backbone.naming import USUAL_WRITES, AnatomyNames
from reward_lens.backbone.norms import Norm, probe_norm
from reward_lens.backbone.specimen import Specimen
from reward_lens.backbone.taps import Tap, attach
from reward_lens.backbone.tracing import Call, Path, pick, tensors_in, trace
from reward_lens.errors import AnatomyError

_PROBE_LENGTH = 9
_SAME = 1e-5  # of the largest value: experts that group tokens round them differently (1e-6)


def find_anatomy(
    model: Any, config: Any, device: torch.device, names: AnatomyNames | None = None
) -> Anatomy:
    """Find and verify the anatomy of a sequence classifier.

    Parameters
    ----------
    model : nn.Module
        Takes ``input_ids`` and ``attention_mask``; returns ``logits``.
    config : object
        Its configuration; read for the vocabulary size, the pad id and the head count only.
    device : torch.device
        Where the ids go.
    names : AnatomyNames, optional
        What a user says about it.

    Returns
    -------
    Anatomy

    Raises
    ------
    AnatomyError
        If no way from the trunk's output to the logits is found, or a name names nothing.
    """
    names = names or AnatomyNames()
    _refuse_kind(model)
    ids = probe_ids(config, device)
    mask = torch.ones_like(ids)
    given = {"attention_mask": mask, **no_cache(model, ids)}
    calls = _traced(model, ids, given)
    missing: dict[str, str] = {}
    found = find_blocks(
        calls, names.blocks, base=model.base_model, expected=_count(config, "num_hidden_layers")
    )
    if found is None:
        missing["layer"] = (
            "no chain of residual blocks was found: no list of modules passes a stream of one "
            "shape from each member to the next"
        )
        end = next(c for c in calls if c.module is model.base_model)
        path, state = next((p, t) for p, t in tensors_in(end.output) if t.dim() == 3)
        blocks: tuple[Block, ...] = ()
    else:
        chain, enter, path = found
        end, state = chain[-1], pick(chain[-1].output, path)
        missing.update(_broken(chain, enter, path))
        missing.update(_entered_again(chain, enter))
        expected = _count(config, "num_attention_heads")
        blocks = _blocks(calls, found, expected, names, missing)
    norm, norm_call = _final_norm(calls, end, state, names.final_norm)
    if norm_call is not None:
        end, path, state = norm_call, (), norm_call.output
    normed = Tap(end.module, end.nth, ("out", *path))
    head = find_head(calls, state, end.order, partial(head_holds, model, ids, given, normed))
    if head is None:
        raise AnatomyError(
            "no way from the trunk's last state to the logits was found: the head is no chain of "
            "modules that ends in a linear map, or it reads more than one token and their mean"
        )
    causal = _is_causal(model, ids, given, normed)
    return Anatomy(blocks, norm, normed, state.shape[-1], head, causal, missing)


def probe_ids(config: Any, device: torch.device) -> Tensor:
    """A short row of distinct ids ``[1, 9]``, spread over the vocabulary and free of the pad id.

    Raises
    ------
    AnatomyError
        If the vocabulary, or the longest text, is too small to probe with.
    """
    spread = np.unique(np.linspace(1, config.vocab_size - 2, _PROBE_LENGTH + 1).astype(int))
    kept = spread[spread != (config.pad_token_id if config.pad_token_id is not None else -1)]
    longest = _count(config, "max_position_embeddings") or _PROBE_LENGTH
    kept = kept[: min(_PROBE_LENGTH, longest)]
    if len(kept) < 3:
        raise AnatomyError(
            f"a vocabulary of {config.vocab_size} ids and texts of at most {longest} tokens are "
            f"too few to probe this model with"
        )
    return torch.tensor(kept, device=device)[None]


def _count(config: Any, name: str) -> int | None:
    value = getattr(config, name, None)
    return value if isinstance(value, int) and value > 0 else None


def _refuse_kind(model: Any) -> None:
    """Raise for models that must not even be run once.

    Raises
    ------
    AnatomyError
        Saying why.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise AnatomyError(
            "this is an encoder-decoder: its head reads a decoder state at an end token, which is "
            "not supported"
        )
    if getattr(model.config, "attention_type", None) == "block_sparse":
        raise AnatomyError(
            "this model (attention_type='block_sparse') switches its attention for good when it "
            "meets a short text, so looking at it would change it; set "
            "config.attention_type='original_full' and load it again"
        )
    if hasattr(model, "_orig_mod"):
        raise AnatomyError("this is a compiled model; pass the one it was made of (._orig_mod)")


def _traced(model: Any, ids: Tensor, given: dict[str, Any]) -> list[Call]:
    """One traced forward.

    Raises
    ------
    AnatomyError
        If this is no classifier of one text, or it does not run on a short one.
    """
    try:
        calls = trace(model, input_ids=ids, **given)
    except Exception as error:  # whatever a model raises on ids and a mask alone
        raise AnatomyError(
            f"the model does not run on a text of {ids.shape[1]} ids and a mask: "
            f"{type(error).__name__}: {error}"
        ) from error
    output = calls[0].output
    logits = output.get("logits") if isinstance(output, dict) else None
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != 1:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else None
        raise AnatomyError(
            f"a classifier puts out logits [batch, rows] under that name; {type(model).__name__} "
            f"puts out {shape} for one text. If it has config.return_dict=False, set it to True"
        )
    return calls


def find_blocks(
    calls: list[Call],
    named: str | None = None,
    *,
    base: nn.Module | None = None,
    expected: int | None = None,
) -> tuple[list[Call], Path, Path] | None:
    """Return the chain of block calls, where the stream enters each, and where it leaves.

    Of all module lists of the base model, the one with the most links wins, where a link is an
    output tensor that is the next member's input bit for bit; before that, one that has as many
    members as the configuration says layers; among equals, the first. At least half of a chain's
    neighbours must be linked, and some member must change the stream.

    Raises
    ------
    AnatomyError
        If ``named`` names no module list of the model, or one that is no chain.
    """
    root = calls[0].module
    lists = {n: m for n, m in root.named_modules() if isinstance(m, nn.ModuleList)}
    if named is not None:
        if named not in lists:
            raise AnatomyError(f"blocks={named!r} names no module list; there are {list(lists)}")
        lists = {named: lists[named]}
    inside = {id(m) for m in (base if base is not None else root).modules()}
    found: list[tuple[int, nn.ModuleList, list[Call], Path, Path]] = []
    for container in (m for m in lists.values() if id(m) in inside):
        members = {id(m) for m in container}
        chain = [c for c in calls if id(c.module) in members]
        links = _links(chain) if chain else None
        if links is not None:
            found.append((links[0], container, chain, links[1], links[2]))
    found = [f for f in found if _changes(*f[2:])] or found
    said = next((c for _, c, chain, _, _ in found if len(chain) == expected), None)
    if said is not None:
        within = {id(m) for m in said.modules()}
        found = [f for f in found if id(f[1]) in within]
    best = max(found, key=lambda f: f[0], default=None)
    if best is None and named is not None:
        raise AnatomyError(f"blocks={named!r}: its members do not pass a stream on to each other")
    return None if best is None else best[2:]


def _links(chain: list[Call]) -> tuple[int, Path, Path] | None:
    """The pair of paths that links most neighbours of a chain, with the number of its members."""
    if len(chain) == 1:
        return _single(chain[0])
    best: tuple[int, Path, Path] | None = None
    for first, second in itertools.pairwise(chain):
        for leave, out in tensors_in(first.output):
            for enter, given in second.inputs():
                if given.shape != out.shape or out.dim() != 3 or not torch.equal(given, out):
                    continue
                n = sum(_linked(a, b, enter, leave) for a, b in itertools.pairwise(chain))
                if 2 * n >= len(chain) - 1 and (best is None or n + 1 > best[0]):
                    best = (n + 1, enter, leave)
        if best is not None and best[0] == len(chain):
            break
    return best


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


def _changes(chain: list[Call], enter: Path, leave: Path) -> bool:
    """Whether any member puts out another stream than it is given."""
    return any(not torch.equal(pick(_given(c), enter), pick(c.output, leave)) for c in chain)


def _entered_again(chain: list[Call], enter: Path) -> dict[str, str]:
    """Say where the embedding goes into a later block beside the stream."""
    x = pick(_given(chain[0]), enter)
    for layer, call in enumerate(chain[1:], 1):
        beside = (t for path, t in call.inputs() if path != enter and t.shape == x.shape)
        if any(torch.equal(t, x) for t in beside):
            return {"embed.again": f"the embedding also enters block {layer} beside the stream"}
    return {}


def _broken(chain: list[Call], enter: Path, leave: Path) -> dict[str, str]:
    """Where something that is no block changes the stream between two blocks."""
    why = "something that is no block changes the stream before this one, so writes do not add up"
    pairs = enumerate(itertools.pairwise(chain))
    return {f"L{i + 1}.link": why for i, (a, b) in pairs if not _linked(a, b, enter, leave)}


def _given(call: Call) -> dict[str, Any]:
    return {"args": call.args, "kwargs": call.kwargs}


def _final_norm(
    calls: list[Call], last: Call, state: Tensor, named: str | None
) -> tuple[Norm | None, Call | None]:
    """The first call after the blocks that takes the last state and computes a norm.

    Raises
    ------
    AnatomyError
        If ``named`` names no such call.
    """
    inside = _descendants(calls, last)
    for call in calls[last.order + 1 :]:
        if call.order in inside or not isinstance(call.output, Tensor):
            continue
        if named is not None and call.name != named:
            continue
        if any(t.shape == state.shape and torch.equal(t, state) for _, t in call.inputs()):
            norm = probe_norm(call.module, state.shape[-1], state.device)
            if norm is not None:
                return norm, call
    if named is not None:
        raise AnatomyError(f"final_norm={named!r} is no norm of the last block's output")
    return None, None


def _descendants(calls: list[Call], top: Call) -> set[int]:
    inside = {top.order}
    for call in calls[top.order + 1 :]:
        if call.parent in inside:
            inside.add(call.order)
    return inside


def _blocks(
    calls: list[Call],
    found: tuple[list[Call], Path, Path],
    expected: int | None,
    names: AnatomyNames,
    missing: dict[str, str],
) -> tuple[Block, ...]:
    """Plan each kind of block once and verify the plan on every block."""
    plans: dict[tuple[Any, ...], BlockPlan] = {}
    blocks = []
    chain, enter, leave = found
    for layer, call in enumerate(chain):
        earlier = partial(_times_called, calls[: call.order])
        kind = _kind(call.module)
        if kind not in plans:
            plans[kind] = _plan(Specimen(call, enter, leave, shift=True), expected, names)
        block, reasons = checked_block(call, enter, leave, plans[kind], earlier)
        missing.update({f"L{layer}.{name}": why for name, why in reasons.items()})
        blocks.append(block)
    return tuple(blocks)


def _times_called(calls: list[Call], module: nn.Module) -> int:
    return sum(c.module is module for c in calls)


def _plan(specimen: Specimen, expected: int | None, names: AnatomyNames) -> BlockPlan:
    """By structure; where that finds nothing, among modules with the usual names."""
    plan = plan_block(specimen, expected, names.writes)
    if plan.program or names.writes is not None:
        return plan
    tried = (plan_block(specimen, expected, usual) for usual in USUAL_WRITES)
    return next((p for p in tried if p.program), plan)


def _kind(block: nn.Module) -> tuple[Any, ...]:
    """What makes two blocks of one kind: the same modules with parameters of the same shapes."""
    modules = tuple((n, type(m).__qualname__) for n, m in block.named_modules())
    shapes = tuple((n, tuple(p.shape)) for n, p in block.named_parameters())
    return modules, shapes


def _is_causal(model: nn.Module, ids: Tensor, given: dict[str, Any], normed: Tap) -> bool:
    """Whether changing the last token leaves every earlier state as it was."""

    def states(row: Tensor) -> Tensor:
        seen: list[Tensor] = []
        with attach({normed: seen.append}), torch.no_grad():
            model(input_ids=row, **given)
        return seen[0]

    other = ids.clone()
    other[0, -1] = ids[0, 0]
    a, b = states(ids)[:, :-1].float(), states(other)[:, :-1].float()
    return bool((a - b).abs().max() <= _SAME * a.abs().max())
