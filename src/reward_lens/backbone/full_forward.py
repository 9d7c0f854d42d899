"""Changed runs by the model's own full forward: the reference, and what always works."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from reward_lens.backbone.batching import Batch, collate
from reward_lens.backbone.edits import Change, Placed, Reception, Run, edit_handlers
from reward_lens.backbone.receiving import received
from reward_lens.backbone.routers import choices
from reward_lens.backbone.taps import Handler, Tap, merge
from reward_lens.backbone.tokenise import Encoded
from reward_lens.backbone.trunk import Trunk

#: Normed states ``[rows, length, width]`` of copies of one item -> one number a row.
Reader = Callable[[Batch, Tensor], Tensor]


@dataclass(frozen=True)
class Outcome:
    """What changed runs of one item gave.

    Attributes
    ----------
    scores : Tensor
        float64 ``[run]``.
    flips : Tensor
        int64 ``[run]``: choices of experts (a layer, a token) that differ from the clean run.
    forwards : float
        What it cost, in forwards of this item.
    """

    scores: Tensor
    flips: Tensor
    forwards: float


def run_full(
    trunk: Trunk,
    encoded: Sequence[Encoded],
    item: int,
    runs: Sequence[Run],
    read: Reader,
    routers: Mapping[int, Tap],
    batch_tokens: int,
    until: int | None = None,
) -> Outcome:
    """Run one item once per run, as rows of batches, each row with its changes.

    Parameters
    ----------
    encoded : sequence of Encoded
    item : int
        Which of them.
    read : callable
        The score of each row.
    routers : dict
        Where experts are chosen; the clean run is run once more to compare where there are any.
    until : int, optional
        The last token whose choices of experts are compared; all by default.
    """
    per = max(1, batch_tokens // len(encoded[item].ids))
    if trunk.alone_beyond is not None and len(encoded[item].ids) > trunk.alone_beyond:
        per = 1
    clean = _rows(trunk, encoded, item, [()], read, routers) if routers else None
    forwards = float(clean is not None)
    stop = len(encoded[item].ids) if until is None else until + 1
    scores, flips = [], []
    for start in range(0, len(runs), per):
        some = runs[start : start + per]
        row_scores, chosen, cost = _rows(trunk, encoded, item, some, read, routers)
        forwards += cost
        scores.append(row_scores)
        count = torch.zeros(len(some), dtype=torch.int64)
        if clean is not None:
            for now, then in zip(chosen, clean[1], strict=True):
                count += (now != then)[:, :stop].any(-1).sum(-1).cpu()
        flips.append(count)
    return Outcome(torch.cat(scores), torch.cat(flips), forwards)


@torch.no_grad()
def _rows(
    trunk: Trunk,
    encoded: Sequence[Encoded],
    item: int,
    runs: Sequence[Run],
    read: Reader,
    routers: Mapping[int, Tap],
) -> tuple[Tensor, list[Tensor], float]:
    batch = copies(trunk, encoded, item, len(runs))
    placed, cost = _resolve(trunk, batch, runs)
    shape = (len(runs), batch.ids.shape[1])
    seen: list[Tensor] = []
    chosen: dict[Tap, Tensor] = {}

    def watch(tap: Tap) -> Handler:
        def look(tensor: Tensor) -> None:
            chosen[tap] = choices(tensor, shape)

        return look

    handlers = merge(
        edit_handlers(trunk.anatomy, placed, shape),
        {tap: watch(tap) for tap in routers.values()},
        {trunk.anatomy.normed: seen.append},
    )
    trunk.forward(batch, handlers)
    normed = seen[0].reshape(*shape, -1)
    return (
        read(batch, normed).double().cpu(),
        [chosen[t] for t in routers.values()],
        cost + len(runs),
    )


def copies(trunk: Trunk, encoded: Sequence[Encoded], item: int, n: int) -> Batch:
    """A batch whose rows are all one item."""
    batch = collate(encoded, [item], trunk.pad_id, trunk.device)
    fields = {k: getattr(batch, k) for k in ("ids", "mask", "positions", "offset", "lengths")}
    types = batch.types
    return replace(
        batch,
        index=np.full(n, item, dtype=np.int64),
        **{k: v.expand(n, *v.shape[1:]) for k, v in fields.items()},
        types=None if types is None else types.expand(n, -1),
        items=batch.items * n,
    )


def _resolve(trunk: Trunk, batch: Batch, runs: Sequence[Run]) -> tuple[list[Placed], float]:
    """Turn receptions into changes of what the receivers write, first layer first."""
    placed: list[Placed] = []
    waiting: list[tuple[int, Reception]] = []
    for row, run in enumerate(runs):
        for part in run:
            if isinstance(part, Change):
                placed.append(Placed(row, part.at, part))
            else:
                waiting.append((row, part))
    cost = 0.0
    stages = sorted({(r.receiver.layer, r.receiver.role) for _, r in waiting})  # attn, then mlp
    for stage in stages:
        now = [(row, r) for row, r in waiting if (r.receiver.layer, r.receiver.role) == stage]
        placed += received(trunk, batch, placed, now)
        cost += len(batch.index) * (1 + any(r.receiver.part is not None for _, r in now))
    return placed, cost
