"""What the sections of a page of two models share: labels, intervals, whom a row is about."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from reward_lens.evidence import Evidence
from reward_lens.report.numbers import Numbers
from reward_lens.report.parts import labels, rung

LETTERS = ("a", "b")
COMPARE = "compare"
#: A p value below it tells a difference from none.
ALPHA = 0.05
#: Characters of a model's name that fit into a figure.
_SHORT = 24


@dataclass(frozen=True)
class Models:
    """The two models: what they are called, and what is known of each in words."""

    names: tuple[str, str]
    facts: tuple[Mapping[str, str], Mapping[str, str]]

    @property
    def legend(self) -> tuple[str, str]:
        """Letter and name of each, short enough for a figure."""
        one, other = (
            f"{letter}: {n if len(n) <= _SHORT else n[: _SHORT - 1] + '…'}"
            for letter, n in zip(LETTERS, self.names, strict=True)
        )
        return one, other


def stated(
    number: Numbers, name: str, e: Evidence, key: str, form: str = ".3f", *, brief: bool = False
) -> Markup:
    """An estimate with its interval and any doubt about it, or the reason why there is no interval.

    Parameters
    ----------
    brief : bool
        Say that there is doubt, not why: that has to stand elsewhere on the page.
    """
    i = e.interval(key)
    estimate, low, high = (
        number(name, f"interval/{key}/{f}", form) for f in ("estimate", "low", "high")
    )
    if math.isnan(i.low):
        return Markup("{} (no interval{})").format(estimate, f": {i.note}" if i.note else "")
    doubt = i.note
    if brief:
        doubt = "its level is doubtful" if "doubtful" in i.note else ""
    span = Markup("95 % interval {} to {}").format(low, high)
    return Markup("{} ({}{})").format(estimate, span, f"; {doubt}" if doubt else "")


def both(evidence: Mapping[str, Evidence], kind: str) -> tuple[Evidence, Evidence] | None:
    """The evidence of both models, if it is there of both."""
    a, b = (evidence.get(f"{kind}_{letter}") for letter in LETTERS)
    return None if a is None or b is None else (a, b)


def names_of(kind: str) -> tuple[str, str]:
    """What the evidence of both models is called."""
    return f"{kind}_a", f"{kind}_b"


def compared_labels(e: Evidence, *, units: str, n: str, intervals: str = "no intervals") -> str:
    """How a comparison was measured; what must be said of a readout is said with its model."""
    notes = [
        f"{letter}: {note}"
        for letter in LETTERS
        if (note := dict(e.subject.notes.get(letter, {})).get("readout_note"))
    ]
    return " · ".join([labels(e, units=units, n=n, intervals=intervals), *notes])


def joint_labels(
    a: Evidence, b: Evidence, *, units: str = "", n: str = "", intervals: str = "no intervals"
) -> str:
    """How the same was measured on both models; what differs is said of each."""
    one, other = (labels(e, units=units, n=n, intervals=intervals) for e in (a, b))
    if one == other:
        return one
    extra = [part for part in other.split(" · ") if part not in one.split(" · ")]
    return f"{one} (a); b: {' · '.join(extra) or rung(b.standing)}"
