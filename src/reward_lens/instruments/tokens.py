"""Token map: the prefix curve of a few pairs, token by token, and where attention reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from reward_lens.data import as_pairs
from reward_lens.evidence import Evidence
from reward_lens.instruments.sides import Sides
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import observation


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
    n, values = len(given), curves.value.values
    tokens = token_rows(signal, sides, truncate)
    lengths = [len(e.ids) for e in sides.encoded]
    scores = [values[k, :length] for k, length in enumerate(lengths)]
    tokens["score"] = np.concatenate(scores)
    tokens["change"] = np.concatenate([np.diff(c, prepend=np.float32(np.nan)) for c in scores])
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
        tables={"tokens": tokens},
    )


def token_rows(signal: ClassifierRM, sides: Sides, truncate: str) -> pd.DataFrame:
    """One row per token of both sides of pairs.

    Returns
    -------
    DataFrame
        ``side``, ``pair``, ``position``, ``token`` (its text), ``read`` (whether the head reads
        there) and ``response`` (whether it is part of the response).
    """
    given, frames = sides.pairs, []
    items = [*given.chosen, *given.rejected]
    for k, (item, read) in enumerate(zip(items, sides.read, strict=True)):
        aligned = signal.encoder.align(item, truncate)
        start, stop = aligned.response or (0, 0)
        where = np.arange(len(aligned.tokens))
        frames.append(
            pd.DataFrame(
                {
                    "side": "chosen" if k < len(given) else "rejected",
                    "pair": given.ids[k % len(given)],
                    "position": where,
                    "token": aligned.tokens,
                    "read": where == read,
                    "response": (where >= start) & (where < stop),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)
