"""What a calibration gives: a scorecard for each instrument, made from what was read."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from reward_lens.evidence import Evidence, EvidenceStore, Scorecard, Trial, observables
from reward_lens.evidence.conditions import n_of
from reward_lens.organisms.calibration_draws import threshold_of
from reward_lens.organisms.instrument_specs import Spec
from reward_lens.organisms.planting import Organism

if TYPE_CHECKING:
    from reward_lens.organisms.calibration import Course

#: A card speaks of up to this many times the pairs it was made on.
_MORE_PAIRS = 10


@dataclass(frozen=True)
class Seen:
    """What an instrument gave on one organism.

    Attributes
    ----------
    kind, dose
        What was planted; dose 0 is a null.
    organism : str
        Its id.
    seed : int
    places, truth : mapping
        As :class:`~reward_lens.organisms.Organism` has them.
    evidence : Evidence
    """

    kind: str
    dose: float
    organism: str
    seed: int
    places: Mapping[str, str]
    truth: Mapping[str, float]
    evidence: Evidence

    @classmethod
    def of(cls, organism: Organism, evidence: Evidence) -> Seen:
        """Keep what is needed of an organism, which goes when its planter is closed."""
        return cls(organism.kind, organism.dose, organism.id, organism.seed,
                   dict(organism.places), dict(organism.truth), evidence)  # fmt: skip


def card_of(spec: Spec, seen: Sequence[Seen], fixed_on: str, margin_sd: float) -> Scorecard:
    """The scorecard of an instrument.

    Parameters
    ----------
    seen : sequence of Seen
    fixed_on : str
        Kind of rule on whose nulls the threshold is fixed.
    margin_sd : float
        In reward units.
    """
    kinds = site_kinds(spec, seen, fixed_on)
    trials = tuple(_trial(spec, s, kinds, margin_sd) for s in seen)
    like = seen[0].evidence
    n = n_of(like)
    return Scorecard(
        instrument=like.instrument,
        version=like.version,
        signal=like.subject.signal,
        readout=like.subject.readout,
        dtype=like.provenance.dtype,
        site_kinds=kinds,
        n_pairs=(n, _MORE_PAIRS * n),
        observables=observables(like),
        reading=spec.reading,
        margin_sd=margin_sd,
        threshold=threshold_of(t.reading for t in trials if t.kind == fixed_on and not t.dose),
        fixed_on=fixed_on,
        trials=trials,
        seeds=tuple(s.seed for s in seen),
        cost_forwards=sum(s.evidence.provenance.cost_forwards for s in seen),
    )


def site_kinds(spec: Spec, seen: Sequence[Seen], fixed_on: str) -> tuple[str, ...]:
    """Kinds of site in which rules that the instrument is tested on were planted."""
    from reward_lens.evidence.reading import site_kind

    if spec.site is None:
        return ()
    places = {s.places[spec.site] for s in seen if s.dose > 0 and s.kind != fixed_on}
    return tuple(sorted({site_kind(p) for p in places if p}))


def largest(spec: Spec, evidence: Evidence, kinds: tuple[str, ...], margin_sd: float) -> float:
    """The largest reading of all rows, in SDs of the margin."""
    return max(spec.reading.sizes(evidence, margin_sd, kinds).values(), default=0.0)


def _trial(spec: Spec, seen: Seen, kinds: tuple[str, ...], margin_sd: float) -> Trial:
    evidence = seen.evidence
    if not seen.dose:
        read = largest(spec, evidence, kinds, margin_sd)
        return Trial(seen.kind, seen.organism, 0.0, "", read, evidence.id)
    place = spec.place(seen.places)
    sizes = spec.reading.sizes(evidence, margin_sd, kinds)
    truth, covered = math.nan, None
    if spec.truth is not None and place in sizes:
        truth = seen.truth[spec.truth]
        covered = _covers(spec, evidence, place, truth)
    return Trial(
        kind=seen.kind,
        organism=seen.organism,
        dose=seen.dose,
        place=place,
        # A component that the instrument did not look at was not found.
        reading=sizes.get(place, 0.0),
        evidence=evidence.id,
        truth=truth,
        covered=covered,
    )


def _covers(spec: Spec, evidence: Evidence, place: str, truth: float) -> bool | None:
    """Whether the row's interval holds the truth; nothing where either is unknown."""
    if math.isnan(truth) or not spec.reading.has_interval(evidence, place):
        return None
    return spec.reading.covers(evidence, place, truth)


@dataclass(frozen=True, repr=False)
class Calibration:
    """Scorecards of instruments on one model.

    Attributes
    ----------
    cards : mapping of str to Scorecard
        By instrument.
    skipped : mapping of str to str
        Instrument -> why it has none.
    seconds : mapping of str to float
        What each instrument took, and ``planting``.
    notes : tuple of str
        What a reader must know, such as pairs that carry no rule.
    evidences : tuple of Evidence
        What the cards were read from; empty if it is in a store.
    """

    cards: Mapping[str, Scorecard]
    skipped: Mapping[str, str] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    evidences: tuple[Evidence, ...] = field(default=(), repr=False)
    course: Course | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        said = [f"  {name}: {'passed' if card.passed else 'FAILED'}, {card.detects}"
                for name, card in self.cards.items()]  # fmt: skip
        said += [f"  {name}: no card" for name in self.skipped]
        return "\n".join([f"<Calibration of {len(self.cards)} instruments", *said]) + ">"

    def __getitem__(self, name: str) -> Scorecard:
        return self.cards[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.cards)

    @property
    def passed(self) -> bool:
        """Whether there are cards and all of them pass."""
        return bool(self.cards) and all(card.passed for card in self.cards.values())

    def append_to(self, store: EvidenceStore) -> None:
        """Append the cards and what they were read from, all or nothing."""
        store.append_all([*self.evidences, *self.cards.values()])

    def to_dataframe(self) -> pd.DataFrame:
        """One row an instrument.

        ``passed``; ``threshold`` and ``detection_dose`` in SDs of the margin (NaN: none);
        ``organisms`` and ``nulls`` (without those that the threshold was fixed on);
        ``false_positives`` and the upper bound ``at_most`` of their rate; ``coverage`` of the
        intervals, ``of`` how many; ``pairs``; ``forwards``, ``seconds``; ``card``, its id.
        """
        rows = []
        for name, card in self.cards.items():
            taken, bound = card.false_positives
            coverage, of = card.coverage
            rows.append({
                "instrument": name, "passed": card.passed, "threshold": card.threshold,
                "detection_dose": card.detection_dose, "organisms": len(card.planted),
                "nulls": len(card.nulls), "false_positives": taken, "at_most": bound,
                "coverage": coverage, "of": of, "pairs": card.n_pairs[0],
                "forwards": card.cost_forwards, "seconds": self.seconds.get(name, math.nan),
                "card": card.id,
            })  # fmt: skip
        return pd.DataFrame(rows)

    def fresh_nulls(
        self, count: int = 60, *, progress: Callable[[int, int], None] | None = None
    ) -> pd.DataFrame:
        """Hold the bound that each card states against nulls that no card has seen.

        Returns
        -------
        DataFrame
            Per instrument: ``nulls``, ``taken`` for rules, ``at_most`` (the bound on the card) and
            ``p_value``, the probability of so many or more if the rate were that bound (exact
            binomial): a small one speaks against the card.
        """
        from scipy.stats import binomtest

        assert self.course is not None
        readings: dict[str, list[float]] = {name: [] for name in self.cards}
        with self.course.planter() as planter:
            wanted = self.course.nulls(planter, count)
            organisms = self.course.organisms(planter, wanted)
            for done, (_, specs, organism) in enumerate(organisms, 1):
                found = {} if organism is None else self.course.measure(organism, specs)
                for spec in specs:
                    if spec.name in found and spec.name in self.cards:
                        card = self.cards[spec.name]
                        readings[spec.name].append(
                            largest(spec, found[spec.name], card.site_kinds, card.margin_sd)
                        )
                if progress is not None:
                    progress(done, len(wanted))
        rows = []
        for name, read in readings.items():
            card = self.cards[name]
            taken, bound = sum(r >= card.threshold for r in read), card.false_positives[1]
            p = binomtest(taken, len(read), bound, alternative="greater").pvalue
            rows.append({"instrument": name, "nulls": len(read), "taken": taken,
                         "at_most": bound, "p_value": float(p)})  # fmt: skip
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        said = [card.summary() for card in self.cards.values()]
        said += [f"{name}: no card: {why}" for name, why in self.skipped.items()]
        return "\n\n".join(said)

    def _repr_html_(self) -> str:
        table: str = self.to_dataframe().to_html(index=False, float_format="{:.3g}".format)
        more = [f"{n}: FAILED: {'; '.join(c.failures)}" for n, c in self.cards.items()
                if not c.passed]  # fmt: skip
        more += [f"{name}: no card: {why}" for name, why in self.skipped.items()]
        return table + "".join(f"<p>{html.escape(line)}</p>" for line in (*more, *self.notes))
