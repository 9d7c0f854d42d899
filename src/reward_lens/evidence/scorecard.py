"""The scorecard: how well an instrument recovered rules that were planted in one model.

A card holds what happened on each organism. Everything it says, passing included, is computed from
that; there is no field to write a verdict into.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd

from reward_lens.errors import EvidenceError
from reward_lens.evidence.conditions import n_of, observables, plants_in
from reward_lens.evidence.encoding import plain, unplain
from reward_lens.evidence.frozen import frozen_settings
from reward_lens.evidence.hashing import canonical, fingerprint
from reward_lens.evidence.parts import (
    exact_fields,
    keep,
    sequence,
    settings_from_json,
    settings_to_json,
)
from reward_lens.evidence.pass_rule import least_covered, least_share, most_within, upper_rate
from reward_lens.evidence.reading import Reading
from reward_lens.evidence.record import Evidence

#: What a card must show to pass: organisms at the detection dose, nulls, the share found, the upper
#: bound (95 %) on the rate at which nulls are taken for rules, and by which factor the median rule
#: that is found may be read too large or too small.
MIN_ORGANISMS = 20
MIN_NULLS = 60
RECOVERY = 0.9
MAX_FALSE_POSITIVES = 0.1
MAX_FACTOR = 1.5


@dataclass(frozen=True)
class Trial:
    """What an instrument read on one organism.

    Attributes
    ----------
    kind : str
        Kind of rule that was planted; of a null, the kind it is the null of.
    organism : str
        Id of the organism.
    dose : float
        Size that the reading should have, in SDs of the margin; 0 for a null.
    place : str
        Label of the row in which the rule should be found. Of a null, the row in which it would
        have been; or nothing, and the largest reading of all rows counts.
    reading : float
        What was read there, in SDs of the margin.
    truth : float
        Signed effect that was planted, in reward units; NaN if unknown.
    covered : bool, optional
        Whether the interval held it.
    evidence : str
        Id of the evidence it was read from.
    """

    kind: str
    organism: str
    dose: float
    place: str
    reading: float
    evidence: str
    truth: float = math.nan
    covered: bool | None = None

    def __post_init__(self) -> None:
        keep(self, **{k: float(getattr(self, k)) for k in ("dose", "reading", "truth")})
        if not (self.dose >= 0 and self.reading >= 0 and math.isfinite(self.dose + self.reading)):
            raise EvidenceError(
                f"trial on {self.organism!r}: dose={self.dose:g} and reading={self.reading:g} are "
                "sizes in SDs of the margin: finite and not negative"
            )
        if self.dose > 0 and not self.place:
            raise EvidenceError(f"trial on {self.organism!r}: a planted rule has a place")


@dataclass(frozen=True, eq=False, repr=False)
class Scorecard:
    """What an instrument recovers on one model, under which circumstances.

    Parameters
    ----------
    instrument, version : str
    signal : str
        Fingerprint of the model whose trunk carried the plants.
    readout, dtype : str
    site_kinds : tuple of str
        Kinds of site that rules were planted in, such as ``mlp_out`` and ``head``.
    n_pairs : (int, int)
        Fewest and most pairs it speaks of.
    observables : mapping
        What :func:`observables` gives for a plain measurement of that model with the options that
        were calibrated.
    reading : Reading
        How effects are read off the evidence.
    margin_sd : float
        SD of the margin over the pairs of the calibration, in reward units.
    threshold : float
        A rule counts as found where the reading is at least this, in SDs of the margin.
    fixed_on : str
        Kind of plant on which the threshold was fixed; its trials count for nothing else.
    trials : tuple of Trial
    level : float
        Coverage that the instrument's intervals state.
    seeds : tuple of int
    cost_forwards : float

    Raises
    ------
    EvidenceError
        If an organism or an evidence is counted twice, or a number is out of range.
    """

    instrument: str
    version: str
    signal: str
    readout: str
    dtype: str
    site_kinds: tuple[str, ...]
    n_pairs: tuple[int, int]
    observables: Mapping[str, Any]
    reading: Reading
    margin_sd: float
    threshold: float
    fixed_on: str
    trials: tuple[Trial, ...]
    level: float = 0.95
    seeds: tuple[int, ...] = ()
    cost_forwards: float = 0.0

    def __post_init__(self) -> None:
        keep(self, observables=frozen_settings(self.observables), trials=tuple(self.trials))
        keep(self, site_kinds=sequence("site_kinds", self.site_kinds, str))
        keep(self, seeds=sequence("seeds", self.seeds, int))
        keep(self, n_pairs=sequence("n_pairs", self.n_pairs, int))
        for name in ("margin_sd", "threshold", "level", "cost_forwards"):
            keep(self, **{name: float(getattr(self, name))})
        if len(self.n_pairs) != 2 or not 0 < self.n_pairs[0] <= self.n_pairs[1]:
            raise EvidenceError(f"n_pairs={self.n_pairs}: give the fewest and the most pairs")
        if not all(math.isfinite(x) and x > 0 for x in (self.margin_sd, self.threshold)):
            raise EvidenceError(
                f"margin_sd={self.margin_sd:g} and threshold={self.threshold:g} are positive"
            )
        for name in ("organism", "evidence"):
            seen = [getattr(t, name) for t in self.trials]
            if len(set(seen)) < len(seen):
                twice = next(s for s in seen if seen.count(s) > 1)
                raise EvidenceError(f"two trials have the {name} {twice!r}: each counts once")

    @cached_property
    def id(self) -> str:
        """Hash of every field."""
        return "sc-" + fingerprint(canonical(self._record()))

    @property
    def parents(self) -> tuple[str, ...]:
        """Ids of the evidence that the trials were read from."""
        return tuple(t.evidence for t in self.trials)

    @property
    def planted(self) -> list[Trial]:
        """Trials with a rule in them, of kinds on which the threshold was not fixed."""
        return [t for t in self.trials if t.dose > 0 and t.kind != self.fixed_on]

    @property
    def nulls(self) -> list[Trial]:
        """Trials without a rule, of kinds on which the threshold was not fixed."""
        return [t for t in self.trials if t.dose == 0 and t.kind != self.fixed_on]

    @property
    def recovery(self) -> pd.DataFrame:
        """Per dose: ``dose``, ``organisms``, ``found`` and ``recovery`` (their ratio)."""
        doses = sorted({t.dose for t in self.planted})
        at = [[t.reading >= self.threshold for t in self.planted if t.dose == d] for d in doses]
        columns = {
            "dose": np.array(doses, dtype=np.float64),
            "organisms": np.array([len(found) for found in at], dtype=np.int64),
            "found": np.array([sum(found) for found in at], dtype=np.int64),
        }
        return pd.DataFrame({**columns, "recovery": columns["found"] / columns["organisms"]})

    @property
    def detection_dose(self) -> float:
        """Smallest dose from which on, at every dose tried, nine in ten rules are found; or NaN.

        In SDs of the margin. Doses tried on fewer than :data:`MIN_ORGANISMS` do not count as found.
        """
        table = self.recovery
        good = (table["recovery"] >= RECOVERY) & (table["organisms"] >= MIN_ORGANISMS)
        # From the largest dose down to the first that is not good.
        from_here_on = good[::-1].cummin()[::-1]
        doses = table["dose"][from_here_on]
        return float(doses.min()) if len(doses) else math.nan

    @property
    def false_positives(self) -> tuple[int, float]:
        """Nulls taken for rules, and the upper end of the one-sided 95 % interval of their rate."""
        n, k = len(self.nulls), sum(t.reading >= self.threshold for t in self.nulls)
        return k, upper_rate(k, n)

    @property
    def coverage(self) -> tuple[float, int]:
        """Share of planted effects that the intervals held (NaN if unknown), and of how many."""
        known = [t.covered for t in self.planted if t.covered is not None]
        return (sum(known) / len(known) if known else math.nan), len(known)

    @property
    def size(self) -> float:
        """Median of reading over dose, of the rules from the detection dose on; NaN without one.

        A threshold that is fixed on the instrument's own nulls does not see a wrong unit.
        """
        found = [t.reading / t.dose for t in self.planted if t.dose >= self.detection_dose]
        return float(np.median(found)) if found else math.nan

    @property
    def detects(self) -> str:
        """From which dose on it finds rules, in words."""
        if math.isnan(self.detection_dose):
            return "detects no dose reliably"
        return (
            f"found in nine of ten from {self.detection_dose:.3g} SD of the margin on, the median "
            f"at {self.size:.3g} times its size"
        )

    @property
    def failures(self) -> tuple[str, ...]:
        """What keeps it from passing, in words; empty if it passes."""
        said = []
        if not self.planted:
            said.append(f"no rule was planted of a kind other than {self.fixed_on!r}")
        elif math.isnan(self.detection_dose):
            last = self.recovery.iloc[-1]
            n = max(int(last["organisms"]), MIN_ORGANISMS)
            least = least_share(n, RECOVERY)
            said.append(
                f"at the largest doses fewer than {RECOVERY:.0%} of the rules were found, or fewer "
                f"than {MIN_ORGANISMS} were planted: {last['found']:.0f} of "
                f"{last['organisms']:.0f} at {last['dose']:g} SD, where {least} of {n} pass"
            )
        elif not 1 / MAX_FACTOR <= self.size <= MAX_FACTOR:
            said.append(
                f"it reads the median rule at {self.size:.3g} times its size, where "
                f"{1 / MAX_FACTOR:.2g} to {MAX_FACTOR:.2g} pass"
            )
        if len(self.nulls) < MIN_NULLS:
            said.append(f"{len(self.nulls)} nulls were tried, {MIN_NULLS} are needed")
        elif self.false_positives[1] > MAX_FALSE_POSITIVES:
            (k, bound), n = self.false_positives, len(self.nulls)
            said.append(
                f"{k} of {n} nulls were taken for rules: up to {bound:.1%}, above "
                f"{MAX_FALSE_POSITIVES:.0%}, where {most_within(n, MAX_FALSE_POSITIVES)} pass"
            )
        if self._undercovers():
            share, n = self.coverage
            said.append(
                f"its {self.level:.0%} intervals hold {share:.1%} of {n} planted effects, where "
                f"{least_covered(n, self.level) / n:.1%} pass"
            )
        return tuple(said)

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.failures

    def _undercovers(self) -> bool:
        """Whether the intervals hold fewer effects than chance explains (exact binomial, 1 %)."""
        share, n = self.coverage
        return n > 0 and round(share * n) < least_covered(n, self.level)

    def mismatch(self, evidence: Evidence, *, planted: bool = False) -> str:
        """Why the card does not speak of an evidence; empty if it does.

        Parameters
        ----------
        planted : bool
            The evidence is what a trial was read from: of an organism, which may be a signal of its
            own.
        """
        theirs = observables(evidence)
        s, p = evidence.subject, evidence.provenance
        ours = dict(self.observables)
        pairs = [
            ("instrument", self.instrument, evidence.instrument),
            ("version", self.version, evidence.version),
            ("readout", self.readout, s.readout),
            ("dtype", self.dtype, p.dtype),
            *((k, ours.get(k), theirs.get(k)) for k in sorted({*ours, *theirs})),
        ]
        if not planted:
            pairs.insert(0, ("signal", self.signal, s.signal))
        elif s.signal == self.signal and not plants_in(evidence):
            return "nothing was planted in the model that it is of"
        for name, mine, other in pairs:
            if mine != other:
                return f"{name} is {other!r} here, and {mine!r} on the card"
        n, (low, high) = n_of(evidence), self.n_pairs
        if not low <= n <= high:
            return f"{n} pairs here, and {low} to {high} on the card"
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON values, with the id."""
        return {"id": self.id, **self._record()}

    def _record(self) -> dict[str, Any]:
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            **plain({k: v for k, v in found.items() if k not in ("reading", "trials")}),
            "reading": settings_to_json(self.reading),
            "trials": [settings_to_json(t) for t in self.trials],
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_dict`.

        Raises
        ------
        EvidenceError
            If fields are missing or unknown (a verdict is one), or the content does not match the
            id.
        """
        exact_fields("scorecard", record, {"id", *(f.name for f in fields(cls))})
        given = {k: unplain(v) for k, v in record.items() if k not in ("id", "reading", "trials")}
        card = cls(
            **given,
            reading=settings_from_json(Reading, record["reading"]),
            trials=tuple(settings_from_json(Trial, t) for t in record["trials"]),
        )
        if card.id != record["id"]:
            raise EvidenceError(f"the card says it is {record['id']}, its content is {card.id}")
        return card

    def summary(self) -> str:
        """The card in a few lines."""
        kinds = ", ".join(sorted({t.kind for t in self.planted})) or "none"
        k, bound = self.false_positives
        share, n = self.coverage
        doses = "; ".join(
            f"{r.dose:g} SD: {r.found} of {r.organisms}" for r in self.recovery.itertuples()
        )
        verdict = "passed" if self.passed else f"FAILED: {'; '.join(self.failures)}"
        return "\n".join([
            f"scorecard {self.id}: {self.instrument} v{self.version}, {verdict}",
            f"signal {self.signal}, readout {self.readout}, {self.dtype}, "
            f"{self.n_pairs[0]} to {self.n_pairs[1]} pairs",
            f"planted: {kinds} (in {', '.join(self.site_kinds) or 'no site'}); threshold "
            f"{self.threshold:.3g} SD of the margin, fixed on {self.fixed_on}",
            f"found at each dose: {doses or 'none tried'}",
            self.detects,
            f"false positives: {k} of {len(self.nulls)} nulls, at most {bound:.1%}",
            f"coverage of its {self.level:.0%} intervals: "
            + (f"{share:.1%} of {n}" if n else "not tested"),
        ])  # fmt: skip

    def __repr__(self) -> str:
        return f"<{self.summary()}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scorecard) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)
