"""The units that a text's score is spread over, tokens or sentences, and values of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pandas as pd

from reward_lens.backbone import Alignment
from reward_lens.errors import TokenizeError
from reward_lens.evidence import Interval
from reward_lens.instruments.rank_agreement import mean_agreement, rank_correlation
from reward_lens.instruments.sides import SIDES, Sides
from reward_lens.signals import ClassifierRM

Floats = npt.NDArray[np.float64]
#: One array per item, each as long as the item has tokens (or units).
Ragged = list[Floats]
Span = tuple[int, int]

#: Where a sentence ends: after its closing marks and white space, full-width marks, or line ends.
_END = re.compile(r"""[.!?…]+["'”’)\]]*\s+|[。！？]+["'”’）」』]*\s*|\s*\n\s*""")


@dataclass(frozen=True)
class Units:
    """What values are given for, item by item.

    Attributes
    ----------
    spans : list of list of (int, int)
        Half-open token spans: every token of the item, or the sentences of its response.
    response : list of (int, int)
        The tokens of the response; all tokens where it was not located.
    texts : list of list of str
        What the sentences say; empty where the units are tokens.
    """

    spans: list[list[Span]]
    response: list[Span]
    texts: list[list[str]]

    @classmethod
    def of(cls, signal: ClassifierRM, sides: Sides, unit: str, truncate: str) -> Units:
        """Find the units of both sides of pairs.

        Raises
        ------
        TokenizeError
            If sentences are asked for and an item's tokens could not be placed in its text.
        """
        spans, responses, texts = [], [], []
        items = [*sides.pairs.chosen, *sides.pairs.rejected]
        for k, item in enumerate(items):
            aligned = signal.encoder.align(item, truncate)
            response = aligned.response or (0, len(aligned.tokens))
            responses.append(response)
            if unit == "token":
                spans.append([(t, t + 1) for t in range(len(aligned.tokens))])
                continue
            if aligned.spans is None:
                side, pair = divmod(k, len(sides.pairs))
                raise TokenizeError(
                    f"pair {sides.pairs.ids[pair]!r}, {SIDES[side]} side: the places of its tokens "
                    f"in the text could not be verified, so its sentences are unknown; use "
                    f"unit='token'"
                )
            sentences = sentence_spans(aligned, response)
            spans.append(sentences)
            texts.append([_said(aligned, span) for span in sentences])
        return cls(spans, responses, texts)

    def inside(self) -> list[npt.NDArray[np.bool_]]:
        """Which units of each item lie in the response."""
        return [
            np.array([start <= a and b <= stop for a, b in spans])
            for spans, (start, stop) in zip(self.spans, self.response, strict=True)
        ]

    def in_response(self) -> list[list[Span]]:
        """The units that lie in the response."""
        both = zip(self.spans, self.inside(), strict=True)
        return [[span for span, ok in zip(spans, inside, strict=True) if ok]
                for spans, inside in both]  # fmt: skip

    def placed(self, values: Ragged) -> Ragged:
        """Values of the units in the response, with NaN for the others."""
        out = []
        for inside, found in zip(self.inside(), values, strict=True):
            row = np.full(len(inside), np.nan)
            row[inside] = found
            out.append(row)
        return out

    def summed(self, values: Ragged) -> Ragged:
        """Values of tokens added up by unit."""
        return [
            np.array([row[a:b].sum() for a, b in spans])
            for spans, row in zip(self.spans, values, strict=True)
        ]

    def table(self, sides: Sides, values: Mapping[str, Ragged]) -> pd.DataFrame:
        """One row per sentence: side, pair, number, token span, text and values.

        Parameters
        ----------
        values : mapping
            Method -> ragged values of the sentences.
        """
        rows = []
        for k, (spans, texts) in enumerate(zip(self.spans, self.texts, strict=True)):
            side, pair = divmod(k, len(sides.pairs))
            for number, ((start, stop), text) in enumerate(zip(spans, texts, strict=True)):
                rows.append(
                    {
                        "side": SIDES[side],
                        "pair": sides.pairs.ids[pair],
                        "sentence": number,
                        "start": start,
                        "stop": stop,
                        "text": text,
                        **{method: float(found[k][number]) for method, found in values.items()},
                    }
                )
        return pd.DataFrame(rows)


def sentence_spans(aligned: Alignment, response: Span) -> list[Span]:
    """Half-open token spans of a response's sentences, one after the other.

    A sentence ends after ``.``, ``!``, ``?`` or ``…`` and white space, after their full-width forms
    or at a line end; so an abbreviation before a space ends one too. A token belongs to the
    sentence that its last character is in.

    Parameters
    ----------
    aligned : Alignment
        With verified spans.
    response : (int, int)
        Token span of the response.
    """
    assert aligned.spans is not None
    first, last = response
    begin, stop = aligned.spans[first][0], aligned.spans[last - 1][1]
    ends = np.array([m.end() for m in _END.finditer(aligned.text, begin, stop)], dtype=np.int64)
    final_character = np.array([b - 1 for _, b in aligned.spans[first:last]])
    number = np.searchsorted(ends, final_character, side="right")
    starts = [first, *(first + 1 + np.flatnonzero(np.diff(number) > 0)).tolist()]
    return list(zip(starts, [*starts[1:], last], strict=True))


def _said(aligned: Alignment, span: Span) -> str:
    """The text of some tokens, which can share a character."""
    assert aligned.spans is not None
    start, stop = span
    return aligned.text[aligned.spans[start][0] : aligned.spans[stop - 1][1]]


def padded(values: Ragged) -> Floats:
    """Ragged rows as one array ``[item, longest]``, NaN beyond the end of each."""
    out = np.full((len(values), max(len(v) for v in values)), np.nan)
    for row, found in zip(out, values, strict=True):
        row[: len(found)] = found
    return out


def method_agreement(
    values: Mapping[str, Ragged], units: Units, lineages: npt.NDArray[np.object_]
) -> tuple[pd.DataFrame, tuple[Interval, ...]]:
    """Rank correlation of every two methods over the units of each response.

    Parameters
    ----------
    values : mapping
        Method -> values of the units, item by item.
    lineages : ndarray of str, [item]

    Returns
    -------
    table : DataFrame
        Per two methods the mean of Spearman's correlation over items with the ends of its
        cluster-t interval; ``items`` it is the mean of, and ``undefined`` ones (fewer than three
        units, or values that do not vary).
    intervals : tuple of Interval
    """
    rows, intervals = [], []
    for first, second in combinations(values, 2):
        rho = [
            rank_correlation(a[where], b[where])
            for a, b, where in zip(values[first], values[second], units.inside(), strict=True)
        ]
        found = mean_agreement(f"{first}.{second}", rho, lineages)
        intervals += [found] if found is not None else []
        nan = float("nan")
        rows.append(
            {
                "first": first,
                "second": second,
                "rank_correlation": nan if found is None else found.estimate,
                "low": nan if found is None else found.low,
                "high": nan if found is None else found.high,
                "items": int(np.isfinite(rho).sum()),
                "undefined": int(np.isnan(rho).sum()),
            }
        )
    columns = ["first", "second", "rank_correlation", "low", "high", "items", "undefined"]
    return pd.DataFrame(rows, columns=columns), tuple(intervals)
