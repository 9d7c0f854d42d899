"""Attention writes by source token: where the read position's attention takes reward from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from torch import Tensor

from reward_lens.backbone import MEAN, Encoded, attention_sources
from reward_lens.data import as_pairs
from reward_lens.errors import CapabilityError
from reward_lens.evidence import Evidence
from reward_lens.instruments.sides import Sides
from reward_lens.instruments.tokens import token_rows
from reward_lens.progress import Progress, expect
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation


def source_attribution(
    signal: ClassifierRM,
    pairs: Any,
    *,
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS // 2,
    progress: Progress | None = None,
) -> Evidence:
    """Split every layer's attention write at the read position by the token it comes from.

    Head ``h`` writes ``Σ_j a_hj W_O v_hj``; a source token's share of a layer is that term summed
    over heads and projected on the readout, the final norm frozen at the item. What tokens further
    back contributed to the source token's own state is credited to the source token.

    Parameters
    ----------
    signal : ClassifierRM
    pairs : Pairs or anything :func:`~reward_lens.data.as_pairs` takes

    Returns
    -------
    Evidence
        Value float64 ``[side, pair, layer, position]`` in reward units, sides ``chosen`` and
        ``rejected``, NaN beyond an item's last token. Table ``writes``: per side, pair and layer
        the write's projection, the part of biases, and what is left by rounding. Table ``tokens``:
        the text of every token, whether the head reads there, whether it is in the response.

    Raises
    ------
    CapabilityError, AnatomyError
        If heads did not verify, the attention of a layer cannot be reproduced, or the head reads
        the mean over tokens.
    """
    require(signal, Capability.ACTIVATIONS, "source_attribution")
    given = as_pairs(pairs)
    sides = Sides.of(signal, given, position, truncate)
    if MEAN in sides.read:
        raise CapabilityError(
            "source_attribution splits the attention of one token, and this head reads the mean "
            "over all of them"
        )
    chosen = signal.bound(readout, sides.encoded, batch_tokens)
    n, layers = len(given), signal.meta.n_layers
    values = np.full((2 * n, layers, max(len(e.ids) for e in sides.encoded)), np.nan)
    writes = np.empty((2 * n, layers, 2))

    expect(progress, 2 * n)
    for batch in signal.trunk.batches(sides.encoded, batch_tokens):

        def functional(last: Tensor, normed: Tensor, index: Any = batch.index) -> Tensor:
            _, direction = chosen.local(normed, index)
            frozen = signal.trunk.freeze_final_norm(last)
            return direction if frozen is None else frozen.pull_back(direction)

        found = attention_sources(signal.trunk, batch, sides.read, functional)
        shares = found.shares.cpu().numpy()
        for row, item in enumerate(batch.index):
            length = len(sides.encoded[item].ids)
            values[item, :, :length] = shares[row, :, :length]
        writes[batch.index, :, 0] = found.write.cpu().numpy()
        writes[batch.index, :, 1] = found.constant.cpu().numpy()
        if progress is not None:
            progress(len(batch.index))
    return observation(
        signal,
        "source_attribution",
        value=xr.DataArray(
            np.stack([values[:n], values[n:]]),
            dims=("side", "pair", "layer", "position"),
            coords={
                "side": ["chosen", "rejected"],
                "layer": np.arange(layers),
                **sides.pair_coords(),
            },
            name="contribution",
        ),
        data=given.fingerprint,
        readout=chosen,
        position=position,
        parameters={"readout": readout, "truncate": truncate, "batch_tokens": batch_tokens},
        cost=float(2 * n),
        tables={
            "writes": _table(writes, np.nansum(values, -1), given.ids, sides.encoded),
            "tokens": token_rows(signal, sides, truncate),
        },
    )


def _table(
    writes: np.ndarray[Any, np.dtype[np.float64]],
    summed: np.ndarray[Any, np.dtype[np.float64]],
    ids: list[str],
    encoded: list[Encoded],
) -> pd.DataFrame:
    items, layers = summed.shape
    side = np.repeat(["chosen", "rejected"], len(ids))
    return pd.DataFrame(
        {
            "side": np.repeat(side, layers),
            "pair": np.repeat(np.tile(np.array(ids, dtype=object), 2), layers),
            "layer": np.tile(np.arange(layers), items),
            "tokens": np.repeat([len(e.ids) for e in encoded], layers),
            "write": writes[..., 0].ravel(),
            "sources": summed.ravel(),
            "constant": writes[..., 1].ravel(),
            "rounding": (writes[..., 0] - writes[..., 1] - summed).ravel(),
        }
    )
