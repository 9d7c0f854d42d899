"""Evidence: one measurement with its own receipt."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import pandas as pd
import xarray as xr

from reward_lens.errors import EvidenceError
from reward_lens.evidence.encoding import (
    dataarray_from_json,
    dataarray_to_json,
    float_from_json,
    plain,
    table_from_json,
    table_to_json,
)
from reward_lens.evidence.hashing import canonical, fingerprint
from reward_lens.evidence.kinds import GaugeStatus, Tier, TrustLevel, Units


@dataclass(frozen=True)
class Subject:
    """What was measured.

    Attributes
    ----------
    signal : str
        Fingerprint of weights, tokenizer, template and convention.
    data : str
        Fingerprint of the items or pairs.
    readout : str
    interventions : tuple of str
    frame : str, optional
    notes : mapping
        Facts a reader needs: architecture, read position, ``readout_note`` and the like.
    """

    signal: str
    data: str
    readout: str
    interventions: tuple[str, ...] = ()
    frame: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Provenance:
    """Under what circumstances it was measured.

    Attributes
    ----------
    versions : mapping of str to str
    dtype, device, kernel : str
        Of the trunk.
    seeds : tuple of int
    parents : tuple of str
        Ids of the evidence this one was computed from.
    cost_forwards : float
        Forwards of one item.
    parameters : mapping
        The instrument's parameters.
    """

    versions: Mapping[str, str]
    dtype: str
    device: str
    kernel: str
    seeds: tuple[int, ...] = ()
    parents: tuple[str, ...] = ()
    cost_forwards: float = 0.0
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Interval:
    """The uncertainty of one number.

    Attributes
    ----------
    estimate, low, high, se : float
        NaN where there is none; ``note`` says why.
    level : float
        Stated coverage.
    n : int
        Rows.
    n_effective : float
        Independent rows they are worth.
    clusters : int
        Lineages.
    method : str
    """

    name: str
    estimate: float
    low: float
    high: float
    level: float
    se: float
    n: int
    n_effective: float
    clusters: int
    method: str
    note: str = ""


class Store(Protocol):
    """What evidence asks of the store that holds it."""

    def trust(self, id: str) -> TrustLevel:
        """The rung that the records support."""


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """One measurement: a named, read-only array, and everything needed to judge it.

    Parameters
    ----------
    value : xarray.DataArray
        Named. A copy is kept; its values and coordinates cannot be written to.
    instrument, version : str
    subject : Subject
    tier : Tier
    gauge : GaugeStatus
    units : Units
    provenance : Provenance
    uncertainty : tuple of Interval
    tables : mapping of str to DataFrame
        Results that are rows. Copies are handed out.
    quantity_units : mapping of str to Units
        Where ``value`` has a dimension ``quantity`` whose entries differ in units.
    calibration : str, optional
        Id of the scorecard that speaks of this instrument on this subject.

    Raises
    ------
    EvidenceError
        If the value has no name, or something cannot be kept exactly.

    Notes
    -----
    ``id`` is a hash of every field; trust is no field and no part of it.
    """

    value: xr.DataArray
    instrument: str
    version: str
    subject: Subject
    tier: Tier
    gauge: GaugeStatus
    units: Units
    provenance: Provenance
    uncertainty: tuple[Interval, ...] = ()
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    quantity_units: Mapping[str, Units] = field(default_factory=dict)
    calibration: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.value, xr.DataArray) or self.value.name is None:
            raise EvidenceError("the value of an evidence is a named xarray.DataArray")
        object.__setattr__(self, "value", _frozen(self.value))
        object.__setattr__(self, "tables", _Tables(self.tables))
        object.__setattr__(self, "uncertainty", tuple(self.uncertainty))

    @cached_property
    def _content(self) -> dict[str, Any]:
        return {
            "value": dataarray_to_json(self.value),
            "instrument": self.instrument,
            "version": self.version,
            "subject": plain(asdict(self.subject)),
            "tier": self.tier.name,
            "gauge": self.gauge.name,
            "units": self.units.name,
            "provenance": plain(asdict(self.provenance)),
            "uncertainty": [plain(asdict(i)) for i in self.uncertainty],
            "tables": {k: table_to_json(t) for k, t in self.tables.items()},
            "quantity_units": {k: u.name for k, u in self.quantity_units.items()},
            "calibration": self.calibration,
        }

    @cached_property
    def id(self) -> str:
        """Hash of every field."""
        return "ev-" + fingerprint(canonical(self._content))

    @property
    def request_key(self) -> str:
        """Hash of what was asked: subject, instrument and parameters; not of the answer."""
        asked = [
            plain(asdict(self.subject)),
            self.instrument,
            self.version,
            plain(self.provenance.parameters),
        ]
        return "rq-" + fingerprint(canonical(asked))

    @property
    def trust(self) -> TrustLevel:
        """What the attached store's records support; without a store, ``EXPLORATORY``."""
        reference = self.__dict__.get("_store")
        store: Store | None = reference() if reference is not None else None
        return TrustLevel.EXPLORATORY if store is None else store.trust(self.id)

    def _attach(self, store: Store) -> None:
        self.__dict__["_store"] = weakref.ref(store)

    def interval(self, name: str) -> Interval:
        """One interval by name.

        Raises
        ------
        EvidenceError
            If there is none of that name.
        """
        for found in self.uncertainty:
            if found.name == name:
                return found
        names = ", ".join(i.name for i in self.uncertainty) or "none"
        raise EvidenceError(f"no interval {name!r} here; there are: {names}")

    def to_dict(self) -> dict[str, Any]:
        """Everything as strict JSON values, with the id."""
        return {"id": self.id, **json.loads(canonical(self._content))}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_dict`.

        Raises
        ------
        EvidenceError
            If fields are missing or unknown, or the content does not match the stored id.
        """
        known = {"id", *(f.name for f in fields(cls))}
        if set(record) != known:
            missing, unknown = sorted(known - set(record)), sorted(set(record) - known)
            raise EvidenceError(f"no evidence record: missing {missing}, unknown {unknown}")
        try:
            evidence = cls(
                value=dataarray_from_json(record["value"]),
                instrument=record["instrument"],
                version=record["version"],
                subject=_subject(record["subject"]),
                tier=Tier[record["tier"]],
                gauge=GaugeStatus[record["gauge"]],
                units=Units[record["units"]],
                provenance=_provenance(record["provenance"]),
                uncertainty=tuple(_interval(i) for i in record["uncertainty"]),
                tables={k: table_from_json(t) for k, t in record["tables"].items()},
                quantity_units={k: Units[u] for k, u in record["quantity_units"].items()},
                calibration=record["calibration"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EvidenceError(f"malformed evidence record: {error!r}") from error
        if evidence.id != record["id"]:
            raise EvidenceError(
                f"the record says it is {record['id']}, its content is {evidence.id}: altered"
            )
        return evidence

    def to_dataframe(self) -> pd.DataFrame:
        """The value as a tidy table."""
        return self.value.to_dataframe().reset_index()

    def plot(self, **options: Any) -> Any:
        """Draw the value with xarray and matplotlib; options go to ``DataArray.plot``."""
        return self.value.plot(**options)

    def receipt(self) -> str:
        """Say in plain words what was measured, how, and how far it can be leaned on."""
        from reward_lens.evidence.receipt import receipt

        return receipt(self)

    def _repr_html_(self) -> str:
        from reward_lens.evidence.receipt import as_html

        return as_html(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Evidence) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        shape = ", ".join(f"{d}: {n}" for d, n in self.value.sizes.items())
        return (
            f"<Evidence {self.instrument} v{self.version} ({shape}) {self.tier.value}, "
            f"{self.gauge.value}, {self.units.value} units, {self.trust.name.lower()}, {self.id}>"
        )


class _Tables(Mapping[str, pd.DataFrame]):
    """Tables that cannot be changed from outside: copies in, copies out."""

    def __init__(self, tables: Mapping[str, pd.DataFrame]) -> None:
        self._tables = {k: t.reset_index(drop=True).copy() for k, t in tables.items()}

    def __getitem__(self, name: str) -> pd.DataFrame:
        return self._tables[name].copy()

    def __iter__(self) -> Any:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


def _frozen(value: xr.DataArray) -> xr.DataArray:
    copy = value.copy(deep=True)
    copy.attrs = {}
    copy.values.flags.writeable = False
    for name, coord in copy.coords.items():
        if name not in copy.indexes:  # an index is immutable by itself
            coord.values.flags.writeable = False
    return copy


def _subject(r: Mapping[str, Any]) -> Subject:
    return Subject(**{**r, "interventions": tuple(r["interventions"])})


def _provenance(r: Mapping[str, Any]) -> Provenance:
    cost = float_from_json(r["cost_forwards"])
    return Provenance(
        **{**r, "seeds": tuple(r["seeds"]), "parents": tuple(r["parents"]), "cost_forwards": cost}
    )


def _interval(r: Mapping[str, Any]) -> Interval:
    numbers = ("estimate", "low", "high", "level", "se", "n_effective")
    return Interval(**{**r, **{k: float_from_json(r[k]) for k in numbers}})


def write_jsonl(path: str | os.PathLike[str], evidences: Iterable[Evidence]) -> None:
    """Write evidence, one JSON object a line; the file appears whole or not at all."""
    target = Path(path)
    partial = target.with_name(target.name + ".part")
    with partial.open("w", encoding="utf-8") as out:
        for e in evidences:
            out.write(json.dumps(e.to_dict(), allow_nan=False, ensure_ascii=False) + "\n")
    partial.replace(target)


def read_jsonl(path: str | os.PathLike[str]) -> list[Evidence]:
    """Read what :func:`write_jsonl` wrote.

    Raises
    ------
    EvidenceError
        Naming the line.
    """
    found = []
    with Path(path).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                found.append(Evidence.from_dict(json.loads(line)))
            except (EvidenceError, json.JSONDecodeError) as error:
                raise EvidenceError(f"{path}, line {number}: {error}") from error
    return found
