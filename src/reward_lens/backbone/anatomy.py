"""What the parts of a trunk are: the record that the search fills in and capture reads.

An anatomy is a hypothesis about one model, found from a traced forward and verified numerically.
Only what verified is in it; for everything else ``missing`` says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from torch import nn

from reward_lens.backbone.norms import Norm
from reward_lens.backbone.sites import Site
from reward_lens.backbone.taps import Tap
from reward_lens.errors import AnatomyError


class Granularity(IntEnum):
    """How fine the verified decomposition of the residual stream is."""

    NONE = 0
    LAYER = 1
    SUBLAYER = 2
    HEAD = 3


@dataclass(frozen=True)
class Heads:
    """How an attention write splits by query head.

    Attributes
    ----------
    mixed : Tap
        The input of the attention's last linear map, ``[..., n * width]``.
    linear : nn.Module
        That map; linear in ``mixed`` up to a constant.
    n, width : int
        Number of query heads and channels of each.
    """

    mixed: Tap
    linear: nn.Module
    n: int
    width: int


@dataclass(frozen=True)
class Write:
    """One addition to the residual stream.

    Attributes
    ----------
    tap : Tap
        Where the added tensor is seen.
    norm, norm_input : Norm and Tap, optional
        The post-norm whose output the write is, and where its input is seen.
    heads : Heads, optional
        The split by head, where it verified.
    """

    tap: Tap
    norm: Norm | None = None
    norm_input: Tap | None = None
    heads: Heads | None = None


@dataclass(frozen=True)
class Block:
    """One residual block: where the stream enters and leaves, and what it adds.

    Attributes
    ----------
    attn, mlp : Write, optional
        The writes that verified, by role: the one that mixes positions, and the one that does not.
    sequential : bool
        Whether the MLP reads the stream after attention has written (then ``resid_mid`` exists).
    """

    enter: Tap
    leave: Tap
    attn: Write | None = None
    mlp: Write | None = None
    sequential: bool = False


@dataclass(frozen=True)
class Anatomy:
    """The verified structure of one trunk.

    Attributes
    ----------
    blocks : tuple of Block
    final_norm : Norm, optional
        ``None`` where the head reads the last block directly.
    normed : Tap
        The final norm's output, or the last block's.
    width : int
        Width of the residual stream.
    head : nn.Module
        The scoring head as the model holds it.
    causal : bool
        Whether the value at a token is independent of later tokens.
    missing : dict
        Granularity or site -> the reason it could not be verified.
    """

    blocks: tuple[Block, ...]
    final_norm: Norm | None
    normed: Tap
    width: int
    head: nn.Module
    causal: bool
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def granularity(self) -> Granularity:
        """The finest granularity that verified in every block."""
        if not all(b.attn and b.mlp for b in self.blocks):
            return Granularity.LAYER
        if all(b.attn and b.attn.heads for b in self.blocks):
            return Granularity.HEAD
        return Granularity.SUBLAYER

    def block(self, site: Site) -> Block:
        """Return the block of a site.

        Raises
        ------
        AnatomyError
            If there is no such layer.
        """
        if site.layer is None or not 0 <= site.layer < len(self.blocks):
            raise AnatomyError(
                f"{site}: this model has layers 0 to {len(self.blocks) - 1}; there is no such layer"
            )
        return self.blocks[site.layer]

    def write(self, site: Site) -> Write:
        """Return the write behind a site inside a block.

        Raises
        ------
        AnatomyError
            If the block has no such write, or it could not be verified; the reason is given.
        """
        block = self.block(site)
        write = block.mlp if site.kind == "mlp_out" else block.attn
        by_head = site.kind in ("head_out", "head_in")
        if write is None or (by_head and write.heads is None):
            kind = "head" if by_head else "sublayer"
            reason = self.missing.get(f"L{site.layer}.{kind}", "no such write was found")
            raise AnatomyError(f"{site} is not available on this model: {reason}")
        return write
