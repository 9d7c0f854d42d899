"""What stands beside every score: which token was read, and what the other convention gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from reward_lens.backbone import MEAN, Encoded, Encoder
from reward_lens.data import Item


def item_coords(
    encoder: Encoder, items: Sequence[Item], encoded: Sequence[Encoded], read: Sequence[int]
) -> dict[str, Any]:
    """Coordinates of the dimension ``item``: label, lineage, tokens, read index and token."""
    ids = [int(e.ids[r]) if r != MEAN else MEAN for e, r in zip(encoded, read, strict=True)]
    token = {i: encoder.tokenizer.decode([i]) for i in set(ids) - {MEAN}}
    token[MEAN] = "(mean of all tokens)"
    names = [x.id if x.id is not None else str(k) for k, x in enumerate(items)]
    return {
        "item": names,
        "lineage": ("item", [x.lineage for x in items]),
        "n_tokens": ("item", [len(e.ids) for e in encoded]),
        "read_index": ("item", list(read)),
        "read_token": ("item", [token[i] for i in ids]),
        "tokens_cut": ("item", [e.cut for e in encoded]),
    }


def position_table(
    encoded: Sequence[Encoded],
    read: Sequence[int],
    other: Sequence[int],
    values: npt.NDArray[np.float32],
    others: npt.NDArray[np.float32],
) -> dict[str, pd.DataFrame]:
    """Both scores of the items whose native and last position differ; empty if there are none.

    Parameters
    ----------
    values, others : ndarray, [item]
        The score at ``read``, and at ``other``, the other of the two positions.
    """
    differ = [i for i, (a, b) in enumerate(zip(read, other, strict=True)) if a != b]
    if not differ:
        return {}
    native = [read[i] == encoded[i].native for i in differ]
    table = {
        "item": differ,
        "native_index": [encoded[i].native for i in differ],
        "last_index": [encoded[i].last for i in differ],
        "native": np.where(native, values[differ], others[differ]),
        "last": np.where(native, others[differ], values[differ]),
    }
    return {"positions": pd.DataFrame(table)}
