"""What a long run found: evidence by name, what is not among it, and how it shows itself."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

import pandas as pd

from reward_lens.data import Pairs
from reward_lens.errors import DataError
from reward_lens.evidence import Evidence, EvidenceStore
from reward_lens.evidence.pictures import clip
from reward_lens.evidence.showing import LEFT, size_of, table
from reward_lens.wording import counted

_HEAD = ("evidence", "n", "trust", "forwards")
#: Characters of a reason; reasons and notes that are shown.
_REASON, _MOST = 100, 4


def checked_store(store: Any) -> None:
    """Refuse what is no open store.

    Raises
    ------
    DataError
        Saying how to open one.
    """
    if store is not None and not isinstance(store, EvidenceStore):
        raise DataError(f"store={store!r} is no open store: pass EvidenceStore(path)")


@dataclass(frozen=True, repr=False, kw_only=True)
class Findings:
    """Evidence of one run, by name.

    Attributes
    ----------
    evidence : dict of str to Evidence
        By name, in the order they were measured.
    pairs : Pairs
        Those that were scored.
    left_out : dict of str to str
        Pair id -> why it was not scored.
    missing : dict of str to str
        Name -> why measuring it failed.
    not_offered : dict of str to str
        Name -> what the model or the pairs lack for it.
    notes : tuple of str
        What instruments warned of.
    resumed : tuple of str
        What was taken from the store instead of being measured again.
    """

    evidence: dict[str, Evidence]
    pairs: Pairs
    left_out: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    not_offered: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Evidence:
        try:
            return self.evidence[name]
        except KeyError:
            raise KeyError(self._no_such(name)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.evidence)

    def __repr__(self) -> str:
        rows = [_HEAD, *self._rows()]
        widths = [max(len(row[k]) for row in rows) for k in range(len(_HEAD))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
        shown = [f"  {line}".rstrip() for line in [*lines, *self._said()]]
        return "\n".join([f"<{self._title()}", *shown]) + ">"

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='{LEFT}'>{name}</th>" for name in _HEAD)
        body = (
            "".join(f"<td style='{LEFT}'>{escape(cell)}</td>" for cell in row)
            for row in self._rows()
        )
        said = "".join(f"<div>{escape(line)}</div>" for line in self._said())
        rows = table(f"<tr>{row}</tr>" for row in (head, *body))
        return f"<div><strong>{escape(self._title())}</strong>{rows}{said}</div>"

    @property
    def failed_checks(self) -> dict[str, list[str]]:
        """Conformance checks that do not hold, by model; a model that was not checked has none."""
        return {}

    @property
    def passed(self) -> bool:
        """Whether no conformance check failed, and all that was asked for ran."""
        return not any(self.failed_checks.values()) and not self.missing

    @property
    def forwards(self) -> float:
        """What was spent on instruments, now or before, in forwards of one item.

        Without conformance.
        """
        return sum(e.provenance.cost_forwards for e in self.evidence.values())

    def to_dataframe(self) -> pd.DataFrame:
        """Every number that has an interval, one row each.

        Returns
        -------
        DataFrame
            Columns ``evidence`` (the name here), ``result``, ``estimate``, ``low``, ``high``,
            ``level``, ``n``, ``n_effective``, ``clusters``, ``note``, ``instrument``, ``tier``,
            ``gauge``, ``trust``, ``id``. A result has the unit that its instrument's page gives,
            which need not be that of the evidence's value: a depth is in layers. What has a value
            for every pair or layer is in ``found[name].to_dataframe()``.
        """
        return pd.DataFrame([
            {
                "evidence": name, "result": i.name, "estimate": i.estimate, "low": i.low,
                "high": i.high, "level": i.level, "n": i.n, "n_effective": i.n_effective,
                "clusters": i.clusters, "note": i.note, "instrument": e.instrument,
                "tier": e.tier.value, "gauge": e.gauge.value,
                "trust": e.trust.name.lower(), "id": e.id,
            }
            for name, e in self.evidence.items() for i in e.uncertainty
        ])  # fmt: skip

    def _of(self) -> str:
        """What kind of run it is, and of what."""
        return type(self).__name__

    def _no_such(self, name: str) -> str:
        """Why there is no evidence of a name, and what there is."""
        kind = type(self).__name__.lower()
        for what, why in (("failed", self.missing), ("is not offered", self.not_offered)):
            if name in why:
                return f"{name} {what} in this {kind}: {why[name]}"
        near = difflib.get_close_matches(str(name), self.evidence, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        return f"no evidence is called {name!r}; {meant}There are {', '.join(self.evidence)}"

    def _title(self) -> str:
        failed = self.failed_checks
        checks = "conformance FAILED, " if any(failed.values()) else "conformance passed, "
        return (
            f"{self._of()}: {checks if failed else ''}{counted(len(self.pairs), 'pair')}, "
            f"{self.forwards:.0f} forwards"
        )

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (clip(name, 40), size_of(e), e.standing.name, f"{e.provenance.cost_forwards:.0f}")
            for name, e in self.evidence.items()
        ]

    def _said(self) -> list[str]:
        """What a reader would not see in the rows."""
        failed = self.failed_checks
        lines = [
            f"FAILED checks{f' of {of}' if len(failed) > 1 else ''}: {clip(', '.join(c), _REASON)}"
            for of, c in failed.items() if c
        ]  # fmt: skip
        for what, reasons in (("did not run", self.missing), ("not offered", self.not_offered)):
            shown = list(reasons.items())[:_MOST]
            lines += [f"{what}: {name}: {clip(why, _REASON)}" for name, why in shown]
            if len(reasons) > _MOST:
                lines.append(f"{what}: and {len(reasons) - _MOST} more")
        counts = {
            ("pair left out, .left_out", "pairs left out, .left_out"): len(self.left_out),
            ("note, .notes", "notes, .notes"): len(self.notes),
            ("of them from the store, .resumed",) * 2: len(self.resumed),
        }
        said = [f"{n} {words[n > 1]}" for words, n in counts.items() if n]
        return [*lines, *(["; ".join(said)] if said else [])]
