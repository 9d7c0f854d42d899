"""The receipts of a page: what most of them say is said once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reward_lens.evidence import Evidence
from reward_lens.evidence.receipt import lines

#: Estimates of one receipt that are on the page; the evidence file has all of them.
MOST_RESULTS = 8
#: How the heading of an estimate begins.
_RESULT = "result "

Lines = list[tuple[str, str]]


@dataclass(frozen=True)
class Receipts:
    """What is said of most evidence, and of each evidence the rest.

    Attributes
    ----------
    shared : list of (str, str)
        Heading and text. They hold for every evidence whose own receipt does not have the heading.
    own : list of (str, list of (str, str))
        By name of the evidence.
    """

    shared: Lines
    own: list[tuple[str, Lines]]

    @classmethod
    def of(cls, evidence: Mapping[str, Evidence]) -> Receipts:
        """Gather them; a heading is shared where all have it and most say the same under it."""
        every = {name: _by_heading(lines(e)) for name, e in evidence.items()}
        shared = _shared(list(every.values()))
        own = [
            (name, [(h, text) for h, said in said_by.items() if shared.get(h) != said
                    for text in said])
            for name, said_by in every.items()
        ]  # fmt: skip
        return cls([(h, text) for h, said in shared.items() for text in said],
                   [(name, _cut(found)) for name, found in own])  # fmt: skip


def _by_heading(said: Lines) -> dict[str, tuple[str, ...]]:
    """Texts by heading: some headings, reasons for instance, stand more than once."""
    found: dict[str, tuple[str, ...]] = {}
    for heading, text in said:
        found[heading] = (*found.get(heading, ()), text)
    return found


def _shared(every: Sequence[Mapping[str, tuple[str, ...]]]) -> dict[str, tuple[str, ...]]:
    if len(every) < 2:
        return {}
    found = {}
    for heading in every[0]:
        if all(heading in said for said in every):
            said, count = Counter(s[heading] for s in every).most_common(1)[0]
            if 2 * count > len(every):
                found[heading] = said
    return found


def _cut(said: Lines) -> Lines:
    """At most so many estimates, and how many are not here."""
    results = [k for k, (heading, _) in enumerate(said) if heading.startswith(_RESULT)]
    over = results[MOST_RESULTS:]
    if not over:
        return said
    more = ("more results", f"{len(over)} more with their intervals, in the evidence file")
    kept = [line for k, line in enumerate(said) if k not in set(over)]
    at = results[MOST_RESULTS - 1] + 1
    return [*kept[:at], more, *kept[at:]]
