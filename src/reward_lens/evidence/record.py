"""Evidence: one measurement with its own receipt."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, Self

import pandas as pd
import xarray as xr

from reward_lens.errors import EvidenceError
from reward_lens.evidence.encoding import (
    Array,
    Json,
    array_to_digest,
    array_to_json,
    dataarray_from_json,
    dataarray_to_json,
    plain,
    table_from_json,
    table_to_json,
)
from reward_lens.evidence.frozen import FrozenTables, HandedOut
from reward_lens.evidence.hashing import canonical, fingerprint
from reward_lens.evidence.kinds import GaugeStatus, Tier, TrustLevel, Units
from reward_lens.evidence.parts import (
    Interval,
    Provenance,
    Subject,
    exact_fields,
    part_from_json,
    part_to_json,
)
from reward_lens.evidence.standing import Standing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Evidence",
    "Interval",
    "Provenance",
    "Store",
    "Subject",
    "read_jsonl",
    "with_all_parents",
    "write_jsonl",
]


class Store(Protocol):
    """What evidence asks of the store that holds it."""

    def trust(self, id: str) -> TrustLevel:
        """The rung that the records support."""

    def standing(self, id: str) -> Standing:
        """The rung and the reasons for it."""


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """One measurement: a named, read-only array, and everything needed to judge it.

    Parameters
    ----------
    value : xarray.DataArray
        Named. A copy is kept; its values and coordinates cannot be written to. Floats to 64 bits,
        integers, booleans and strings.
    instrument, version : str
    subject : Subject
    tier : Tier
    gauge : GaugeStatus
    units : Units
    provenance : Provenance
    uncertainty : tuple of Interval
    tables : mapping of str to DataFrame
        Results that are rows; columns as for ``value``. Copies are handed out.
    quantity_units : mapping of str to Units
        Where ``value`` has a dimension ``quantity`` whose entries differ in units.
    calibration : str, optional
        Id of the scorecard that speaks of this instrument on this subject.

    Raises
    ------
    EvidenceError
        If the value has no name, or something cannot be kept exactly; names where.

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

    if not TYPE_CHECKING:  # to a type checker it is the plain attribute annotated above
        value = HandedOut()

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            if not isinstance(getattr(self, name), kind):
                raise EvidenceError(f"{name}={getattr(self, name)!r} is no {kind.__name__}")
        uncertainty = tuple(self.uncertainty)
        names = [i.name for i in uncertainty]
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise EvidenceError(f"two intervals are named {twice!r}: names tell them apart")
        object.__setattr__(self, "tables", FrozenTables(self.tables))
        object.__setattr__(self, "quantity_units", _quantity_units(self))
        object.__setattr__(self, "uncertainty", uncertainty)

    def _record(self, encode: Callable[[Array], Json]) -> dict[str, Any]:
        return {
            "value": dataarray_to_json(self.value, encode),
            "instrument": self.instrument,
            "version": self.version,
            "subject": part_to_json(self.subject),
            "tier": self.tier.name,
            "gauge": self.gauge.name,
            "units": self.units.name,
            "provenance": part_to_json(self.provenance),
            "uncertainty": [part_to_json(i) for i in self.uncertainty],
            "tables": {k: table_to_json(t, encode) for k, t in self.tables.items()},
            "quantity_units": {k: u.name for k, u in self.quantity_units.items()},
            "calibration": self.calibration,
        }

    @cached_property
    def id(self) -> str:
        """Hash of every field, by the exact bits of every number."""
        return "ev-" + fingerprint(canonical(self._record(array_to_digest)))

    @property
    def request_key(self) -> str:
        """Hash of what was asked: subject, instrument and parameters; not of the answer."""
        asked = [
            part_to_json(self.subject),
            self.instrument,
            self.version,
            plain(self.provenance.parameters),
        ]
        return "rq-" + fingerprint(canonical(asked))

    @property
    def trust(self) -> TrustLevel:
        """What the attached store's records support; without a store, ``EXPLORATORY``."""
        store = self._store()
        return TrustLevel.EXPLORATORY if store is None else store.trust(self.id)

    @property
    def standing(self) -> Standing:
        """The rung with the reasons for it, by the attached store's records."""
        store = self._store()
        if store is None:
            why = "attached to no store, which would hold the records that raise it"
            return Standing(TrustLevel.EXPLORATORY, (why,))
        return store.standing(self.id)

    @property
    def has_store(self) -> bool:
        """Whether a store that can speak of trust is attached and still open."""
        return self._store() is not None

    def _store(self) -> Store | None:
        reference: weakref.ref[Store] | None = self.__dict__.get("_store_reference")
        return None if reference is None else reference()

    def _attach(self, store: Store) -> None:
        self.__dict__["_store_reference"] = weakref.ref(store)

    def with_parents(self, *parents: Evidence) -> Self:
        """Keep evidence that this one was computed from at hand, so that a store takes it along.

        They are no field and not part of the id; ``provenance.parents`` names them.

        Raises
        ------
        EvidenceError
            If ``provenance.parents`` does not name one of them.
        """
        for parent in parents:
            if parent.id not in self.provenance.parents:
                raise EvidenceError(f"{self.id} was not computed from {parent.id}")
        self.__dict__["_at_hand"] = parents
        return self

    @property
    def at_hand(self) -> list[Evidence]:
        """Evidence that this one rests on, as far as it is in memory; parents first, each once."""
        parents: tuple[Evidence, ...] = self.__dict__.get("_at_hand", ())
        found = {e.id: e for parent in parents for e in (*parent.at_hand, parent)}
        return list(found.values())

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
        """Everything as strict JSON values, with the id; NaN and infinities are strings."""
        return {"id": self.id, **self._record(array_to_json)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Undo :meth:`to_dict`.

        Raises
        ------
        EvidenceError
            If fields are missing or unknown, or the content does not match the stored id.
        """
        exact_fields("evidence", record, {"id", *(f.name for f in fields(cls))})
        try:
            evidence = cls(
                value=dataarray_from_json(record["value"]),
                instrument=record["instrument"],
                version=record["version"],
                subject=part_from_json(Subject, record["subject"]),
                tier=Tier[record["tier"]],
                gauge=GaugeStatus[record["gauge"]],
                units=Units[record["units"]],
                provenance=part_from_json(Provenance, record["provenance"]),
                uncertainty=tuple(part_from_json(Interval, i) for i in record["uncertainty"]),
                tables={k: table_from_json(t) for k, t in record["tables"].items()},
                quantity_units={k: Units[u] for k, u in record["quantity_units"].items()},
                calibration=record["calibration"],
            )
        except EvidenceError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EvidenceError(f"malformed evidence record: {error!r}") from error
        if evidence.id != record["id"]:
            raise EvidenceError(
                f"the record says it is {record['id']}, its content is {evidence.id}: it was "
                "altered after it was measured"
            )
        return evidence

    def to_dataframe(self) -> pd.DataFrame:
        """The value as a tidy table: one row an entry, its coordinates as columns.

        Returns
        -------
        DataFrame
            ``attrs`` has ``id``, ``instrument``, ``tier``, ``gauge``, ``units`` and
            ``quantity_units`` (of each ``quantity`` whose units are others).
        """
        from reward_lens.evidence.showing import in_pandas

        return in_pandas(self)

    def plot(self, *, ax: Axes | None = None, **select: Any) -> Any:
        """Draw the value with matplotlib.

        Pairs and items are averaged, with cluster-t intervals over their lineages; quantities that
        differ in units get axes of their own; of more than 20 rows the largest are drawn. What was
        averaged or left off is said.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw, if one panel is enough.
        select : dict
            Dimension -> the label to draw, or a list of labels: ``ev.plot(direction="noise")``.

        Returns
        -------
        Axes, or ndarray of Axes, [panel]

        Raises
        ------
        EvidenceError
            If something has to be selected first, such as a pair where tokens are counted in each
            pair on its own; if a label is not there, or there is nothing to draw.
        """
        from reward_lens.evidence.drawing import draw
        from reward_lens.evidence.pictures import picture

        return draw(picture(self, select), ax)

    def receipt(self) -> str:
        """Say in plain words what was measured, how, and how far it can be leaned on."""
        from reward_lens.evidence.receipt import receipt

        return receipt(self)

    def _repr_html_(self) -> str:
        from reward_lens.evidence.showing import in_notebook

        return in_notebook(self)

    def __sub__(self, other: Evidence) -> Evidence:
        """The difference, where the gate lets it through; see :mod:`reward_lens.evidence.gate`."""
        from reward_lens.evidence.gate import difference

        return difference(self, other) if isinstance(other, Evidence) else NotImplemented

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Evidence) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        from reward_lens.evidence.showing import in_terminal

        return in_terminal(self)


_KINDS = {
    "instrument": str,
    "version": str,
    "subject": Subject,
    "tier": Tier,
    "gauge": GaugeStatus,
    "units": Units,
    "provenance": Provenance,
}


def _quantity_units(evidence: Evidence) -> Mapping[str, Units]:
    """A frozen copy, refused where it names a quantity that the value does not have."""
    units = dict(evidence.quantity_units)
    value = evidence.value
    labels = value["quantity"].values.tolist() if "quantity" in value.coords else []
    wrong = [k for k, u in units.items() if k not in labels or not isinstance(u, Units)]
    if wrong:
        raise EvidenceError(
            f"quantity_units {wrong[0]!r}: name a label of the value's dimension 'quantity' "
            f"({labels}) and give its Units"
        )
    return MappingProxyType(units)


def with_all_parents(evidences: Iterable[Evidence]) -> list[Evidence]:
    """Evidence and what it was computed from, as far as that is in memory; parents first."""
    return list({e.id: e for given in evidences for e in (*given.at_hand, given)}.values())


def write_jsonl(path: str | os.PathLike[str], evidences: Iterable[Evidence]) -> None:
    """Write evidence, one JSON object a line; the file appears whole or not at all."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with partial.open("w", encoding="ascii", newline="\n") as out:
            for e in evidences:
                out.write(json.dumps(e.to_dict(), allow_nan=False) + "\n")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def read_jsonl(path: str | os.PathLike[str]) -> list[Evidence]:
    """Read what :func:`write_jsonl` wrote.

    Raises
    ------
    EvidenceError
        Naming the line.
    """
    found = []
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                found.append(Evidence.from_dict(json.loads(line)))
            except (EvidenceError, json.JSONDecodeError, UnicodeDecodeError) as error:
                raise EvidenceError(f"{path}, line {number}: {error}") from error
    return found
