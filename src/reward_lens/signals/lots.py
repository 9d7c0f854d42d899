"""Which items are run clean together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reward_lens.backbone import Encoded, KeptRuns, Trunk

#: Shortest over longest text of a batch: below it padding costs more than a second forward.
_ALIKE = 0.85


def lots(
    encoded: Sequence[Encoded], groups: Sequence[Sequence[int]], batch_tokens: int
) -> Iterator[list[int]]:
    """Join groups, longest first, while their tokens fit one batch."""
    sizes = [sum(len(encoded[i].ids) for i in group) for group in groups]
    order = sorted(range(len(groups)), key=lambda k: -sizes[k])
    lot: list[int] = []
    total = 0
    for k in order:
        if lot and total + sizes[k] > batch_tokens:
            yield lot
            lot, total = [], 0
        lot += groups[k]
        total += sizes[k]
    if lot:
        yield lot


def alike(
    encoded: Sequence[Encoded], index: Sequence[int], alone_beyond: int | None
) -> Iterator[list[int]]:
    """Items in batches of about equal length, longest first; alone where length matters."""
    order = sorted(index, key=lambda i: -len(encoded[i].ids))
    batch: list[int] = []
    for i in order:
        longest = len(encoded[batch[0]].ids) if batch else 0
        alone = alone_beyond is not None and longest > alone_beyond
        if batch and (alone or len(encoded[i].ids) < _ALIKE * longest):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def shelved(
    trunk: Trunk,
    encoded: Sequence[Encoded],
    read: Sequence[int],
    index: Sequence[int],
    *,
    whole: bool,
) -> bool:
    """Whether all that is asked for of items can be made of clean runs that are kept."""
    if whole or not isinstance(trunk.shelf, KeptRuns):
        return False
    return trunk.shelf.holds([encoded[i] for i in index], [read[i] for i in index])
