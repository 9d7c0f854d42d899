"""Which pairs a page's browser holds, and how much of their texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reward_lens.data import Item, Pair
from reward_lens.report.browser_json import size

#: Of the highest, the lowest and the smallest margins each, so many pairs.
EXTREMES = 20
#: Characters of one text, tried in turn until the texts of all chosen pairs fit. A response of 500
#: characters can still be judged, a shorter piece of one hardly: below that pairs are left out.
CAPS = (20_000, 8_000, 4_000, 3_000, 2_000, 1_500, 1_000, 700, 500)
#: What stands where a text was cut, and the share of what is kept that stands before it.
GAP, BEFORE = " […] ", 2 / 3


def order_of_showing(
    subsets: Sequence[str],
    margins: npt.NDArray[np.float64],
    first: Sequence[int],
    preferred: npt.NDArray[np.bool_],
    seed: int,
) -> list[int]:
    """Every row, so that wherever the list is cut its beginning is the best choice.

    First the rows that are named, then one of every subset, then the highest, the lowest and the
    smallest margins in turn, then all others in a seeded order whose every beginning holds the
    subsets in proportion to their sizes.

    Parameters
    ----------
    subsets : sequence of str, [row]
    margins : ndarray, [row]
    first : sequence of int
    preferred : ndarray of bool, [row]
        Rows of which more is known; of two that are else alike these come first.
    seed : int
    """
    up, close = np.argsort(margins, kind="stable"), np.argsort(np.abs(margins), kind="stable")
    in_turn = np.stack([up[::-1], up, close], axis=1)[:EXTREMES].ravel()
    drawn = np.random.default_rng(seed).permutation(len(margins))
    drawn = drawn[np.argsort(~preferred[drawn], kind="stable")]
    spread = _spread(np.asarray(subsets, dtype=object), drawn)
    of_each = {subsets[k]: k for k in reversed(spread)}
    there = {subsets[k] for k in first}
    missing = [k for s, k in of_each.items() if s not in there]
    ordered = [*first, *sorted(missing), *in_turn.tolist(), *spread]
    return list(dict.fromkeys(int(k) for k in ordered))


def _spread(subsets: npt.NDArray[np.object_], drawn: npt.NDArray[np.int64]) -> list[int]:
    """Drawn rows so ordered that every beginning holds each subset in proportion to its size."""
    place = np.empty(len(drawn))
    of_drawn = subsets[drawn]
    for subset in dict.fromkeys(of_drawn.tolist()):
        (where,) = np.nonzero(of_drawn == subset)
        place[where] = (np.arange(len(where)) + 0.5) / len(where)
    found: list[int] = drawn[np.argsort(place, kind="stable")].tolist()
    return found


def texts_of(pair: Pair) -> dict[str, str]:
    """Prompt, chosen and rejected response of a pair, as a person reads them.

    Rendered text stands as it is, without a prompt of its own; ids are counted.
    """
    return {
        "prompt": pair.chosen.prompt_text,
        "chosen": _response(pair.chosen),
        "rejected": _response(pair.rejected),
    }


def _response(item: Item) -> str:
    if item.response is not None:
        return item.response
    return item.text if item.text is not None else f"(given as {len(item.ids or ())} ids)"


def cut(text: str, cap: int) -> tuple[str, int]:
    """A text of at most ``cap`` characters, cut in its middle, and how many are not there."""
    if len(text) <= cap:
        return text, 0
    head = round(cap * BEFORE)
    tail = cap - head
    return f"{text[:head]}{GAP}{text[len(text) - tail :]}", len(text) - cap


def with_texts(
    records: Sequence[dict[str, Any]], pairs: Sequence[Pair], budget: int
) -> tuple[list[dict[str, Any]], int]:
    """Records with the texts of their pairs under ``t``, as many as fit.

    Texts are cut as little as lets every record fit; where even short ones do not, records are
    left out from the end.

    Parameters
    ----------
    records : sequence of dict
        What else is said of each pair.
    pairs : sequence of Pair
    budget : int
        Bytes of all records in the page.

    Returns
    -------
    records : list of dict
    cap : int
        Characters of the longest text that is whole.
    """
    whole = [texts_of(pair) for pair in pairs]
    for cap in CAPS:
        found, used = [], 0
        for record, texts in zip(records, whole, strict=True):
            one = {**record, "t": {name: list(cut(text, cap)) for name, text in texts.items()}}
            used += size(one)
            if used > budget:
                break
            found.append(one)
        if len(found) == len(records):
            break
    return found, cap
