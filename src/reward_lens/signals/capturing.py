"""Activations of items, by site."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from reward_lens.backbone import Site
from reward_lens.errors import CapabilityError

if TYPE_CHECKING:
    from reward_lens.signals.classifier import ClassifierRM


def captured(
    signal: ClassifierRM,
    items: Iterable[Any],
    sites: Sequence[str | Site],
    position: str,
    truncate: str,
    batch_tokens: int,
) -> dict[str, Any]:
    """See :meth:`ClassifierRM.capture`."""
    if position not in ("final", "all"):
        raise CapabilityError(f"position={position!r}: choose 'final' or 'all'")
    encoded = signal.encode(items, truncate)
    parsed = [Site.parse(s) for s in sites]
    read = signal.read_index(encoded) if position == "final" else None
    rows: dict[str, list[Any]] = {str(s): [None] * len(encoded) for s in parsed}
    for seen in signal.sweep(encoded, parsed, read, batch_tokens=batch_tokens):
        for site, tensor in seen.sites.items():
            kept = seen.mean(tensor) if read is not None else tensor
            for row, item, length in zip(kept, seen.index, seen.lengths, strict=True):
                rows[str(site)][item] = row.clone() if read is not None else row[:length].clone()
    return {s: torch.stack(r) for s, r in rows.items()} if read is not None else dict(rows)
