"""Attention writes at the read token, split by the token they come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reward_lens.backbone.attention import AttentionWatch
from reward_lens.backbone.batching import Batch
from reward_lens.backbone.heads import head_functional
from reward_lens.backbone.row_choice import read_rows
from reward_lens.backbone.sites import Site
from reward_lens.backbone.stream import freeze_stream, stream_sites
from reward_lens.backbone.taps import Handler, Tap, merge
from reward_lens.backbone.trunk import Trunk
from reward_lens.errors import AnatomyError


@dataclass(frozen=True)
class SourceShares:
    """Attention writes of a batch, projected and split by source token; all float64.

    Attributes
    ----------
    shares : Tensor
        ``[batch, layer, length]``, by column of the batch.
    constant : Tensor
        ``[batch, layer]``: biases, which no token owns.
    write : Tensor
        ``[batch, layer]``: the projection of the write itself.
    """

    shares: Tensor
    constant: Tensor
    write: Tensor


@torch.no_grad()
def attention_sources(
    trunk: Trunk, batch: Batch, read: Sequence[int], last: Callable[[Tensor, Tensor], Tensor]
) -> SourceShares:
    """Split every layer's attention write at one token per row by source token.

    Parameters
    ----------
    read : sequence of int
        Token index per item.
    last : callable
        Maps the last block's states and the normed states at those tokens, ``[batch, width]``
        each, to the functional on the last state, float64 ``[batch, width]``.

    Raises
    ------
    AnatomyError
        Naming the layer whose attention, computed again, does not reproduce its write.
    """
    layers = range(trunk.n_layers)
    kinds = ("head_in", "attn_raw")
    sites = [*stream_sites(trunk.anatomy), *(Site(k, i) for i in layers for k in kinds)]
    seen, watch = _watched(trunk, batch, read, [*sites, Site("final_norm")])
    u = last(seen[Site("resid_post", trunk.n_layers - 1)], seen[Site("final_norm")])
    writes = freeze_stream(trunk.anatomy, seen, u).writes
    shares, constants, projected = [], [], []
    for i in layers:
        head_in, at = seen[Site("head_in", i)], Site("attn_out", i)
        found = next((s for s in watch.found.get(i, []) if s.reproduces(head_in)), None)
        if found is None:
            raise AnatomyError(
                f"L{i}: the attention seen in the forward does not reproduce the heads' output "
                f"(kernel {trunk.kernel}), so it cannot be split by source token"
            )
        write = trunk.anatomy.write(at)
        pulled, constant = head_functional(write, writes[at], seen[Site("attn_raw", i)])
        shares.append(torch.einsum("bhj,bhjd,bhd->bj", found.pattern, found.values, pulled))
        constants.append(constant)
        projected.append((seen[at].double() * writes[at]).sum(-1))
    return SourceShares(
        torch.stack(shares, 1), torch.stack(constants, 1), torch.stack(projected, 1)
    )


def _watched(
    trunk: Trunk, batch: Batch, read: Sequence[int], sites: Sequence[Site]
) -> tuple[dict[Site, Tensor], AttentionWatch]:
    """Run a batch, keep sites at the read tokens, and watch each layer's attention."""
    columns = torch.as_tensor([read[int(i)] for i in batch.index], device=trunk.device)
    running = [0]
    watch = AttentionWatch(columns + batch.offset, lambda: running[0])

    def enter(layer: int) -> Handler:
        def handle(tensor: Tensor) -> None:
            running[0] = layer

        return handle

    marks: dict[Tap, Handler] = {}
    for i, block in enumerate(trunk.anatomy.blocks):
        marks = merge(marks, {block.enter: enter(i)})
    with watch:
        return trunk.capture(batch, sites, read_rows(read), marks), watch
