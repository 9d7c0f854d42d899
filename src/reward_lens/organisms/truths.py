"""Collecting what is true of a hand-set organism: one call per component, 0 for all else."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from reward_lens.organisms.answer_key import READINGS, AnswerKey, Floats
from reward_lens.organisms.hand_set import HandSet
from reward_lens.organisms.sentences import BAD, GOOD, Rows

_BY_HEAD = re.compile(r"(L\d+)\.H\d+( -> .*)?")
_BOTH = ("noise", "denoise")


class Truths:
    """The right answers of one organism in the making.

    Every organism has the last word's quality in its margin, which the head reads straight off the
    embedding; it is entered here. Whatever else the margin has is entered by the builder.

    Parameters
    ----------
    rows : Rows

    Attributes
    ----------
    quality : ndarray, [pair]
        The embedding's part of the margin.
    lengths : ndarray, [2, pair]
        Words of the chosen and the rejected side.
    margin : ndarray, [pair]
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        of = {**GOOD, **BAD}
        self.quality = self.difference({w: of[w] for w in of})
        self.lengths = np.array([[len(w) for w in side] for side in (rows.chosen, rows.rejected)])
        self.margin: Floats = self.quality.copy()
        self._truth: dict[str, dict[str, Floats]] = {reading: {} for reading in READINGS}
        self.add("attribution", "embed", self.quality)
        for kind in _BOTH:
            self.add(kind, "embed", self.quality)
            self.add(f"gradient {kind}", "embed", self.quality)
            self.add(f"gradient {kind} everywhere", "embed", self.quality)
            self.add(f"{kind} path", "embed -> readout", self.quality)

    def difference(self, last_words: dict[str, float]) -> Floats:
        """Difference between the sides of something that the last word has, ``[pair]``."""
        sides = zip(self.rows.chosen, self.rows.rejected, strict=True)
        return np.array([last_words[a[-1]] - last_words[b[-1]] for a, b in sides])

    def add(self, reading: str, name: str, value: npt.ArrayLike) -> None:
        """Add to the right answer of a reading; what a head does its attention does as well."""
        names = [name]
        if (found := _BY_HEAD.fullmatch(name)) is not None:
            names.append(f"{found[1]}.attn_out{found[2] or ''}")
        known = self._truth[reading]
        for one in names:
            before = known.get(one, np.zeros(len(self.quality)))
            known[one] = before + np.asarray(value, dtype=np.float64)

    def everywhere(
        self, reading: str, name: str, noise: npt.ArrayLike, denoise: npt.ArrayLike
    ) -> None:
        """Enter both directions of a reading at all tokens: ``"gradient"``, or ``"path"``."""
        for kind, value in zip(_BOTH, (noise, denoise), strict=True):
            kinds = {"gradient": f"gradient {kind} everywhere", "path": f"{kind} path everywhere"}
            self.add(kinds[reading], name, value)

    def patched(
        self,
        name: str,
        noise: npt.ArrayLike,
        denoise: npt.ArrayLike | None = None,
        *,
        gradient: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    ) -> None:
        """Enter what patching a component at the read token does.

        Parameters
        ----------
        noise, denoise : array_like, [pair] or a number
            ``denoise`` is ``noise`` where it is left out.
        gradient : pair of array_like, optional
            First-order estimates of the two; the values themselves where they are left out.
        """
        values = (noise, noise if denoise is None else denoise)
        for kind, exact, first in zip(_BOTH, values, gradient or values, strict=True):
            self.add(kind, name, exact)
            self.add(f"gradient {kind}", name, first)

    def path(self, name: str, noise: npt.ArrayLike, denoise: npt.ArrayLike | None = None) -> None:
        """Enter a path, ``"sender -> receiver"``; ``denoise`` is ``noise`` where it is left out."""
        for kind, value in zip(_BOTH, (noise, noise if denoise is None else denoise), strict=True):
            self.add(f"{kind} path", name, value)

    def into_head(
        self,
        sender: str,
        head: str,
        part: str,
        noise: npt.ArrayLike,
        denoise: npt.ArrayLike | None = None,
    ) -> None:
        """Enter a path into a head that reads the sender by its query, key or value alone."""
        for receiver in (f"{head}.{part}", *whole_of(head)):
            self.path(f"{sender} -> {receiver}", noise, denoise)

    def writes(self, name: str, value: npt.ArrayLike) -> None:
        """Enter a component that writes straight into the head and is read by nothing else."""
        self.add("attribution", name, value)
        self.add("zero", name, value)
        self.patched(name, value)
        self.path(f"{name} -> readout", value)

    def key(self, name: str, model: HandSet, dose: float, planted: tuple[str, ...]) -> AnswerKey:
        """Close the book: the organism with its answers.

        In every organism here only the embedding matters beyond the read token, so that all other
        values are the same everywhere; the embedding at all tokens of a side is the side. Ablating
        the embedding takes away what holds the norms still, so that has no value on paper.
        """
        self._truth["zero"]["embed"] = np.full(len(self.quality), np.nan)
        for kind in _BOTH:
            self._truth[f"{kind} everywhere"]["embed"] = self.margin
            for reading in (kind, f"gradient {kind}", f"{kind} path"):
                here, all_over = self._truth[reading], self._truth[f"{reading} everywhere"]
                self._truth[f"{reading} everywhere"] = {**here, **all_over}
        equal = bool((self.lengths[0] == self.lengths[1]).all())
        kept = {r: v for r, v in self._truth.items() if equal or "everywhere" not in r}
        return AnswerKey(
            name=name,
            signal=model.signal(name),
            pairs=self.rows.pairs(model),
            dose=dose,
            planted=planted,
            margin=self.margin,
            truth=kept,
        )


def whole_of(head: str) -> tuple[str, str]:
    """The receivers that a head's three inputs together are: itself, and its layer's attention."""
    return head, f"{head.split('.')[0]}.attn_in"
