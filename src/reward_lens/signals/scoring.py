"""Scores of encoded items, and the evidence they become."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr
from torch import Tensor

from reward_lens.backbone import Batch, Encoded, Site, masked_mean, read_rows
from reward_lens.data import Item, as_items, items_fingerprint
from reward_lens.errors import CapabilityError
from reward_lens.evidence import Evidence
from reward_lens.progress import Progress, expect
from reward_lens.signals.identity import observation
from reward_lens.signals.item_tables import item_coords, position_table
from reward_lens.signals.protocol import Capability, require
from reward_lens.signals.read_tokens import other_tokens
from reward_lens.signals.readouts import Readout

if TYPE_CHECKING:
    from reward_lens.signals.classifier import ClassifierRM

_NORMED = Site("final_norm")


def scored(
    signal: ClassifierRM,
    items: Iterable[Any],
    readout: str,
    position: str | None,
    truncate: str,
    batch_tokens: int,
    progress: Progress | None,
) -> Evidence:
    """See :meth:`ClassifierRM.score`."""
    given = as_items(items)
    encoded = signal.encoder.encode(given, truncate)
    chosen = signal.bound(readout, encoded, batch_tokens)
    read = signal.read_index(encoded, position)
    other = other_tokens(signal, encoded, read)
    found = scores_at(signal, encoded, chosen, (read, other), batch_tokens, progress)
    return item_evidence(
        signal,
        "score",
        found[:, 0],
        given,
        encoded,
        read,
        readout=chosen,
        position=position,
        parameters=_asked(readout, truncate, batch_tokens),
        name="score",
        coords={"own_head": ("item", found[:, 2])} if signal.meta.dtype != "float32" else {},
        tables=position_table(encoded, read, other, found[:, 0], found[:, 1]),
    )


def prefixes_scored(
    signal: ClassifierRM,
    items: Iterable[Any],
    readout: str,
    truncate: str,
    batch_tokens: int,
    progress: Progress | None,
) -> Evidence:
    """See :meth:`ClassifierRM.score_prefixes`."""
    require(signal, Capability.PREFIX_SCORES, "score_prefixes")
    given = as_items(items)
    encoded = signal.encoder.encode(given, truncate)
    limit = signal.trunk.alone_beyond
    if limit is not None and (long := [k for k, e in enumerate(encoded) if e.last >= limit]):
        raise CapabilityError(
            f"item {long[0]} has {encoded[long[0]].last + 1} tokens: beyond {limit} the states "
            f"of this model depend on the whole length, so a prefix has no score in it"
        )
    chosen = signal.bound(readout, encoded, batch_tokens)
    return item_evidence(
        signal,
        "score_prefixes",
        prefix_curves(signal, encoded, chosen, batch_tokens, progress),
        given,
        encoded,
        signal.read_index(encoded),
        readout=chosen,
        position=None,
        parameters=_asked(readout, truncate, batch_tokens),
        name="prefix_score",
    )


def _asked(readout: str, truncate: str, batch_tokens: int) -> dict[str, Any]:
    """The parameters of a scoring call, for its record."""
    return {"readout": readout, "truncate": truncate, "batch_tokens": batch_tokens}


def scores_at(
    signal: ClassifierRM,
    encoded: Sequence[Encoded],
    readout: Readout,
    reads: Sequence[Sequence[int]],
    batch_tokens: int,
    progress: Progress | None = None,
) -> npt.NDArray[np.float32]:
    """Read every item at several tokens in one forward; the last column is the model's own head.

    Parameters
    ----------
    reads : sequence of sequences of int
        Each holds one token index per item.

    Returns
    -------
    ndarray of float32, [item, len(reads) + 1]
        The last: what the model's own head gives in its own dtype at the first of ``reads``; NaN
        for a readout that is no row (or mean of rows) of it.
    """
    out = np.full((len(encoded), len(reads) + 1), np.nan, dtype=np.float32)
    head = readout.head
    expect(progress, len(encoded))
    for batch in signal.trunk.batches(encoded, batch_tokens):
        rows = partial(_stacked, reads) if head.pool != "late" else None
        normed = signal.trunk.capture(batch, [_NORMED], rows)[_NORMED]
        values = readout.read(normed, batch.index)
        if head.pool == "late":
            values = masked_mean(batch, values)[:, None].expand(-1, len(reads))
        out[batch.index, :-1] = values.cpu().numpy()
        if readout.kind == "linear" and head.pool in ("read", "first"):
            out[batch.index, -1] = readout.own(normed[:, 0]).cpu().numpy()
        if progress is not None:
            progress(len(batch.index))
    return out


def _stacked(reads: Sequence[Sequence[int]], batch: Batch, tensor: Tensor) -> Tensor:
    return torch.stack([read_rows(read)(batch, tensor) for read in reads], 1)


def prefix_curves(
    signal: ClassifierRM,
    encoded: Sequence[Encoded],
    readout: Readout,
    batch_tokens: int,
    progress: Progress | None,
) -> npt.NDArray[np.float32]:
    """Read every item at every token: float32 ``[item, position]``, NaN beyond its last token.

    Where the head reads the mean over tokens, every entry is read from the mean up to there.
    """
    curves = np.full((len(encoded), max(len(e.ids) for e in encoded)), np.nan, dtype=np.float32)
    sweep = signal.sweep(encoded, [_NORMED], None, batch_tokens=batch_tokens, progress=progress)
    for seen in sweep:
        normed = seen.sites[_NORMED]
        if readout.head.pool == "mean":
            normed = running_mean(normed)
        values = readout.read(normed, seen.index)
        if readout.head.pool == "late":
            values = running_mean(values)
        found = values.cpu().numpy()
        for row, item, length in zip(found, seen.index, seen.lengths, strict=True):
            curves[item, :length] = row[:length]
    return curves


def running_mean(values: Tensor) -> Tensor:
    """Mean over positions up to each: ``[item, length, ...]``, float32; no padding before."""
    count = torch.arange(1, values.shape[1] + 1, device=values.device).float()
    return values.float().cumsum(1) / count.reshape(1, -1, *(1,) * (values.dim() - 2))


def item_evidence(
    signal: ClassifierRM,
    instrument: str,
    values: npt.NDArray[np.float32],
    items: Sequence[Item],
    encoded: Sequence[Encoded],
    read: Sequence[int],
    *,
    readout: Readout,
    position: str | None,
    parameters: Mapping[str, Any],
    name: str,
    coords: Mapping[str, Any] | None = None,
    **more: Any,
) -> Evidence:
    """Evidence whose first dimension is ``item``, with the tokens and the read token of each."""
    dims = ("item", "position")[: values.ndim]
    every = {**item_coords(signal.encoder, items, encoded, read), **(coords or {})}
    return observation(
        signal,
        instrument,
        xr.DataArray(values, dims=dims, coords=every, name=name),
        data=items_fingerprint(items),
        readout=readout,
        position=position,
        parameters=parameters,
        cost=float(len(encoded)),
        **more,
    )
