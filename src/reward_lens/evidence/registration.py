"""Predictions stored before the data is measured, and what became of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

from reward_lens.errors import EvidenceError
from reward_lens.evidence.encoding import plain
from reward_lens.evidence.hashing import canonical, fingerprint
from reward_lens.evidence.parts import (
    exact_fields,
    keep,
    settings_from_json,
    settings_to_json,
)
from reward_lens.evidence.reading import Numbers, Place
from reward_lens.evidence.record import Evidence

COMPARISONS = ("above", "below", "within", "outside")


@dataclass(frozen=True)
class Prediction:
    """What a measurement is expected to show.

    Parameters
    ----------
    claim : str
        In words, for the reader. The verdict does not read it.
    instrument : str
    place : Place
        The number that is predicted.
    comparison : {"above", "below", "within", "outside"}
        Where its whole interval is expected: above ``bound``; below it; between ``bound`` and
        ``upper``; outside of that range (all below ``bound``, or all above ``upper``).
    bound : float
    upper : float, optional
    signal, data, readout : str, optional
        Fingerprints and name of what it is about; any where left out.

    Raises
    ------
    EvidenceError
        On an unknown comparison or bounds that do not fit it.
    """

    claim: str
    instrument: str
    place: Place
    comparison: str
    bound: float
    upper: float | None = None
    signal: str | None = None
    data: str | None = None
    readout: str | None = None

    def __post_init__(self) -> None:
        if self.comparison not in COMPARISONS:
            raise EvidenceError(
                f"comparison={self.comparison!r}: choose one of {', '.join(COMPARISONS)}"
            )
        keep(self, bound=float(self.bound), upper=None if self.upper is None else float(self.upper))
        if self.comparison in ("above", "below"):
            fits = self.upper is None and math.isfinite(self.bound)
        else:
            fits = self.upper is not None and -math.inf < self.bound < self.upper < math.inf
        if not fits:
            raise EvidenceError(
                f"bound={self.bound:g}, upper={self.upper}: 'above' and 'below' take one bound, "
                "'within' and 'outside' a bound and a larger upper"
            )

    @property
    def id(self) -> str:
        """Hash of every field: what to publish beforehand (in a commit, say) as an anchor."""
        return "pr-" + fingerprint(canonical(self.to_dict()))

    def __str__(self) -> str:
        interval = f"the interval of {self.place} in {self.instrument}"
        if self.upper is None:
            return f"{interval} lies {self.comparison} {self.bound:g}"
        return f"{interval} lies {self.comparison} {self.bound:g} to {self.upper:g}"

    def concerns(self, evidence: Evidence) -> bool:
        """Whether the evidence is of the instrument and subject that it is about."""
        s = evidence.subject
        return self.instrument == evidence.instrument and all(
            wanted is None or wanted == found
            for wanted, found in (
                (self.signal, s.signal),
                (self.data, s.data),
                (self.readout, s.readout),
            )
        )

    def holds(self, found: Numbers) -> bool:
        """Whether an interval lies where it was expected."""
        if self.upper is None:
            return found.low > self.bound if self.comparison == "above" else found.high < self.bound
        if self.comparison == "within":
            return self.bound <= found.low and found.high <= self.upper
        return found.high < self.bound or found.low > self.upper

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON values."""
        rest = {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name != "place"}
        return {**rest, "place": settings_to_json(self.place)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_dict`."""
        exact_fields("prediction", record, {f.name for f in fields(cls)})
        place = settings_from_json(Place, record["place"])
        return cls(**{**record, "place": place})


@dataclass(frozen=True)
class Registration:
    """A prediction as it stands in a store; its place in the chain says what came after it.

    Parameters
    ----------
    prediction : Prediction
    anchor : str, optional
        Something outside of the store that shows when it was made, such as the commit that holds
        the prediction's id. Without one it is attested by the store alone.
    """

    prediction: Prediction
    anchor: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.prediction, Prediction):
            raise EvidenceError(f"{self.prediction!r} is no Prediction")
        if self.anchor is not None and (not self.anchor.strip() or "\n" in self.anchor):
            raise EvidenceError(
                f"anchor={self.anchor!r}: name what shows the time in one line, such as "
                "'git commit 1a2b3c of https://…'"
            )

    @cached_property
    def id(self) -> str:
        """Hash of the prediction and its anchor."""
        return "rg-" + fingerprint(canonical(self._record()))

    @property
    def parents(self) -> tuple[str, ...]:
        """None: it comes before what it is about."""
        return ()

    @property
    def attested(self) -> str:
        """Who says that it came before the data, in words."""
        if self.anchor is None:
            return "self-attested: only the order of this store says so"
        return (
            f"anchored outside: {self.anchor}; whether that holds {self.prediction.id} is for the "
            "reader to check, the store cannot"
        )

    def _record(self) -> dict[str, Any]:
        return {"prediction": self.prediction.to_dict(), "anchor": self.anchor}

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON values, with the id."""
        return {"id": self.id, **self._record()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_dict`."""
        exact_fields("registration", record, {"id", "prediction", "anchor"})
        found = cls(Prediction.from_dict(record["prediction"]), record["anchor"])
        if found.id != record["id"]:
            raise EvidenceError(f"the record says it is {record['id']}, its content is {found.id}")
        return found

    def summary(self) -> str:
        """The registration in a few lines."""
        p = self.prediction
        about = ", ".join(f"{k} {getattr(p, k) or 'any'}" for k in ("signal", "data", "readout"))
        return "\n".join([
            f"registration {self.id}: {p.claim}", f"expected: {p}", f"of: {about}", self.attested
        ])  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of a registered prediction; made by :meth:`of`, from the records."""

    registration: str
    evidence: str
    estimate: float
    low: float
    high: float
    held: bool

    @classmethod
    def of(cls, registration: Registration, evidence: Evidence) -> Self:
        """Compare what was measured with what was expected.

        Raises
        ------
        EvidenceError
            If the evidence does not hold the number that was predicted.
        """
        found = registration.prediction.place.read(evidence)
        return cls(registration.id, evidence.id, *found, registration.prediction.holds(found))

    @cached_property
    def id(self) -> str:
        """Hash of every field."""
        return "oc-" + fingerprint(canonical(self._record()))

    @property
    def parents(self) -> tuple[str, ...]:
        """The registration and the evidence."""
        return (self.registration, self.evidence)

    def _record(self) -> dict[str, Any]:
        return {f.name: plain(getattr(self, f.name)) for f in fields(self)}

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON values, with the id."""
        return {"id": self.id, **self._record()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_dict`. What the record claims is compared with the others when used."""
        exact_fields("outcome", record, {"id", *(f.name for f in fields(cls))})
        found = cls(**{k: v for k, v in record.items() if k != "id"})
        if found.id != record["id"]:
            raise EvidenceError(f"the record says it is {record['id']}, its content is {found.id}")
        return found

    def summary(self) -> str:
        """The outcome in a line."""
        return (
            f"outcome {self.id}: {self.registration} {'held' if self.held else 'REFUTED'} on "
            f"{self.evidence}: {self.estimate:.4g}, interval {self.low:.4g} to {self.high:.4g}"
        )
