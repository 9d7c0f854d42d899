"""An item as ids, and the read rules: which token of one unpadded row a head reads.

A rule is a property of the checkpoint. It is applied to the ids of one item, never to a padded
batch, where the same rule can give another token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reward_lens.errors import TokenizeError

#: The index that stands for the mean over all tokens.
MEAN = -1

#: What transformers' decoder classifiers read since 4.49, and the default.
RIGHTMOST_NON_PAD = "rightmost_non_pad"

#: Every rule, with the words that describe it.
RULES = {
    RIGHTMOST_NON_PAD: "the rightmost id that is not the pad id",
    "last": "the last token, whatever it is",
    "before_first_pad": "the token before the first pad id, the last where there is none",
    "first": "the first token",
    "mean": "the mean over all tokens",
}


def read_index(ids: Sequence[int] | npt.NDArray[np.int64], rule: str, pad_id: int | None) -> int:
    """Return the index that a rule reads in one unpadded row of ids.

    Parameters
    ----------
    ids : sequence of int, [n_tokens]
        Real tokens only. The pad id may occur among them: often it is also the end of a turn.
    rule : str
        ``"rightmost_non_pad"``, the rule of transformers from 4.49 on; ``"last"``;
        ``"before_first_pad"``, the rule of transformers 4.32 to 4.48, modulo the length;
        ``"first"``; ``"mean"``.
    pad_id : int or None
        The checkpoint's pad id. Without one both pad rules read the last token.

    Returns
    -------
    int
        From 0 to ``n_tokens - 1``, or :data:`MEAN`.

    Raises
    ------
    TokenizeError
        If the rule is unknown, there are no ids, or the rule looks for an id other than the pad id
        and there is none.
    """
    if rule not in RULES:
        raise TokenizeError(f"read rule {rule!r} is unknown; choose one of {', '.join(RULES)}")
    row = np.asarray(ids, dtype=np.int64)
    if row.size == 0:
        raise TokenizeError("there are no tokens to read")
    if rule == "first":
        return 0
    if rule == "mean":
        return MEAN
    last = row.size - 1
    if rule == "last" or pad_id is None:
        return last
    if rule == "before_first_pad":
        (pads,) = np.nonzero(row == pad_id)
        return int(pads[0] - 1) % row.size if len(pads) else last
    (real,) = np.nonzero(row != pad_id)
    if len(real) == 0:
        raise TokenizeError(f"the tokens consist of padding only (id {pad_id})")
    return int(real[-1])


@dataclass(frozen=True, eq=False)
class Encoded:
    """One item as ids.

    Attributes
    ----------
    ids : ndarray of int64, [n_tokens]
    native : int
        The index that the checkpoint's read rule gives; -1 (``MEAN``) where it reads the mean.
    cut : int
        How many tokens truncation removed.
    types : ndarray of int64, [n_tokens], or None
        Token types, where the tokenizer tells question and answer apart by them.
    """

    ids: npt.NDArray[np.int64]
    native: int
    cut: int = 0
    types: npt.NDArray[np.int64] | None = None

    @property
    def last(self) -> int:
        """Index of the last token, whatever it is."""
        return len(self.ids) - 1

    def read(self, position: str) -> int:
        """The index read under ``"native"``, ``"last"``, ``"first"`` or ``"mean"`` (``MEAN``).

        Raises
        ------
        TokenizeError
            For any other position.
        """
        places = {"native": self.native, "last": self.last, "first": 0, "mean": MEAN}
        if position not in places:
            raise TokenizeError(f"position={position!r}: choose one of {', '.join(places)}")
        return places[position]
