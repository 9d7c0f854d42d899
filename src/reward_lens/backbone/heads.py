"""Head writes: the attention's last linear map, split by query head."""

from __future__ import annotations

import torch
from torch import Tensor

from reward_lens.backbone.anatomy import Anatomy, Write
from reward_lens.backbone.edits import Target
from reward_lens.backbone.linear import linear_map


def head_writes(write: Write, mixed: Tensor, raw: Tensor | None) -> Tensor:
    """What each head adds to the stream.

    Parameters
    ----------
    mixed : Tensor
        ``[..., heads * head width]``, the input of the attention's last linear map.
    raw : Tensor, optional
        ``[..., width]``, the input of the write's post-norm, where it has one.

    Returns
    -------
    Tensor
        ``[..., heads, width]`` in the dtype of ``mixed``; biases belong to no head.
    """
    assert write.heads is not None
    heads = write.heads
    flat = mixed.reshape(-1, heads.n, heads.width).double()
    matrix, _ = linear_map(heads.linear, heads.n * heads.width, mixed.device)
    out = torch.einsum("nhw,hwd->nhd", flat, matrix.reshape(heads.n, heads.width, -1))
    if write.norm is not None and raw is not None:
        frozen = write.norm.freeze(raw.reshape(len(flat), -1))
        out = torch.stack([frozen.apply(o) - frozen.bias for o in out.unbind(1)], 1)
    if write.scale is not None:
        out = out * write.scale
    return out.to(mixed.dtype).reshape(*mixed.shape[:-1], heads.n, -1)


def head_functional(write: Write, u: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
    """Turn a functional on an attention write into one on what its heads put out.

    Parameters
    ----------
    u : Tensor
        float64 ``[n, width]``.
    raw : Tensor
        ``[n, width]``: the write before its post-norm (the write itself where there is none).

    Returns
    -------
    pulled : Tensor
        float64 ``[n, heads, head width]``.
    constant : Tensor
        float64 ``[n]``: what biases of the map and of a post-norm add; no head owns it.
    """
    assert write.heads is not None
    heads = write.heads
    u = u if write.scale is None else u * write.scale
    constant = torch.zeros(len(u), dtype=torch.float64, device=u.device)
    if write.norm is not None:
        frozen = write.norm.freeze(raw)
        constant = (u * frozen.bias).sum(-1)
        u = frozen.pull_back(u)
    matrix, offset = linear_map(heads.linear, heads.n * heads.width, u.device)
    return (u @ matrix.T).reshape(len(u), heads.n, heads.width), constant + u @ offset


def head_shares(write: Write, u: Tensor, mixed: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
    """Project every head's write on a functional.

    Returns
    -------
    shares : Tensor
        float64 ``[n, heads]``.
    constant : Tensor
        float64 ``[n]``.
    """
    pulled, constant = head_functional(write, u, raw)
    return (pulled * mixed.double().reshape(pulled.shape)).sum(-1), constant


def write_change(
    anatomy: Anatomy, target: Target, own: Tensor, other: Tensor, raw: Tensor | None
) -> Tensor:
    """What changes in the stream when a write is replaced, everything before it as it was.

    Parameters
    ----------
    target : Target
        ``embed``, ``attn_out``, ``mlp_out`` or one head.
    own, other : Tensor
        ``[n, width]``: the activation that is replaced and the one put in its place, both in the
        coordinates of the target's source.
    raw : Tensor, optional
        ``[n, width]``: the attention's output before its post-norm, for a head that has one.

    Returns
    -------
    Tensor
        float64 ``[n, width]``. Of a head behind a post-norm, what the norm makes of it.
    """
    change = other.double() - own.double()
    if target.site.layer is None:
        return change
    write = anatomy.write(target.site)
    if target.head is not None:
        assert write.heads is not None
        heads = write.heads
        matrix, _ = linear_map(heads.linear, heads.n * heads.width, own.device)
        change = change @ matrix[target.channels(anatomy)]
        if write.norm is not None:
            assert raw is not None
            before = write.norm.freeze(raw).apply(raw)
            after = (raw.double() + change).to(raw)
            change = write.norm.freeze(after).apply(after) - before
    return change if write.scale is None else change * write.scale
