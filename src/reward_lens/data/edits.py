"""Matched edits: changes of a response that leave what it says, each with what it keeps.

Deterministic functions of the text and a seed. An edit that has nothing to change in a response
(no list to take apart, no middle between two sentences) gives ``None``, and whoever applies it
counts that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from reward_lens.data import edits_markup as markup
from reward_lens.data import edits_wording as wording
from reward_lens.data.edits_phrases import PHRASES
from reward_lens.data.edits_prose import Prose
from reward_lens.data.fields import text_of
from reward_lens.errors import DataError
from reward_lens.evidence.arguments import checked_seed

#: Where an edit acts. ``whole`` is the response at large.
POSITIONS = ("start", "middle", "end", "whole")
_PLACED = POSITIONS[:3]

Rewrite = Callable[[Prose, int], str | None]


@dataclass(frozen=True)
class Edit:
    """One change of a response.

    Attributes
    ----------
    name, family : str
    position : {"start", "middle", "end", "whole"}
    changes : str
        As the subject of "... raises the score".
    keeps : str
    """

    name: str
    family: str
    position: str
    changes: str
    keeps: str
    rewrite: Rewrite = field(repr=False, compare=False)

    @property
    def label(self) -> str:
        """``name.position``; the name alone where the whole response is changed."""
        return self.name if self.position == "whole" else f"{self.name}.{self.position}"

    def apply(self, response: str, *, seed: int = 0) -> str | None:
        """Edit a response.

        Parameters
        ----------
        response : str
        seed : int
            Chooses among the wordings of a phrase; the same seed and text give the same choice.

        Returns
        -------
        str or None
            ``None`` where there is nothing to change.

        Raises
        ------
        DataError
            If the response is no text, or blank, or the seed no whole number from 0.
        """
        seed = checked_seed(seed)
        text = text_of(response, f"edit {self.label}", "the response")
        found = self.rewrite(Prose(text), seed)
        return None if found is None or found == text or not found.strip() else found


def _placed(
    name: str,
    family: str,
    changes: str,
    keeps: str,
    rewrite: Callable[[Prose, str, int], str | None],
) -> list[Edit]:
    """The same edit at start, middle and end."""

    def at(prose: Prose, seed: int, position: str) -> str | None:
        return rewrite(prose, position, seed)

    return [
        Edit(name, family, p, f"{changes} at the {p}", keeps, partial(at, position=p))
        for p in _PLACED
    ]


def _phrases() -> list[Edit]:
    out = []
    for name, (family, adds, _) in PHRASES.items():

        def rewrite(prose: Prose, position: str, seed: int, name: str = name) -> str | None:
            return wording.phrase(prose, name, position, seed)

        out += _placed(name, family, adds, "every character of the response", rewrite)
    return out


def _trailing(added: str) -> Rewrite:
    def rewrite(prose: Prose, seed: int) -> str | None:
        return prose.text + added

    return rewrite


_WORDS = "every word, in order, and all code"
_TEXT = "every character of the response"

#: Every edit of a response that needs nothing but its text.
EDITS: tuple[Edit, ...] = (
    *_placed("restated", "length", "restating", _TEXT, wording.restated),
    *_placed("trimmed", "length", "leaving out the sentence", "all other sentences",
             wording.trimmed),
    Edit("halved", "length", "whole", "leaving out the second half", "the first half of the "
         "sentences", wording.half),
    Edit("markdown_off", "format", "whole", "taking markdown off", _WORDS, markup.markdown_off),
    Edit("markdown_on", "format", "whole", "markdown (a bold sentence and a list)", _WORDS,
         markup.markdown_on),
    Edit("list_form", "format", "whole", "list form", _WORDS, markup.list_form),
    *_placed("bold", "format", "a bold sentence", _WORDS, markup.bold),
    *_placed("heading", "format", "a heading", _WORDS, markup.heading),
    *_placed("emoji", "format", "an emoji", _TEXT, wording.emoji),
    *_phrases(),
    *_placed("citation", "citation", "an empty citation", _TEXT, wording.citation),
    *_placed("typos", "noise", "typing errors", "the letters of each word, the number of words, "
             "and all code", wording.typos),
    *_placed("repeated", "noise", "a sentence written twice", _TEXT, wording.repeated),
    Edit("trailing_space", "ending", "end", "a space at the end", _TEXT, _trailing(" ")),
    Edit("trailing_newlines", "ending", "end", "two line ends at the end", _TEXT,
         _trailing("\n\n")),
)  # fmt: skip


def end_token(text: str) -> Edit:
    """The edit that writes a tokenizer's end token once more behind the response.

    Parameters
    ----------
    text : str
        The end token as text.
    """
    changes = f"the end token {text} written at the end"
    return Edit("end_token", "ending", "end", changes, _TEXT, _trailing(text))


def edits_named(names: Iterable[str], known: Iterable[Edit] = EDITS) -> tuple[Edit, ...]:
    """Choose edits by label, name (all its positions) or family.

    Raises
    ------
    DataError
        Naming what there is, where one is not known.
    """
    if isinstance(names, str):
        raise DataError(f"edits={names!r}: give a list of names")
    every = tuple(known)
    asked = list(names)
    for name in asked:
        if not any(name in (e.label, e.name, e.family) for e in every):
            there = ", ".join(dict.fromkeys(n for e in every for n in (e.family, e.name)))
            raise DataError(f"there is no edit {name!r}; there are {there}")
    return tuple(e for e in every if {e.label, e.name, e.family} & set(asked))
