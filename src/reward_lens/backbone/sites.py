"""Names of places in a network: sites (which tensor) and positions (which tokens).

A site is written ``L3.attn_out``; sites outside the blocks are ``embed`` and ``final_norm``. The
kinds and their meaning are fixed for every architecture; see :data:`SITE_KINDS`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from reward_lens.errors import AnatomyError

#: Kind of site -> what the tensor is. ``attn_out`` and ``mlp_out`` are the tensors *added* to the
#: residual stream, after any post-norm.
SITE_KINDS: dict[str, str] = {
    "resid_pre": "the residual stream entering the block",
    "head_in": "what the heads hand to the attention's last linear map, [heads * head width]",
    "attn_raw": "the attention's output before its post-norm; equals attn_out where there is none",
    "attn_unscaled": "attn_out before the block scales it; equals it where it does not",
    "attn_out": "what the attention sublayer adds to the stream",
    "head_out": "what each attention head adds to the stream, [heads, width]",
    "resid_mid": "the stream between attention and MLP (sequential blocks only)",
    "mlp_unscaled": "mlp_out before the block scales it; equals it where it does not",
    "mlp_out": "what the MLP sublayer adds to the stream",
    "resid_post": "the residual stream leaving the block",
    **{
        f"norm{k}_{side}": f"the stream {what} the block's own norm of the stream, number {k} "
        "(post-norm blocks only)"
        for k in range(1, 5)
        for side, what in (("in", "entering"), ("out", "leaving"))
    },
}
_OUTER = ("embed", "final_norm")
_PATTERN = re.compile(r"L(\d+)\.(\w+)")


@dataclass(frozen=True, order=True)
class Site:
    """One named tensor of the network.

    Parameters
    ----------
    kind : str
        A key of :data:`SITE_KINDS`, or ``embed`` / ``final_norm``.
    layer : int, optional
        The block, counted from 0; ``None`` for the outer sites.
    """

    kind: str
    layer: int | None = None

    @classmethod
    def parse(cls, name: str | Site) -> Self | Site:
        """Read ``"L3.attn_out"``, ``"embed"`` or ``"final_norm"``.

        Raises
        ------
        AnatomyError
            If the name is none of these.
        """
        if isinstance(name, Site):
            return name
        if name in _OUTER:
            return cls(name)
        found = _PATTERN.fullmatch(name)
        if found is None or found[2] not in SITE_KINDS:
            raise AnatomyError(
                f"{name!r} is no site; sites are {', '.join(_OUTER)} and L<layer>.<kind> with kind "
                f"one of {', '.join(SITE_KINDS)}"
            )
        return cls(found[2], int(found[1]))

    def __str__(self) -> str:
        return self.kind if self.layer is None else f"L{self.layer}.{self.kind}"


@dataclass(frozen=True)
class Position:
    """Which tokens of an item are meant.

    Parameters
    ----------
    kind : {"final", "all", "index", "span"}
        ``final`` is the token the head reads; ``all`` every token.
    start, stop : int, optional
        The index (``kind="index"``, ``start`` only) or half-open span, in tokens of the item.
    """

    kind: str
    start: int | None = None
    stop: int | None = None

    def __str__(self) -> str:
        if self.kind == "index":
            return str(self.start)
        if self.kind == "span":
            return f"{self.start}:{self.stop}"
        return self.kind


FINAL = Position("final")
ALL = Position("all")
