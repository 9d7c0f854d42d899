"""The same network in other coordinates: the residual stream permuted, all scores as they were.

A norm of the root-mean-square kind commutes with any signed permutation of the stream's coordinates
(its gains are permuted along), LayerNorm with any permutation. So a copy of a model whose every
matrix that reads or writes the stream is permuted accordingly computes the same function, while its
states and its head's direction look like those of another model. Which parameters touch the stream,
and along which dimension, is read off one traced forward: a tensor is part of the stream where its
rows are, bit for bit, rows of the stream. The result counts only if its scores are the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from reward_lens.backbone.anatomy import StreamNorm, Sum
from reward_lens.backbone.anatomy_search import probe_ids
from reward_lens.backbone.inputs import no_cache
from reward_lens.backbone.linear import linear_map
from reward_lens.backbone.norms import Norm, probe_norm
from reward_lens.backbone.taps import Tap
from reward_lens.backbone.tracing import Call, pick, tensors_in, trace
from reward_lens.backbone.trunk import Trunk
from reward_lens.errors import AnatomyError

#: Largest gap between the two models' logits, as a share of the largest logit, in float32.
TOLERANCE = 1e-5
_PROBES = 4


class Basis:
    """A signed permutation of the stream's coordinates.

    Parameters
    ----------
    order : Tensor
        int64 ``[width]``: new coordinate ``i`` is old coordinate ``order[i]``, times ``signs[i]``.
    signs : Tensor
        ``[width]``, each 1 or −1.
    """

    def __init__(self, order: Tensor, signs: Tensor) -> None:
        self.order, self.signs = order, signs

    @classmethod
    def draw(cls, width: int, seed: int, *, signed: bool) -> Basis:
        """A random one."""
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(width, generator=generator)
        signs = torch.ones(width)
        if signed:
            signs = 2.0 * torch.randint(0, 2, (width,), generator=generator) - 1.0
        return cls(order, signs)

    def along(self, tensor: Tensor, dim: int, *, signed: bool = True) -> Tensor:
        """A tensor with one of its dimensions in the new coordinates."""
        moved = tensor.index_select(dim, self.order.to(tensor.device))
        if not signed:
            return moved
        shape = [-1 if d == dim % tensor.dim() else 1 for d in range(tensor.dim())]
        return moved * self.signs.to(moved).reshape(shape)


def in_other_basis(trunk: Trunk, seed: int) -> tuple[nn.Module, Basis]:
    """A copy of a trunk's model, head included, whose stream has other coordinates.

    Returns
    -------
    model : nn.Module
        Its logits are those of the original; no weight of the original is touched.
    basis : Basis
        Signed where every norm of the stream is of the root-mean-square kind.

    Raises
    ------
    AnatomyError
        If no blocks were found, or the copy's logits differ: then some parameter that touches the
        stream was not recognised.
    """
    if not trunk.anatomy.blocks:
        raise AnatomyError(
            f"this trunk's blocks were not found, so its stream is unknown: "
            f"{trunk.anatomy.missing.get('layer', 'no reason is recorded')}"
        )
    ids = probe_ids(trunk.config, trunk.device)
    base_call = {"attention_mask": torch.ones_like(ids), **no_cache(trunk.model, ids)}
    stream = _Stream(trunk, trace(trunk.model, input_ids=ids, **base_call))
    basis = Basis.draw(trunk.anatomy.width, seed, signed=stream.signable)
    model = copy.deepcopy(trunk.model)
    moves = dict(stream.moves())
    pairs = zip(trunk.model.parameters(), model.parameters(), strict=True)
    with torch.no_grad():
        for original, new in pairs:
            for dim, signed in moves.get(id(original), ()):
                new.copy_(basis.along(new, dim, signed=signed))
    gap = _largest_gap(trunk, model, base_call)
    if not gap <= TOLERANCE:
        raise AnatomyError(
            f"a copy of this model in other coordinates scores differently (by {gap:.1e} of the "
            f"largest logit, {TOLERANCE:.0e} is allowed): a parameter that reads or writes the "
            f"stream was not recognised, so no gauge twin of it can be made"
        )
    return model, basis


class _Stream:
    """Which tensors of a traced forward are rows of the residual stream, in any norm's scale."""

    def __init__(self, trunk: Trunk, calls: list[Call]) -> None:
        self.width, self.device = trunk.anatomy.width, trunk.device
        self.calls = calls
        self.rows: set[bytes] = set()
        self.norms: dict[int, Norm] = {}
        for module in {id(c.module): c.module for c in calls}.values():
            if any(p.shape != (self.width,) for p in module.parameters()):
                continue  # a norm has gain and bias, or neither
            found = probe_norm(module, self.width, self.device)
            if found is not None:
                self.norms[id(module)] = found
        self._by_place = {(id(c.module), c.nth): c for c in calls}
        for tap in _stream_taps(trunk):
            self._add(self._at(tap))
        self._between_sublayers(trunk)
        for call in calls:
            if isinstance(call.module, nn.Embedding):
                self._add(call.output)
        while self._through_norms():
            pass

    def _at(self, tap: Tap) -> Tensor | None:
        """What a tap saw in the traced forward."""
        call = self._by_place.get((id(tap.module), tap.nth))
        if call is None:
            return None
        said = {"args": call.args, "kwargs": call.kwargs, "out": call.output}
        found: Tensor = pick(said, tap.path)
        return found

    def _between_sublayers(self, trunk: Trunk) -> None:
        """Add what modules are given that is the stream plus the attention's write, rounded."""
        given = [t for c in self.calls for _, t in c.inputs() if t.is_floating_point()]
        for block in trunk.anatomy.blocks:
            stream = self._at(block.enter)
            write = block.attn
            if stream is None or write is None or (raw := self._at(write.tap)) is None:
                continue
            first = next((s for s in block.steps if isinstance(s, Sum)), None)
            carry = 1.0 if first is None or first.carry is None else first.carry
            scale = 1.0 if write.scale is None else write.scale
            middle = carry * stream.double() + scale * raw.double().reshape(stream.shape)
            for tensor in given:
                same = tensor.shape[-1:] == (self.width,) and tensor.numel() == middle.numel()
                if same and _close(tensor, middle.reshape(tensor.shape)):
                    self._add(tensor)

    @property
    def signable(self) -> bool:
        """Whether every norm that the stream passes takes its rows with any signs."""
        met = [self.norms[id(c.module)] for c in self.calls if id(c.module) in self.norms]
        return bool(met) and all(
            not n.centred and len(list(n.module.parameters())) == 1 for n in met
        )

    def moves(self) -> Iterator[tuple[int, list[tuple[int, bool]]]]:
        """Parameter (by identity) -> the dimensions that are in stream coordinates, and if signed.

        The gains of a norm are permuted and keep their sign.
        """
        done: set[int] = set()
        for call in self.calls:
            reads = any(self._holds(t) for _, t in call.inputs())
            writes = any(self._holds(t) for _, t in tensors_in(call.output))
            for p in call.module.parameters(recurse=False):
                if id(p) in done or not (reads or writes):
                    continue
                dims = self._dims(call, p, reads, writes)
                if dims:
                    done.add(id(p))
                    yield id(p), [(d, id(call.module) not in self.norms) for d in dims]

    def _dims(self, call: Call, p: Tensor, reads: bool, writes: bool) -> list[int]:
        wide = [d for d, size in enumerate(p.shape) if size == self.width]
        if p.dim() == 1:
            return wide if writes else []
        if isinstance(call.module, nn.Embedding):
            return [1] if writes and 1 in wide else []
        if p.dim() == 2 and len(wide) == 2:
            out_dim, in_dim = self._sides(call.module, p)
            return [out_dim] * writes + [in_dim] * reads
        return wide if len(wide) == 1 else []

    def _sides(self, module: nn.Module, p: Tensor) -> tuple[int, int]:
        """Which dimension of a square matrix is its output, and which its input."""
        matrix, _ = linear_map(module, self.width, self.device)
        return (0, 1) if torch.equal(matrix, p.detach().double().T) else (1, 0)

    def _add(self, tensor: Any) -> bool:
        if not isinstance(tensor, Tensor) or tensor.shape[-1:] != (self.width,):
            return False
        before = len(self.rows)
        self.rows |= set(_row_bytes(tensor))
        return len(self.rows) > before

    def _holds(self, tensor: Tensor) -> bool:
        if tensor.shape[-1:] != (self.width,) or not tensor.is_floating_point():
            return False
        rows = _row_bytes(tensor)
        return bool(rows) and all(r in self.rows for r in rows)

    def _through_norms(self) -> bool:
        """What goes into a norm is in the stream if what comes out is, and the other way round."""
        grew = False
        for call in self.calls:
            if id(call.module) not in self.norms:
                continue
            ends = [[t for _, t in call.inputs()], [t for _, t in tensors_in(call.output)]]
            if any(self._holds(t) for end in ends for t in end):
                for tensor in (t for end in ends for t in end):
                    grew |= self._add(tensor)
        return grew


def _close(tensor: Tensor, exact: Tensor) -> bool:
    """Whether a tensor is what its dtype leaves of an exact one."""
    step = 4 * torch.finfo(tensor.dtype).eps
    return bool((tensor.double() - exact).abs().max() <= step * exact.abs().max())


def _row_bytes(tensor: Tensor) -> list[bytes]:
    """The bits of every row that is not zero throughout; adding 0 makes both zeros one."""
    rows = (tensor.detach().float() + 0.0).reshape(-1, tensor.shape[-1]).cpu().numpy()
    return [r.tobytes() for r in rows if r.any()]


def _stream_taps(trunk: Trunk) -> Iterator[Tap]:
    """Where the stream, or what is added to it, is seen."""
    yield trunk.anatomy.normed
    for block in trunk.anatomy.blocks:
        yield block.enter
        yield block.leave
        for write in (block.attn, block.mlp):
            if write is not None:
                yield write.tap
                if write.norm_input is not None:
                    yield write.norm_input
        for step in block.steps:
            if isinstance(step, StreamNorm):
                yield step.entered
                yield step.left


def _largest_gap(trunk: Trunk, model: nn.Module, given: dict[str, Any]) -> float:
    """The largest difference of logits on a few rows of ids, as a share of the largest logit."""
    ids = probe_ids(trunk.config, trunk.device)
    generator = torch.Generator().manual_seed(1)
    shuffled = [ids[:, torch.randperm(ids.shape[1], generator=generator).to(ids.device)]
                for _ in range(_PROBES - 1)]  # fmt: skip
    rows = torch.cat([ids, *shuffled])
    given = {**given, "attention_mask": torch.ones_like(rows)}
    with torch.no_grad():
        ours, theirs = (
            _in_float32(m)(input_ids=rows, **given).logits for m in (trunk.model, model)
        )
    return float((ours - theirs).abs().max() / ours.abs().max())


def _in_float32(model: nn.Module) -> nn.Module:
    if all(p.dtype == torch.float32 for p in model.parameters()):
        return model
    return copy.deepcopy(model).float()
