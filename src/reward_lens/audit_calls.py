"""One run of an instrument in an audit, and whether a store has it from an earlier one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reward_lens.data import Pairs
from reward_lens.data.choices import Choices
from reward_lens.evidence import Evidence, EvidenceStore
from reward_lens.evidence.encoding import plain
from reward_lens.signals import ClassifierRM
from reward_lens.signals.identity import provenance

#: Arguments that change no number, or that the subject of the evidence speaks of.
_NO_PARAMETER = {"signal", "pairs", "progress", "position"}


@dataclass(frozen=True)
class Call:
    """An instrument and the options of one run of it.

    Attributes
    ----------
    instrument : callable
        ``instrument(signal, pairs, *, progress, **options) -> Evidence``.
    options : mapping
    recorded : mapping
        Options that the evidence records otherwise than they are given, as it records them.
    idle : tuple of str
        Options that change nothing in this run, so that the evidence does not record them.
    exchanges : int
        How many interventions the instrument itself adds to those of the signal. With any other
        number the evidence is of a signal that something else was done to.
    kept : bool
        Whether it may be taken from a store. Not where what it was asked is not all on record.
    free : bool
        Whether it runs no forward. It is computed anew then, and nobody has to wait for it.
    fits : callable
        ``fits(evidence) -> bool``: what else evidence must show that has these options.
    """

    instrument: Callable[..., Evidence]
    options: Mapping[str, Any]
    recorded: Mapping[str, Any] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    exchanges: int = 0
    kept: bool = True
    free: bool = False
    fits: Callable[[Evidence], bool] = lambda evidence: True

    def asked(self) -> dict[str, Any]:
        """Every option by name, with the defaults of those that are not given."""
        known = inspect.signature(self.instrument).parameters
        named = [p for p in known.values() if p.kind is not p.VAR_KEYWORD]
        defaults = {p.name: p.default for p in named}
        given = {**defaults, **self.options, **self.recorded}
        return {k: v for k, v in given.items() if k not in {*_NO_PARAMETER, *self.idle}}

    def in_store(
        self, store: EvidenceStore, signal: ClassifierRM, items: Pairs | Choices
    ) -> Evidence | None:
        """The newest evidence of this very run: same subject, options, versions and machine.

        Parameters
        ----------
        items : Pairs or Choices
            What it is asked of. Evidence of the same texts under other ids or in other subsets is
            not of these.

        Returns
        -------
        Evidence or None
            With the evidence that it was computed from at hand, as when it was measured.
        """
        if self.free or not self.kept:
            return None
        name, readout = self.instrument.__name__, self.options["readout"]
        found = store.find(instrument=name, signal=signal.fingerprint, data=items.fingerprint,
                           readout=readout)  # fmt: skip
        same = [e for e in found if self._is(e, signal) and _names(e, items) and self.fits(e)]
        return _with_parents(same[-1], store) if same else None

    def _is(self, e: Evidence, signal: ClassifierRM) -> bool:
        """Whether evidence of the instrument, signal and pairs is of this run.

        An option that is not on record could have been any, so that it never fits.
        """
        readout, position = signal.readout(e.subject.readout), self.options.get("position")
        subject = signal.subject(e.subject.data, readout, position)
        done = signal.interventions
        if replace(e.subject, interventions=done) != subject:
            return False
        there = e.subject.interventions
        if there[: len(done)] != done or len(there) != len(done) + self.exchanges:
            return False
        now, then = provenance(signal, {}, cost=0.0), e.provenance
        machine = ("versions", "dtype", "device", "kernel")
        if any(getattr(now, k) != getattr(then, k) for k in machine):
            return False
        return all(_recorded(k, v, e) for k, v in self.asked().items())


def _names(e: Evidence, items: Pairs | Choices) -> bool:
    """Whether evidence calls the items, and their subsets, as these are called."""
    for dim in ("pair", "choice"):
        if dim not in e.value.coords:
            continue
        if e.value[dim].values.tolist() != items.ids:
            return False
        if "subset" in e.value.coords and e.value["subset"].values.tolist() != list(items.subsets):
            return False
    # Of what has no value per pair, only pairs that were left out are named.
    known = set(items.ids)
    return all(known.issuperset(t["pair"]) for t in e.tables.values() if "pair" in t)


def _recorded(name: str, value: Any, e: Evidence) -> bool:
    """Whether evidence was measured with a value of an option."""
    p = e.provenance
    if isinstance(value, Evidence):
        return value.id in p.parents
    if name in p.parameters:
        return bool(plain(p.parameters[name]) == plain(value))
    # A seed that drew nothing is not recorded.
    return name == "seed" and p.seeds in ((), (value,))


def _with_parents(e: Evidence, store: EvidenceStore) -> Evidence:
    found = [store.get(i) for i in e.provenance.parents]
    parents = [_with_parents(p, store) for p in found if isinstance(p, Evidence)]
    return e.with_parents(*parents)
