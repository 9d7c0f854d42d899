"""Gradients of scores: at many sites in one forward and backward, or of second order at one site.

The forward is the model's own. Hooks put a detached copy of the same values in place where
differentiation starts, so that nothing before it is kept; it is with respect to activations only:
parameters get none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from reward_lens.backbone.anatomy import Anatomy
from reward_lens.backbone.batching import Batch
from reward_lens.backbone.edits import Target
from reward_lens.backbone.site_taps import site_taps
from reward_lens.backbone.sites import Site
from reward_lens.backbone.taps import Handler, Tap, merge
from reward_lens.backbone.trunk import Trunk
from reward_lens.errors import AnatomyError, NumericsError

#: A batch and its normed states ``[batch, length, width]`` -> one differentiable number per row.
RowScore = Callable[[Batch, Tensor], Tensor]

EMBED = Site("embed")


@dataclass(frozen=True)
class Gradients:
    """What one forward and backward of a batch gave.

    Attributes
    ----------
    score : Tensor
        float64 ``[batch]``.
    values, slopes : dict
        Site -> its tensor and the gradient of each row's score with respect to it, both
        ``[batch, length, width]`` in the trunk's dtype; the gradient is 0 at padding.
    """

    score: Tensor
    values: dict[Site, Tensor]
    slopes: dict[Site, Tensor]


def score_gradients(
    trunk: Trunk,
    batch: Batch,
    sites: Sequence[Site],
    score: RowScore,
    embedded: Tensor | None = None,
) -> Gradients:
    """Differentiate the score of every row with respect to the tensors of many sites.

    Parameters
    ----------
    trunk : Trunk
    batch : Batch
    sites : sequence of Site
        Those that are seen in one place, in the coordinates in which they are replaced: the
        ``source`` of a :class:`~reward_lens.backbone.edits.Target`. None: scores only.
    score : callable
        Maps the batch and the trunk's normed states ``[batch, length, width]`` to one number a row.
    embedded : Tensor, optional
        ``[batch, length, width]`` to run with in place of the stream that enters the first block.

    Returns
    -------
    Gradients

    Raises
    ------
    AnatomyError
        If this model does not have a site, or it is the sum of tensors seen in several places.
    NumericsError
        If a score or a gradient is not finite; names the item.
    """
    shape = batch.ids.shape
    (begin,) = site_taps(trunk.anatomy, EMBED)
    taps = {site: _place(trunk.anatomy, site) for site in sites}
    nodes: dict[Tap, Tensor] = {}
    normed: list[Tensor] = []

    def start(tensor: Tensor) -> Tensor:
        given = tensor if embedded is None else embedded.to(tensor).reshape(tensor.shape)
        nodes[begin] = given.detach().clone().requires_grad_(True)
        torch.set_grad_enabled(True)  # until the forward ends; nothing before needs a graph
        return nodes[begin].clone()  # a clone, here and below: some models add to it in place

    def keep(tap: Tap) -> Handler:
        def handle(tensor: Tensor) -> Tensor:
            known = tensor.requires_grad  # a tensor that does not depend on the text has no graph
            nodes[tap] = tensor if known else tensor.detach().clone().requires_grad_(True)
            return nodes[tap].clone()

        return handle

    kept = {tap: keep(tap) for tap in taps.values() if tap != begin}
    with torch.inference_mode(False), torch.no_grad():
        trunk.forward(batch, merge({begin: start}, kept, {trunk.anatomy.normed: normed.append}))
        with torch.enable_grad():
            rows = score(batch, normed[0].reshape(*shape, -1))
            order = list(taps.values())
            found: tuple[Tensor | None, ...] = ()
            if order:
                wanted = [nodes[t] for t in order]
                found = torch.autograd.grad(rows.sum(), wanted, allow_unused=True)
    values, slopes = {}, {}
    for site, tap, slope in zip(taps, order, found, strict=True):
        values[site] = nodes[tap].detach().reshape(*shape, -1)
        slope = torch.zeros_like(values[site]) if slope is None else slope.reshape(*shape, -1)
        slopes[site] = slope.masked_fill(batch.mask[..., None] == 0, 0)
    _refuse_nonfinite(trunk, batch, rows.detach(), slopes)
    return Gradients(rows.detach().double(), values, slopes)


def _place(anatomy: Anatomy, site: Site) -> Tap:
    if site.kind == "head_out":  # made of what is seen at other places
        raise AnatomyError(
            f"{site} is not one tensor of the forward: ask for L{site.layer}.head_in"
        )
    taps = site_taps(anatomy, site)
    if len(taps) > 1 or Target(site).source != site:
        raise AnatomyError(
            f"{site} is not one tensor of the forward: ask for {Target(site).source}"
            if len(taps) == 1
            else f"{site} is the sum of two tensors of the forward: ask for L{site.layer}.resid_pre"
            f" and L{site.layer}.attn_unscaled"
        )
    return taps[0]


def _refuse_nonfinite(trunk: Trunk, batch: Batch, rows: Tensor, slopes: dict[Site, Tensor]) -> None:
    for site, slope in [(None, rows[:, None, None]), *slopes.items()]:
        finite = torch.isfinite(slope).flatten(1).all(-1)
        if not bool(finite.all()):
            item = int(batch.index[int(torch.nonzero(~finite)[0])])
            what = "score" if site is None else f"gradient at {site}"
            raise NumericsError(
                f"item {item}: the {what} is NaN or infinite; the trunk runs in "
                f"{str(trunk.dtype).removeprefix('torch.')}: try dtype=float32"
            )


def differentiate_site(
    trunk: Trunk,
    batch: Batch,
    site: Site,
    score: Callable[[Tensor], Tensor],
    vectors: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradient of a score with respect to a site, or a Hessian-vector product.

    Parameters
    ----------
    trunk : Trunk
    batch : Batch
    site : Site
        Not ``head_out``: its gradient is that of ``attn_out``.
    score : callable
        Maps the trunk's normed states ``[batch, length, width]`` to one number per row.
    vectors : Tensor, optional
        ``[batch, length, width]``; if given, the Hessian of each row's score times it.

    Returns
    -------
    value : Tensor
        ``[batch, length, width]``, the site's values.
    result : Tensor
        The same shape: gradient, or Hessian times ``vectors``.
    """
    tap, scale = _leaf(trunk, site)
    leaf: list[Tensor] = []
    normed: list[Tensor] = []

    def start(tensor: Tensor) -> Tensor:
        value = tensor.detach()
        if value.shape[:2] != batch.ids.shape:  # some modules see all tokens in one row
            value = value.reshape(*batch.ids.shape, -1)
        leaf.append(value.clone().requires_grad_(True))
        torch.set_grad_enabled(True)  # until the forward ends; nothing before needs a graph
        return leaf[0].clone().view_as(tensor)  # a clone: some models add to it in place

    # The fused attention kernels have no second derivative.
    with torch.inference_mode(False), sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        trunk.forward(batch, merge({tap: start}, {trunk.anatomy.normed: normed.append}))
        with torch.enable_grad():
            total = score(normed[0]).sum()
            (gradient,) = torch.autograd.grad(total, leaf[0], create_graph=vectors is not None)
            if vectors is None:
                return leaf[0].detach() * scale, gradient.detach() / scale
            if not gradient.requires_grad:  # the score is linear in the site
                return leaf[0].detach() * scale, torch.zeros_like(gradient)
            inner = (gradient * (vectors.to(gradient) / scale)).sum()
            (product,) = torch.autograd.grad(inner, leaf[0], allow_unused=True)
    if product is None:
        product = torch.zeros_like(gradient)
    return leaf[0].detach() * scale, product.detach() / scale


def _leaf(trunk: Trunk, site: Site) -> tuple[Tap, Tensor]:
    """Where differentiation starts, and what the tensor there is times to be the site."""
    one = torch.ones((), device=trunk.device, dtype=trunk.dtype)
    if site.kind == "head_out":
        raise AnatomyError(
            f"{site}: heads add up, so the gradient with respect to each head's write is that "
            f"of L{site.layer}.attn_out; ask for that"
        )
    if site in (Site("embed"), Site("resid_pre", 0)) and "embed.again" in trunk.anatomy.missing:
        raise AnatomyError(
            f"{site}: {trunk.anatomy.missing['embed.again']}, so the derivative with respect to "
            f"the stream alone is not that of the embedding; ask for L0.resid_post"
        )
    if site.kind in ("attn_out", "mlp_out"):
        write = trunk.anatomy.write(site)
        return write.tap, one if write.scale is None else write.scale.to(one)
    # The stream between the sublayers is the clean stream plus the attention write, so the
    # derivative with respect to either is the same.
    return site_taps(trunk.anatomy, site)[-1], one
