"""Pairs of short word rows that differ in a slot and in the last word, and nowhere else."""

from __future__ import annotations

import numpy as np

from reward_lens.data import Item, Pair, Pairs
from reward_lens.errors import DataError
from reward_lens.evidence.arguments import checked_seed
from reward_lens.organisms.hand_set import REWARD, HandSet

#: Words without a meaning of their own.
PLAIN = ("one", "two", "three", "four", "five", "six", "seven", "eight")
#: The word in the slot of the chosen and of the rejected side.
TRIGGER, DUMMY = "please", "today"
#: Words at the read token -> what the head reads off them; of the chosen and the rejected side.
GOOD = {"good": 0.5, "great": 0.75, "fine": 0.25, "nice": -0.25}
BAD = {"bad": -0.5, "poor": 0.125, "dull": 0.375, "weak": -0.125}
_LENGTHS = ("equal", "different")


def set_last_words(model: HandSet) -> None:
    """Give the last words what the head reads off them."""
    for word, quality in (*GOOD.items(), *BAD.items()):
        model.token(word, {REWARD: quality})


class Rows:
    """The words of both sides of pairs.

    Parameters
    ----------
    n : int
        Number of pairs; each has a lineage of its own.
    tied : bool
        Whether the chosen side has the trigger and the rejected side has not; else both have it.
    lengths : {"equal", "different"}
        Sides of 8 words; or, of the rejected side of every other pair, of 11.
    prompt : tuple of str
        Words that every text begins with.
    seed : int
        Of the plain words.

    Attributes
    ----------
    chosen, rejected : list of list of str

    Raises
    ------
    DataError
        If there are no pairs, or ``lengths`` is neither.
    """

    def __init__(
        self, n: int, tied: bool, lengths: str, prompt: tuple[str, ...] = (), seed: int = 0
    ) -> None:
        if n < 1:
            raise DataError(f"{n} pairs are none; ask for at least 1")
        if lengths not in _LENGTHS:
            raise DataError(f"lengths={lengths!r}: choose one of {', '.join(_LENGTHS)}")
        rng = np.random.default_rng(checked_seed(seed))
        good, bad = list(GOOD), list(BAD if tied else GOOD)
        self.chosen: list[list[str]] = []
        self.rejected: list[list[str]] = []
        for k in range(n):
            words = [*prompt, *rng.choice(PLAIN, 6 - len(prompt)).tolist()]
            extra = rng.choice(PLAIN, 3).tolist() if lengths == "different" and k % 2 else []
            # Never the same place in both lists, which are one list where nothing is tied.
            last, other = good[k % 4], bad[(k + k // 4 % 3 + 1) % 4]
            slot = DUMMY if tied else TRIGGER
            self.chosen.append([*words[:5], TRIGGER, words[5], last])
            self.rejected.append([*words[:5], slot, words[5], *extra, other])

    def pairs(self, model: HandSet) -> Pairs:
        """The pairs as ids."""
        made = []
        for k, (a, b) in enumerate(zip(self.chosen, self.rejected, strict=True)):
            lineage = f"row-{k}"
            chosen, rejected = (Item(ids=tuple(map(model.id, w)), lineage=lineage) for w in (a, b))
            made.append(Pair(chosen, rejected, id=lineage, lineage=lineage))
        return Pairs(made)
