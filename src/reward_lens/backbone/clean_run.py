"""A clean forward of a batch, kept so far that later runs can start inside it.

Kept are what every block was called with, the keys and values of its attention, and the stream
between blocks. What depends on the tokens among a block's arguments (mask, positions) is told from
what does not by its shape in two forwards of different sizes, never by its name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from reward_lens.backbone.anatomy import Block
from reward_lens.backbone.batching import Batch
from reward_lens.backbone.key_store import KeyStore, cache_argument
from reward_lens.backbone.routers import choices
from reward_lens.backbone.row_choice import Rows
from reward_lens.backbone.site_taps import site_taps
from reward_lens.backbone.sites import Site
from reward_lens.backbone.taps import Handler, Tap, merge
from reward_lens.backbone.tracing import Path, tensors_in
from reward_lens.backbone.trunk import Trunk
from reward_lens.errors import AnatomyError

MASK, TOKENS, CONSTANT = "mask", "tokens", "constant"


@dataclass(frozen=True)
class BlockCall:
    """What one block was called with."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def tensors(self) -> dict[Path, Tensor]:
        """Every tensor among the arguments, by path."""
        return dict(tensors_in({"args": self.args, "kwargs": self.kwargs}))


@dataclass(frozen=True)
class Layout:
    """What each tensor among the blocks' arguments is, beside the stream.

    Attributes
    ----------
    roles : tuple of dict
        Per block: path -> ``"mask"`` (``[batch, heads, query, key]``), ``"tokens"`` (tokens in its
        second dimension) or ``"constant"``.
    keys : tuple of int
        Per block: the number its keys are kept under.
    """

    roles: tuple[dict[Path, str], ...]
    keys: tuple[int, ...]


@dataclass
class CleanRun:
    """One batch, run clean.

    Attributes
    ----------
    batch : Batch
        With one more padded column than it needs, so that every mask is spelled out.
    calls : list of BlockCall
    kept : dict
        Keys and values; see :class:`~reward_lens.backbone.key_store.KeyStore`.
    stream : list of Tensor
        ``[batch, length, width]`` entering each block, and last what leaves the last one.
    states : dict
        Site -> ``[batch, length, ...]``, what was asked for.
    normed : Tensor
        ``[batch, length, width]``. Of all three the selected rows only, where rows were selected.
    chosen : dict
        Layer -> ``[batch, length, k]``: expert numbers, sorted.
    """

    batch: Batch
    calls: list[BlockCall] = field(default_factory=list)
    kept: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    stream: list[Tensor] = field(default_factory=list)
    states: dict[Site, Tensor] = field(default_factory=dict)
    normed: Tensor = field(default_factory=lambda: torch.empty(0))
    chosen: dict[int, Tensor] = field(default_factory=dict)


@torch.no_grad()
def run_clean(
    trunk: Trunk,
    batch: Batch,
    sites: Sequence[Site],
    routers: Mapping[int, Tap],
    *,
    rows: Rows | None = None,
    keep: bool = True,
) -> CleanRun:
    """Run a batch clean.

    Parameters
    ----------
    sites : sequence of Site
        What to capture beside the stream.
    rows : callable, optional
        Selects from what is captured, and from the stream, the rows to keep; by default all.
    keep : bool
        Whether later runs will start inside it; else only ``states`` and ``normed`` are kept.

    Raises
    ------
    AnatomyError
        If it is to be kept and this trunk takes no cache.
    """
    batch = _padded(batch, trunk.pad_id) if keep else batch
    found, shape = CleanRun(batch), (batch.ids.shape[0], batch.ids.shape[1])
    seen: dict[Any, Tensor] = {}

    def keeper(key: Any) -> Handler:
        def look(tensor: Tensor) -> None:
            # Where all rows are kept, a copy: some models add to a tensor in place later on.
            value = tensor.detach().clone() if rows is None else tensor.detach()
            value = value if value.shape[:2] == shape else value.reshape(*shape, -1)
            seen[key] = value if rows is None or key in routers else rows(batch, value)

        return look

    blocks = trunk.anatomy.blocks
    taps = {tap for site in sites for tap in site_taps(trunk.anatomy, site)}
    groups = [{tap: keeper(tap)} for tap in taps]
    groups += [{trunk.anatomy.normed: keeper("normed")}]
    groups += [{tap: keeper(layer)} for layer, tap in routers.items()]
    given: dict[str, Any] = {}
    store = KeyStore()
    if keep:
        streams = [*(b.enter for b in blocks), blocks[-1].leave]
        groups += [{tap: keeper(("stream", k))} for k, tap in enumerate(streams)]
        name = cache_argument(trunk)
        if name is None:
            raise AnatomyError("this trunk hands its keys to no cache")
        given = {name: store, "use_cache": True}
    with _recorded([b.enter.module for b in blocks] if keep else []) as calls:
        trunk.forward(batch, merge(*groups), **given)
    found.calls, found.kept = calls, store.kept
    found.states = {s: trunk.assemble(s, seen) for s in sites}
    found.normed = seen["normed"]
    found.chosen = {layer: choices(seen[layer], shape) for layer in routers}
    if keep:
        found.stream = [seen["stream", k] for k in range(len(blocks) + 1)]
    return found


def _padded(batch: Batch, pad_id: int) -> Batch:
    """One more column of padding: a mask that hides nothing may be left out by the model."""

    def wider(tensor: Tensor, value: int) -> Tensor:
        return torch.nn.functional.pad(tensor, (0, 1), value=value)

    return replace(
        batch,
        ids=wider(batch.ids, pad_id),
        mask=wider(batch.mask, 0),
        positions=torch.cat([batch.positions, batch.positions[:, -1:]], 1),
        types=None if batch.types is None else wider(batch.types, 0),
    )


@contextmanager
def _recorded(blocks: Sequence[nn.Module]) -> Iterator[list[BlockCall]]:
    """Note what each block is called with, in this thread, in order."""
    owner, calls = threading.get_ident(), list[BlockCall]()

    def note(module: nn.Module, *rest: Any) -> None:
        if threading.get_ident() == owner:
            calls.append(BlockCall(module, rest[0], dict(rest[1])))

    handles = [b.register_forward_pre_hook(note, with_kwargs=True) for b in dict.fromkeys(blocks)]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def find_layout(trunk: Trunk, one: CleanRun, other: CleanRun) -> Layout:
    """Tell what the blocks' arguments are from two clean runs of different sizes.

    Raises
    ------
    AnatomyError
        If something about them is not understood; names the layer and says what.
    """
    blocks = trunk.anatomy.blocks
    if len(one.calls) != len(blocks) or len(other.calls) != len(blocks):
        raise AnatomyError("a block is called more than once")
    roles = []
    for layer, (a, b) in enumerate(zip(one.calls, other.calls, strict=True)):
        found, again = a.tensors(), b.tensors()
        if set(found) != set(again):
            raise AnatomyError(f"layer {layer} is not always called with the same arguments")
        stream = blocks[layer].enter.path
        if any(t.nth for t in _taps(blocks[layer])) or a.module is not blocks[layer].leave.module:
            raise AnatomyError(f"layer {layer}, or a part of it, is called more than once")
        mine = {
            path: _role(layer, path, (tensor, one.batch), (again[path], other.batch))
            for path, tensor in found.items()
            if path != stream
        }
        if MASK not in mine.values():
            raise AnatomyError(f"layer {layer} is handed no mask of queries and keys")
        roles.append(mine)
    return Layout(tuple(roles), _key_numbers(trunk, one))


def _taps(block: Block) -> list[Tap]:
    """Every tap of a block."""
    found = [block.enter, block.leave]
    for norm in block.norms:
        found += [norm.entered, norm.left]
    for write in (block.attn, block.mlp):
        if write is not None:
            found += [write.tap, *([write.norm_input] if write.norm_input else [])]
            found += [write.heads.mixed] if write.heads else []
    return found


def _role(layer: int, path: Path, first: tuple[Tensor, Batch], second: tuple[Tensor, Batch]) -> str:
    """What one tensor is, by which of its sizes follow the batch and its length."""
    (a, one), (b, other) = first, second
    (rows, length), (rows2, length2) = one.ids.shape, other.ids.shape
    if a.dim() == b.dim():
        sizes = list(enumerate(zip(a.shape, b.shape, strict=True)))
        along = [k for k, both in sizes if both == (length, length2)]
        moving = [k for k, (x, y) in sizes if x != y and k not in along]
        batched = [k for k in moving if sizes[k][1] == (rows, rows2)]
        if moving == batched and set(batched) <= {0}:
            if along == [2, 3] and a.dim() == 4:
                return MASK
            if along == [1] and a.shape[0] in (1, rows):
                return TOKENS
            if not along and not batched:
                return CONSTANT
    raise AnatomyError(
        f"layer {layer} is called with {'.'.join(map(str, path[1:]))} {tuple(a.shape)}, which is "
        f"neither a mask nor laid out by token"
    )


def _key_numbers(trunk: Trunk, run: CleanRun) -> tuple[int, ...]:
    """The number that each block's keys are kept under."""
    numbers = sorted(run.kept)
    rows, length = run.batch.ids.shape
    fits = all(
        t.dim() == 4 and (t.shape[0], t.shape[2]) == (rows, length)
        for kept in run.kept.values()
        for t in kept
    )
    if len(numbers) != trunk.n_layers or not fits:
        raise AnatomyError(
            f"{len(numbers)} of {trunk.n_layers} layers keep keys and values for every token"
        )
    return tuple(numbers)
