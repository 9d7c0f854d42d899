"""What the parts of a trunk are: the record that the search fills in and capture reads.

An anatomy is a hypothesis about one model, found from a traced forward and verified numerically.
Only what verified is in it; for everything else ``missing`` says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from torch import Tensor, nn

from reward_lens.backbone.head_map import HeadMap
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
        Where the module output that is added is seen.
    scale : Tensor, optional
        float64 ``[]`` or ``[width]``: what the output is multiplied by before it is added.
    norm, norm_input : Norm and Tap, optional
        The post-norm whose output the write is, and where its input is seen.
    heads : Heads, optional
        The split by head, where it verified.
    """

    tap: Tap
    scale: Tensor | None = None
    norm: Norm | None = None
    norm_input: Tap | None = None
    heads: Heads | None = None


@dataclass(frozen=True)
class Sum:
    """A step of a block: writes are added to the stream, itself scaled by ``carry`` if given.

    Attributes
    ----------
    writes : tuple of str
        Kinds of the sites that are added: ``"attn_out"``, ``"mlp_out"``.
    carry : Tensor, optional
        float64 ``[]`` or ``[width]``.
    """

    writes: tuple[str, ...]
    carry: Tensor | None = None


@dataclass(frozen=True)
class StreamNorm:
    """A step of a block: the stream itself passes through a norm."""

    norm: Norm
    entered: Tap
    left: Tap


@dataclass(frozen=True)
class Block:
    """One residual block: where the stream enters and leaves, and what it adds.

    Attributes
    ----------
    enter, leave : Tap
    steps : tuple of Sum and StreamNorm
        What happens to the stream from ``enter`` to ``leave``; empty where it did not verify.
    attn, mlp : Write, optional
        The writes, by role: the one that mixes positions, and the one that does not.
    sequential : bool
        Whether the MLP reads the stream after attention has written.
    """

    enter: Tap
    leave: Tap
    steps: tuple[Sum | StreamNorm, ...] = ()
    attn: Write | None = None
    mlp: Write | None = None
    sequential: bool = False

    @property
    def norms(self) -> list[StreamNorm]:
        """The norms that the stream itself passes through, in order."""
        return [s for s in self.steps if isinstance(s, StreamNorm)]

    @property
    def scaled(self) -> bool:
        """Whether the stream, or what is added to it, is scaled on the way."""
        scales = [w.scale for w in (self.attn, self.mlp) if w is not None]
        carries = [s.carry for s in self.steps if isinstance(s, Sum)]
        return any(c is not None for c in (*scales, *carries))


@dataclass(frozen=True, repr=False)
class Anatomy:
    """The verified structure of one trunk.

    Attributes
    ----------
    blocks : tuple of Block
        Empty where no chain of blocks was found: then the trunk can be scored, not looked into.
    final_norm : Norm, optional
        ``None`` where the head reads the last block directly.
    normed : Tap
        The final norm's output, or the last block's (or the trunk's).
    width : int
        Width of the residual stream.
    head : HeadMap
        What is done to the normed state until it is logits.
    causal : bool
        Whether the value at a token is independent of later tokens.
    missing : dict
        Granularity or site -> the reason it could not be verified.
    """

    blocks: tuple[Block, ...]
    final_norm: Norm | None
    normed: Tap
    width: int
    head: HeadMap
    causal: bool
    missing: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        lacking = f", missing: {', '.join(self.missing)}" if self.missing else ""
        return (
            f"<Anatomy: {len(self.blocks)} blocks of width {self.width}, verified by "
            f"{self.granularity.name.lower()}{lacking}>"
        )

    @property
    def granularity(self) -> Granularity:
        """The finest granularity that verified in every block."""
        if not self.blocks:
            return Granularity.NONE
        if not self.adds_up:
            return Granularity.LAYER
        if all(b.attn is not None and b.attn.heads for b in self.blocks):
            return Granularity.HEAD
        return Granularity.SUBLAYER

    @property
    def adds_up(self) -> bool:
        """Whether every block's writes verified, and nothing changes the stream between blocks."""
        whole = not any(key.endswith(".link") for key in self.missing)
        return whole and bool(self.blocks) and all(b.steps for b in self.blocks)

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
        write = block.mlp if site.kind.startswith("mlp") else block.attn
        by_head = site.kind in ("head_out", "head_in")
        if write is None or (by_head and write.heads is None):
            kind = "head" if by_head else "sublayer"
            reason = self.missing.get(f"L{site.layer}.{kind}", "no such write was found")
            raise AnatomyError(f"{site} is not available on this model: {reason}")
        return write
