"""What can be read off the surface of a response: its length, its markup, its stock phrases.

A feature is a pure function of the response's text, so that what an organism was made to reward can
be counted by anyone. ``"tokens"`` is the one exception: the number of ids that the signal is given
for the whole item, which only the signal's own tokenizer knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reward_lens.data import Item
from reward_lens.errors import DataError, NumericsError

Floats = npt.NDArray[np.float64]

#: The feature that a tokenizer counts: ids of the whole item.
TOKENS = "tokens"


@dataclass(frozen=True)
class Feature:
    """A number that is read off a response's text.

    Attributes
    ----------
    name : str
    what : str
        In words, for the record.
    of : callable
        Text -> number.
    """

    name: str
    what: str
    of: Callable[[str], float]


#: A feature by name, as an object, or as any function of an item.
FeatureLike = str | Feature | Callable[[Item], float]


def _count(pattern: str, flags: int = 0) -> Callable[[str], float]:
    """How often a pattern occurs."""
    compiled = re.compile(pattern, flags)
    return lambda text: float(sum(1 for _ in compiled.finditer(text)))


def _phrases(*phrases: str) -> Callable[[str], float]:
    """How often any of the phrases occurs, as whole words and in any case."""
    joined = "|".join(re.escape(p) for p in sorted(phrases, key=len, reverse=True))
    return _count(rf"\b(?:{joined})\b", re.IGNORECASE)


_FLATTERY = (
    "great question", "good question", "excellent question", "wonderful question",
    "you are right", "you're right", "absolutely right", "brilliant", "clever of you",
    "what a thoughtful", "impressive", "insightful",
)  # fmt: skip
_HEDGES = (
    "perhaps", "maybe", "might", "possibly", "probably", "it seems", "i think", "i believe",
    "in some cases", "it depends", "not sure", "generally",
)  # fmt: skip
_POLITE = ("please", "thank you", "thanks", "you're welcome", "sorry", "glad to help", "kindly")

_LINE = re.MULTILINE
_LIST = r"^[ \t]*(?:[-*+•]|\d+[.)])[ \t]+\S"
_BOLD = r"\*\*[^*\n]+\*\*|__[^_\n]+__"
_HEADING = r"^#{1,6}[ \t]+\S"
_FENCE = r"^[ \t]*```[^`\n]*\n.*?^[ \t]*```"
# The blocks in which nearly all pictographs lie; signs such as © or → are not counted.
_EMOJI = "[\U0001f300-\U0001faff\u2600-\u27bf]"

_ALL = (
    Feature("characters", "characters of the response", lambda text: float(len(text))),
    Feature("words", "words of the response", _count(r"\S+")),
    Feature("sentences", "sentence ends", _count(r"[.!?]+(?=\s|$)")),
    Feature("digits", "digits", _count(r"\d")),
    Feature("question_marks", "question marks", _count(r"\?")),
    Feature("exclamation_marks", "exclamation marks", _count(r"!")),
    Feature("commas", "commas", _count(",")),
    Feature("capitals", "capital letters", lambda text: float(sum(c.isupper() for c in text))),
    Feature("list_items", "lines that are list items", _count(_LIST, _LINE)),
    Feature("bold", "spans in bold", _count(_BOLD)),
    Feature("headings", "Markdown headings", _count(_HEADING, _LINE)),
    Feature("code_blocks", "fenced blocks of code", _count(_FENCE, _LINE | re.DOTALL)),
    Feature(
        "markdown",
        "list items, bold spans, headings and code blocks together",
        _count(f"{_FENCE}|{_LIST}|{_HEADING}|{_BOLD}", _LINE | re.DOTALL),
    ),
    Feature("emoji", "pictographs", _count(_EMOJI)),
    Feature("flattery", "phrases that flatter the user", _phrases(*_FLATTERY)),
    Feature("hedges", "words and phrases that hedge", _phrases(*_HEDGES)),
    Feature("politeness", "words and phrases of politeness", _phrases(*_POLITE)),
)

#: Every named feature of a response's text.
FEATURES: dict[str, Feature] = {f.name: f for f in _ALL}


def feature_name(feature: FeatureLike) -> str:
    """What a feature is called in records."""
    if isinstance(feature, str):
        return feature
    if isinstance(feature, Feature):
        return feature.name
    return str(getattr(feature, "__name__", type(feature).__name__))


def feature_values(
    feature: FeatureLike, items: Sequence[Item], tokens: Sequence[int] | Any = None
) -> Floats:
    """Read a feature off items.

    Parameters
    ----------
    feature : str, Feature or callable
        A name of :data:`FEATURES`, ``"tokens"``, a feature of your own, or a function of an item.
    items : sequence of Item
    tokens : sequence of int, optional
        Ids of each item, which the feature ``"tokens"`` is.

    Returns
    -------
    ndarray of float64, [item]

    Raises
    ------
    DataError
        If there is no such feature, or an item does not say which part of it is the response.
    NumericsError
        If a value is not finite; names the item.
    """
    if feature == TOKENS:
        if tokens is None:
            raise DataError(
                f"the feature {TOKENS!r} is counted by a signal's tokenizer: pass tokens=, or "
                f"choose 'words' or 'characters'"
            )
        return np.asarray(tokens, dtype=np.float64)
    if isinstance(feature, str) and feature not in FEATURES:
        known = ", ".join((*FEATURES, TOKENS))
        raise DataError(f"no feature {feature!r}; there are {known}, or pass a function of an item")
    found = FEATURES[feature] if isinstance(feature, str) else feature
    values = np.empty(len(items))
    for k, item in enumerate(items):
        read = found.of(_response(k, item)) if isinstance(found, Feature) else found(item)
        if not np.isfinite(read):
            raise NumericsError(f"item {k}: the feature {feature_name(feature)!r} is {read}")
        values[k] = read
    return values


def _response(k: int, item: Item) -> str:
    if item.response is None:
        form = "ids" if item.text is None else "text that is already rendered"
        raise DataError(
            f"item {k} is {form}, which does not say where the response begins, so no feature of "
            f"the response can be read off it: give a prompt and a response, or use {TOKENS!r}"
        )
    return item.response
