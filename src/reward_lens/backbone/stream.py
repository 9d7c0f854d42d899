"""A functional on the last state, pulled back through the residual stream to every write.

Between the embedding and the last state the stream is only added to, scaled, and, in post-norm
blocks, passed through norms. With those norms frozen at the item all of it is linear, so that a
functional on the last state is one on the stream at every depth and on every write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reward_lens.backbone.anatomy import Anatomy, Block, StreamNorm
from reward_lens.backbone.norms import FrozenNorm
from reward_lens.backbone.sites import Site
from reward_lens.errors import AnatomyError


@dataclass(frozen=True)
class FrozenStream:
    """The functional at every depth and on every write; all float64.

    Attributes
    ----------
    depth : tuple of Tensor
        ``[n, width]``: entry ``d`` acts on the stream after ``d`` blocks.
    constant : tuple of Tensor
        ``[n]``: entry ``d`` is what the norms after depth ``d`` add by their biases.
    writes : dict
        Site of a write -> ``[n, width]``.
    rounding : Tensor
        ``[n]``: what the model's own arithmetic loses in sums and norms, read along the functional.
    """

    depth: tuple[Tensor, ...]
    constant: tuple[Tensor, ...]
    writes: Mapping[Site, Tensor]
    rounding: Tensor


def write_sites(anatomy: Anatomy) -> list[Site]:
    """The sites of all writes, in order.

    Raises
    ------
    AnatomyError
        If the writes did not verify in every block; the reasons are given.
    """
    if not anatomy.adds_up:
        kinds = ("layer", ".sublayer", ".link")
        why = [f"{k}: {w}" for k, w in anatomy.missing.items() if k.endswith(kinds)]
        raise AnatomyError(f"the writes to this trunk's stream did not verify: {'; '.join(why)}")
    found = []
    for layer, block in enumerate(anatomy.blocks):
        found += [Site("attn_out", layer)] if block.attn is not None else []
        found += [Site("mlp_out", layer)] if block.mlp is not None else []
    return found


def stream_sites(anatomy: Anatomy) -> list[Site]:
    """Everything :func:`freeze_stream` needs to see: embed, writes, norms, the stream."""
    sites = [Site("embed"), *write_sites(anatomy)]
    for layer, block in enumerate(anatomy.blocks):
        sites += [Site(f"norm{k + 1}_{s}", layer) for k in range(len(block.norms))
                  for s in ("in", "out")]  # fmt: skip
        sites.append(Site("resid_post", layer))
    return sites


def freeze_stream(anatomy: Anatomy, states: Mapping[Site, Tensor], u: Tensor) -> FrozenStream:
    """Pull a functional back from the last state to the embedding.

    Parameters
    ----------
    anatomy : Anatomy
    states : mapping
        What :func:`stream_sites` names, ``[n, width]`` each.
    u : Tensor
        float64 ``[n, width]``, the functional on the last state.
    """
    constant = torch.zeros(len(u), dtype=torch.float64, device=u.device)
    depths, constants = [u], [constant]
    writes: dict[Site, Tensor] = {}
    rounding = torch.zeros_like(constant)
    for layer in range(len(anatomy.blocks) - 1, -1, -1):
        block = anatomy.blocks[layer]
        lost, u, added = _pull_through(block, layer, states, u, writes)
        rounding, constant = rounding + lost, constant + added
        depths.append(u)
        constants.append(constant)
    return FrozenStream(tuple(depths[::-1]), tuple(constants[::-1]), writes, rounding)


def _pull_through(
    block: Block, layer: int, states: Mapping[Site, Tensor], u: Tensor, writes: dict[Site, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Pull ``u`` back through one block; note it at the writes; return rounding, ``u``, biases."""
    number = len(block.norms)
    added = torch.zeros(len(u), dtype=torch.float64, device=u.device)
    # Per step, the functional on its output; norms with what they were frozen to.
    at: list[tuple[Tensor, FrozenNorm | None, int]] = []
    for step in reversed(block.steps):
        if isinstance(step, StreamNorm):
            entered = states[Site(f"norm{number}_in", layer)]
            frozen = step.norm.freeze(entered)
            at.append((u, frozen, number))
            added = added + (u * frozen.bias).sum(-1)
            u, number = frozen.pull_back(u), number - 1
        else:
            at.append((u, None, 0))
            writes.update({Site(kind, layer): u for kind in step.writes})
            u = u if step.carry is None else u * step.carry
    return _lost(block, layer, states, at[::-1]), u, added


def _lost(
    block: Block,
    layer: int,
    states: Mapping[Site, Tensor],
    at: list[tuple[Tensor, FrozenNorm | None, int]],
) -> Tensor:
    """What one block's sums and norms lose by rounding, each by its own formula."""
    before = Site("resid_post", layer - 1) if layer else Site("embed")
    expected = states[before].double()
    lost = torch.zeros(len(expected), dtype=torch.float64, device=expected.device)
    u = at[0][0]
    for step, (u_out, frozen, number) in zip(block.steps, at, strict=True):
        if isinstance(step, StreamNorm):
            assert frozen is not None
            entered = states[Site(f"norm{number}_in", layer)].double()
            left = states[Site(f"norm{number}_out", layer)].double()
            lost = lost + ((entered - expected) * frozen.pull_back(u_out)).sum(-1)
            lost = lost + ((left - frozen.apply(entered)) * u_out).sum(-1)
            expected = left
        else:
            carried = expected if step.carry is None else expected * step.carry
            expected = carried + sum(states[Site(k, layer)].double() for k in step.writes)
        u = u_out
    end = states[Site("resid_post", layer)].double()
    return lost + ((end - expected) * u).sum(-1)
