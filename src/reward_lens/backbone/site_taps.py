"""Where in a forward the tensor of a site is seen."""

from __future__ import annotations

from reward_lens.backbone.anatomy import Anatomy, Block, StreamNorm
from reward_lens.backbone.sites import Site
from reward_lens.backbone.taps import Tap
from reward_lens.errors import AnatomyError


def site_taps(anatomy: Anatomy, site: Site) -> list[Tap]:
    """The taps a site is read from.

    Raises
    ------
    AnatomyError
        If this model does not have the site.
    """
    if site.kind == "final_norm":
        return [anatomy.normed]
    if site.kind == "embed":
        return [anatomy.block(Site("resid_pre", 0)).enter]
    block = anatomy.block(site)
    if site.kind == "resid_pre":
        return [block.enter]
    if site.kind == "resid_post":
        return [block.leave]
    if site.kind.startswith("norm"):
        return [_norm_tap(block, site)]
    if site.kind == "resid_mid":
        return _mid_taps(block, site)
    write = anatomy.write(site)
    if site.kind == "attn_raw":
        return [write.norm_input or write.tap]
    if write.heads is not None and site.kind in ("head_in", "head_out"):
        post = [write.norm_input] if write.norm_input and site.kind == "head_out" else []
        return [write.heads.mixed, *post]
    return [write.tap]


def _norm_tap(block: Block, site: Site) -> Tap:
    number, norms = int(site.kind[4]), block.norms
    if number > len(norms):
        raise AnatomyError(
            f"{site} does not exist: the stream passes {len(norms)} norms of its own in this block"
        )
    norm = norms[number - 1]
    return norm.entered if site.kind.endswith("in") else norm.left


def _mid_taps(block: Block, site: Site) -> list[Tap]:
    """Where the stream between attention and MLP is seen, or the two tensors it is the sum of."""
    if block.attn is None or block.mlp is None or not block.sequential:
        raise AnatomyError(
            f"{site} does not exist: attention and MLP of this block read the same stream"
        )
    between = False
    for step in block.steps:
        if isinstance(step, StreamNorm):
            if between:
                return [step.left]
        elif step.writes == ("attn_out",):
            between = True
    if block.scaled or block.norms:
        raise AnatomyError(f"{site} is not offered: the stream is scaled between the sublayers")
    return [block.enter, block.attn.tap]
