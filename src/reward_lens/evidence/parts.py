"""The parts of a receipt: what was measured, under what circumstances, how surely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np

from reward_lens.errors import EvidenceError
from reward_lens.evidence.encoding import float_to_json, plain, unplain
from reward_lens.evidence.frozen import frozen_settings


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
        Facts a reader needs: architecture, read position, ``readout_note`` and the like. A frozen
        copy is kept.
    """

    signal: str
    data: str
    readout: str
    interventions: tuple[str, ...] = ()
    frame: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        keep(self, interventions=sequence("interventions", self.interventions, str))
        keep(self, notes=frozen_settings(self.notes))


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
        The instrument's parameters. A frozen copy is kept.
    """

    versions: Mapping[str, str]
    dtype: str
    device: str
    kernel: str
    seeds: tuple[int, ...] = ()
    parents: tuple[str, ...] = ()
    cost_forwards: float = 0.0
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        keep(self, versions=frozen_settings(self.versions))
        keep(self, parameters=frozen_settings(self.parameters))
        seeds = sequence("seeds", self.seeds, (int, np.integer))
        keep(self, seeds=tuple(int(s) for s in seeds))
        keep(self, parents=sequence("parents", self.parents, str))
        keep(self, cost_forwards=float(self.cost_forwards))


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
    note : str
        What makes the stated level doubtful, or why there is no interval.
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

    def __post_init__(self) -> None:
        keep(self, **{k: float(getattr(self, k)) for k in _INTERVAL_FLOATS})
        keep(self, n=int(self.n), clusters=int(self.clusters))


_INTERVAL_FLOATS = ("estimate", "low", "high", "level", "se", "n_effective")
_FLOATS = {*_INTERVAL_FLOATS, "cost_forwards"}

Part = TypeVar("Part", Subject, Provenance, Interval)
Settings = TypeVar("Settings")


def part_to_json(part: Subject | Provenance | Interval) -> dict[str, Any]:
    """Encode a part field by field."""
    return {
        f.name: float_to_json(getattr(part, f.name))
        if f.name in _FLOATS
        else plain(getattr(part, f.name))
        for f in fields(part)
    }


def part_from_json(kind: type[Part], record: Mapping[str, Any]) -> Part:
    """Undo :func:`part_to_json`.

    Raises
    ------
    EvidenceError
        Naming missing and unknown fields.
    """
    exact_fields(kind.__name__, record, {f.name for f in fields(kind)})
    values: dict[str, Any] = {
        k: float(v) if k in _FLOATS else unplain(v) for k, v in record.items()
    }
    return kind(**values)


def exact_fields(what: str, record: object, known: set[str]) -> None:
    """Refuse a record that lacks a field or has one too many, naming both."""
    if not isinstance(record, Mapping):
        raise EvidenceError(f"{what}: a record is a mapping of fields, not {type(record).__name__}")
    if set(record) != known:
        missing, unknown = sorted(known - set(record)), sorted(map(str, set(record) - known))
        raise EvidenceError(f"{what}: malformed record: missing {missing}, unknown {unknown}")


def settings_to_json(part: Any) -> dict[str, Any]:
    """Encode a dataclass whose fields are all settings."""
    return {f.name: plain(getattr(part, f.name)) for f in fields(part)}


def settings_from_json(kind: type[Settings], record: Mapping[str, Any]) -> Settings:
    """Undo :func:`settings_to_json`.

    Raises
    ------
    EvidenceError
        Naming missing and unknown fields.
    """
    exact_fields(kind.__name__, record, {f.name for f in fields(kind)})  # type: ignore[arg-type]
    return kind(**{k: unplain(v) for k, v in record.items()})


def keep(part: object, **values: Any) -> None:
    """Set fields of a frozen dataclass while it is made."""
    for name, value in values.items():
        object.__setattr__(part, name, value)


def sequence(name: str, values: Sequence[Any], kind: Any) -> tuple[Any, ...]:
    """The values as a tuple, or an error where they are no sequence of that kind."""
    if isinstance(values, str) or not all(isinstance(v, kind) for v in values):
        raise EvidenceError(f"{name}={values!r}: give a sequence of {name}")
    return tuple(values)
