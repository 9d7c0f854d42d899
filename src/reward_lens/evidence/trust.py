"""The ladder: which rung the records of a store support for one evidence.

Nothing here reads a claim about trust. A scorecard's verdict is computed from its trials, the
trials are read again from the evidence they name, and an outcome is judged again from the
registration and the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from reward_lens.errors import EvidenceError
from reward_lens.evidence.kinds import TrustLevel
from reward_lens.evidence.record import Evidence
from reward_lens.evidence.registration import Outcome, Registration
from reward_lens.evidence.scorecard import Scorecard, Trial
from reward_lens.evidence.standing import Standing

#: Two readings of the same evidence differ by nothing but the order of a sum.
_SAME = 1e-9
_SHOWN = 6
#: What is doubtful about a card, by its id: the id covers the ids of the evidence that its trials
#: were read from, and those what was measured, so that it is the same in every store.
_DOUBTS: dict[str, str] = {}


class Placed(NamedTuple):
    """A record and its place in the chain."""

    seq: int
    id: str


class Book(Protocol):
    """What the ladder asks of a store."""

    def get(self, id: str) -> object:
        """One record."""

    def seq(self, id: str) -> int:
        """Its sequence number."""

    def places(
        self,
        kind: str,
        *,
        instrument: str | None = None,
        signal: str | None = None,
        data: str | None = None,
        readout: str | None = None,
    ) -> list[Placed]:
        """The records of a kind, in the order of the chain."""

    def __contains__(self, id: object) -> bool:
        """Whether there is a record of that id."""


class Ladder:
    """Computes standings from the records of a store whose chain was verified."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def standing(self, evidence: Evidence) -> Standing:
        """The rung of an evidence; each requires the one below."""
        calibrated, card = self._calibrated(evidence)
        registered = [self._registered(r, evidence, calibrated, card)
                      for r in self._concerning(evidence)]  # fmt: skip
        counted = [r.held for r in registered if r.counts]
        level = calibrated.level
        if counted:
            # Of predictions that exclude each other one always holds: all have to.
            level = TrustLevel.ADJUDICATED if all(counted) else TrustLevel.REGISTERED
        records = [*calibrated.records, *(i for r in registered for i in r.records)]
        because = (*calibrated.because, *(r.said for r in registered))
        return replace(
            calibrated, level=level, because=because, records=tuple(dict.fromkeys(records))
        )

    # Calibration.

    def _calibrated(self, evidence: Evidence) -> tuple[Standing, Scorecard | None]:
        """The standing by calibration alone, and the card that gave it the rung."""
        subject = evidence.subject
        cards = [
            self._card(p.id)
            for p in reversed(self._book.places("scorecard", instrument=evidence.instrument,
                                                signal=subject.signal, readout=subject.readout))
        ]  # fmt: skip
        if not cards:
            return _exploratory(f"no scorecard of {evidence.instrument} v{evidence.version} on "
                                "this model and readout is in the store"), None  # fmt: skip
        ours = [c for c in cards if not c.mismatch(evidence)]
        if not ours:
            card = cards[0]
            return _exploratory(f"scorecard {card.id} does not speak of it: "
                                f"{card.mismatch(evidence)}"), None  # fmt: skip
        card = ours[0]  # the newest decides: an old one cannot be held against what was found since
        doubt = self._doubt(card)
        if doubt:
            said = f"scorecard {card.id} cannot be relied on: {doubt}"
        elif not card.passed:
            said = (f"the instrument FAILED its scorecard {card.id} on this model: "
                    f"{'; '.join(card.failures)}")  # fmt: skip
        else:
            return _above_the_dose(card, evidence, sum(not c.passed for c in ours[1:])), card
        return replace(_exploratory(said, card.id), failed=not doubt), None

    def _card(self, id: str) -> Scorecard:
        card = self._book.get(id)
        assert isinstance(card, Scorecard)
        return card

    def _doubt(self, card: Scorecard) -> str:
        """What the trials of a card say that the evidence they were read from does not."""
        if card.id not in _DOUBTS:
            found = (self._trial_doubt(card, t) for t in card.trials)
            _DOUBTS[card.id] = next((d for d in found if d), "")
        return _DOUBTS[card.id]

    def _trial_doubt(self, card: Scorecard, trial: Trial) -> str:
        of = f"trial on {trial.organism} ({trial.evidence})"
        evidence = self._book.get(trial.evidence)
        if not isinstance(evidence, Evidence):
            return f"{of}: that is no evidence"
        other = card.mismatch(evidence, planted=True)
        if other:
            return f"{of}: {other}"
        try:
            sizes = card.reading.sizes(evidence, card.margin_sd, card.site_kinds)
            covered = trial.covered
            if covered is not None:
                covered = card.reading.covers(evidence, trial.place, trial.truth)
        except EvidenceError as error:
            return f"{of}: {error}"
        # A planted rule whose row is not there was not found; a null is read where there is a row.
        absent = 0.0 if trial.dose > 0 else math.nan
        read = sizes.get(trial.place, absent) if trial.place else max(sizes.values(), default=0.0)
        if not math.isclose(read, trial.reading, rel_tol=_SAME, abs_tol=_SAME):
            return f"{of}: the card says {trial.reading:.4g} SD, the evidence {read:.4g}"
        if covered != trial.covered:
            return f"{of}: whether its interval holds the truth is not what the card says"
        return ""

    # Registration and outcome.

    def _concerning(self, evidence: Evidence) -> list[Registration]:
        places = self._book.places("registration", instrument=evidence.instrument)
        found = [self._registration(p.id) for p in places]
        return [r for r in found if r.prediction.concerns(evidence)]

    def _registration(self, id: str) -> Registration:
        registration = self._book.get(id)
        assert isinstance(registration, Registration)
        return registration

    def why_not(self, registration: Registration, evidence: Evidence) -> str:
        """Why a prediction cannot be judged on an evidence; empty if it can.

        It is judged once for each signal, data and readout: on the first evidence behind it in the
        chain that holds the predicted number. Nothing of the instrument on that subject may stand
        before it.
        """
        s, start = evidence.subject, self._book.seq(registration.id)
        if not registration.prediction.concerns(evidence):
            return "it is about another instrument or subject"
        same = self._book.places("evidence", instrument=evidence.instrument, signal=s.signal,
                                 data=s.data, readout=s.readout)  # fmt: skip
        if same[0].seq < start:
            return (
                f"the instrument had been used on this model and data before it was registered "
                f"({same[0].id})"
            )
        for place in same:
            if place.id == evidence.id:
                try:
                    registration.prediction.place.read(evidence)
                except EvidenceError as error:
                    return str(error)
                return ""
            if self._holds_the_number(registration, place.id):
                return f"it is judged on the first measurement of the data, {place.id}"
        return f"{evidence.id} is not in the store"

    def _holds_the_number(self, registration: Registration, id: str) -> bool:
        earlier = self._book.get(id)
        assert isinstance(earlier, Evidence)
        try:
            registration.prediction.place.read(earlier)
        except EvidenceError:
            return False
        return True

    def _registered(
        self,
        registration: Registration,
        evidence: Evidence,
        calibrated: Standing,
        card: Scorecard | None,
    ) -> _Registered:
        """What a registration that concerns an evidence does for its rung, and why."""
        p = registration.prediction
        ids: tuple[str, ...] = (registration.id,)
        why = self.why_not(registration, evidence)
        if why:
            return _Registered(False, False, f"{registration.id} does not count: {why}", ids)
        said = f"registered beforehand ({registration.id}, {registration.attested}): {p}"
        outcome = Outcome.of(registration, evidence)
        decided = outcome.id in self._book
        if decided:
            ids = (*ids, outcome.id)
            verdict = "it HELD" if outcome.held else "it was REFUTED"
            said += f"; {verdict}: {outcome.estimate:.4g}, interval {outcome.low:.4g} to " \
                    f"{outcome.high:.4g}"  # fmt: skip
        else:
            said += "; not adjudicated yet"
        counts = card is not None and card.reading.label_of(p.place) in calibrated.above
        if not counts:
            said += (
                "; it raises nothing, since that number is no calibrated reading above the "
                "detection dose"
            )
        return _Registered(counts, decided and outcome.held, said, ids)


class _Registered(NamedTuple):
    counts: bool
    held: bool
    said: str
    records: tuple[str, ...]


def _exploratory(why: str, *records: str) -> Standing:
    return Standing(TrustLevel.EXPLORATORY, (why,), records=records)


def _above_the_dose(card: Scorecard, evidence: Evidence, failed_before: int) -> Standing:
    """Calibrated if an effect lies above the detection dose, and which do."""
    try:
        sizes = card.reading.sizes(evidence, card.margin_sd, card.site_kinds)
    except EvidenceError as error:
        return _exploratory(f"scorecard {card.id} cannot be applied: {error}", card.id)
    dose = max(card.detection_dose, card.threshold)
    above = {n: e for n, e in sizes.items() if e >= dose}
    below = {n: e for n, e in sizes.items() if e < dose}
    said = [_what_was_planted(card)]
    if failed_before:
        said.append(f"{failed_before} earlier scorecards of the same had failed")
    if above:
        largest = sorted(above, key=lambda n: -above[n])
        shown = ", ".join(f"{n} {above[n]:.2g} SD" for n in largest[:_SHOWN])
        more = f" and {len(above) - _SHOWN} more" if len(above) > _SHOWN else ""
        said.append(f"above the detection dose of {dose:.2g} SD of the margin: {shown}{more}")
    most = f"; the largest is {max(sizes.values()):.2g} SD" if sizes and not above else ""
    if below or not above:
        said.append(f"under the detection limit of {dose:.2g} SD: {len(below)} readings{most}")
    level = TrustLevel.CALIBRATED if above else TrustLevel.EXPLORATORY
    return Standing(level, tuple(said), above, below, (card.id,), detection_dose=dose)


def _what_was_planted(card: Scorecard) -> str:
    kinds: Sequence[str] = sorted({t.kind for t in card.planted})
    k, bound = card.false_positives
    share, n = card.coverage
    return (
        f"scorecard {card.id} passed: planted were {', '.join(kinds)}; nine in ten found from "
        f"{card.detection_dose:.2g} SD of the margin on; {k} of {len(card.nulls)} nulls taken for "
        f"rules (at most {bound:.1%}); "
        + (f"intervals hold {share:.0%} of {n} effects" if n else "intervals not tested")
    )
