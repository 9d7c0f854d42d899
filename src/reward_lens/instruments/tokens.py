"""Token map: the prefix curve of a few pairs, token by token, and where attention reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from reward_lens.data import as_pairs
from reward_lens.evidence import Evidence
from reward_lens.instruments.sides import Sides
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation
from reward_lens.signals.sweeping import Progress


def token_curves(
    signal: ClassifierRM,
    pairs: Any,
    *,
    readout: str = "reward",
    position: str | None = None,
    truncate: str = "error",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Evidence:
    """Score every prefix of both sides of pairs and say what each token changes.

    Returns
    -------
    Evidence
        Value float32 ``[side, pair, position]``: the prefix score, NaN beyond the last token. Table
        ``tokens``: per side, pair and position the token's text, the prefix score, the change it
        makes, whether the head reads there and whether it is part of the response.

    Raises
    ------
    CapabilityError
        If the trunk is not causal.

    Notes
    -----
    The model was trained to be read at the end only: a prefix score is what it would give the cut
    text, not a judgement it was ever asked for.
    """
    require(signal, Capability.PREFIX_SCORES, "token_curves")
    given = as_pairs(pairs)
    sides = Sides.of(signal, given, position, truncate)
    items = [*given.chosen, *given.rejected]
    curves = signal.score_prefixes(
        items, readout=readout, truncate=truncate, batch_tokens=batch_tokens, progress=progress
    )
    n, values, frames = len(given), curves.value.values, []
    for k, (item, read) in enumerate(zip(items, sides.read, strict=True)):
        aligned = signal.encoder.align(item, truncate)
        curve = values[k, : len(aligned.tokens)]
        start, stop = aligned.response or (0, 0)
        where = np.arange(len(curve))
        frames.append(
            pd.DataFrame(
                {
                    "side": "chosen" if k < n else "rejected",
                    "pair": given.ids[k % n],
                    "position": where,
                    "token": aligned.tokens,
                    "score": curve,
                    "change": np.diff(curve, prepend=np.float32(np.nan)),
                    "read": where == read,
                    "response": (where >= start) & (where < stop),
                }
            )
        )
    return observation(
        signal,
        "token_curves",
        value=xr.DataArray(
            np.stack([values[:n], values[n:]]),
            dims=("side", "pair", "position"),
            coords={"side": ["chosen", "rejected"], **sides.pair_coords()},
            name="prefix_score",
        ),
        data=given.fingerprint,
        readout=signal.readout(readout),
        position=position,
        parameters={"readout": readout, "truncate": truncate, "batch_tokens": batch_tokens},
        cost=float(2 * n),
        tables={"tokens": pd.concat(frames, ignore_index=True)},
    )
