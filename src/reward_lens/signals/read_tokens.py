"""Which token of each item the head reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reward_lens.backbone import MEAN, Encoded
from reward_lens.errors import CapabilityError

if TYPE_CHECKING:
    from reward_lens.signals.classifier import ClassifierRM

POSITIONS = ("native", "last", "first", "mean")


def tokens_read(
    signal: ClassifierRM, encoded: Sequence[Encoded], position: str | None
) -> list[int]:
    """See :meth:`ClassifierRM.read_index`."""
    position = signal.meta.position if position is None else position
    if position not in POSITIONS:
        raise CapabilityError(
            f"position={position!r}: the token that is read is one of {', '.join(POSITIONS)} "
            f"(tokens that are changed are positions=)"
        )
    if position != "native" and signal.trunk.anatomy.head.pool == "late":
        raise CapabilityError(
            f"position={position!r}: this head is averaged over the tokens after it is applied"
        )
    return [e.read(position) for e in encoded]


def other_tokens(
    signal: ClassifierRM, encoded: Sequence[Encoded], read: Sequence[int]
) -> list[int]:
    """Of native and last token, the one that is not read; the same where there is no choice."""
    if signal.meta.reads not in ("rightmost_non_pad", "before_first_pad"):
        return list(read)
    pairs = zip(encoded, read, strict=True)
    return [r if r == MEAN else e.last if r == e.native else e.native for e, r in pairs]
