"""Where in an evidence the numbers stand that a prediction or a scorecard speaks of."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reward_lens.errors import EvidenceError
from reward_lens.evidence.frozen import frozen_settings
from reward_lens.evidence.parts import keep, sequence

if TYPE_CHECKING:
    import pandas as pd

    from reward_lens.evidence.record import Evidence


class Numbers(NamedTuple):
    """A number with the ends of its interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Place:
    """Where one number stands: an interval by its name, or one row of a table.

    Parameters
    ----------
    interval : str, optional
        Name of one of the evidence's intervals.
    table : str, optional
        Name of one of its tables, where no interval is named.
    row : mapping of str to str, int, float or bool
        Columns and what they hold in that row; one row may fit.
    column, low, high : str
        Columns of the number and of the ends of its interval.

    Raises
    ------
    EvidenceError
        If neither or both of ``interval`` and ``table`` are given.
    """

    interval: str | None = None
    table: str | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    column: str = "mean"
    low: str = "low"
    high: str = "high"

    def __post_init__(self) -> None:
        if (self.interval is None) == (self.table is None):
            raise EvidenceError("a place is an interval= by its name, or a table= and its row=")
        keep(self, row=frozen_settings(self.row))

    def __str__(self) -> str:
        if self.interval is not None:
            return self.interval
        where = ", ".join(f"{k}={v}" for k, v in self.row.items())
        return f"{self.table}[{where}].{self.column}"

    def read(self, evidence: Evidence) -> Numbers:
        """The number and its interval, float64.

        Raises
        ------
        EvidenceError
            If it is not there, or has no interval; says what is there instead.
        """
        if self.interval is not None:
            i = evidence.interval(self.interval)
            found = Numbers(i.estimate, i.low, i.high)
        else:
            table = _table(evidence, str(self.table), (*self.row, self.column, self.low, self.high))
            rows = _rows(table, self.row)
            if len(rows) != 1:
                raise EvidenceError(
                    f"{self}: {len(rows)} rows of {evidence.id} fit; name columns and values that "
                    "tell one row from the others"
                )
            found = Numbers(*(float(rows[c].iloc[0]) for c in (self.column, self.low, self.high)))
        if not all(map(math.isfinite, found)):
            raise EvidenceError(f"{self}: {evidence.id} has no interval there ({found.estimate:g})")
        return found


@dataclass(frozen=True)
class Reading:
    """How the effects of an instrument are read off its evidence, in SDs of the margin.

    Parameters
    ----------
    table : str
        Name of the table with one effect a row.
    labels : tuple of str
        Columns that name a row.
    effect : str
        Column of the effect, in reward units.
    low, high : str
        Columns of the ends of its interval.
    where : mapping
        Only rows whose columns hold this.
    site : str, optional
        Column with the name of the component, which says what kind of site a row is of.
    step : str, optional
        The effect is what the column gains from one row to the next in the order of this column
        (the lens: by depth); the first row gains itself.
    margins : (str, str), optional
        Table and column of the pairs' margins, whose SD is the unit; otherwise the SD on which the
        instrument was calibrated is.
    """

    table: str
    labels: tuple[str, ...]
    effect: str = "mean"
    low: str = "low"
    high: str = "high"
    where: Mapping[str, Any] = field(default_factory=dict)
    site: str | None = None
    step: str | None = None
    margins: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        keep(self, labels=sequence("labels", self.labels, str), where=frozen_settings(self.where))
        if self.margins is not None:
            margins = sequence("margins", self.margins, str)
            if len(margins) != 2:
                raise EvidenceError(f"margins={margins!r}: give the table and its column")
            keep(self, margins=margins)

    def sizes(
        self, evidence: Evidence, margin_sd: float, kinds: tuple[str, ...] = ()
    ) -> dict[str, float]:
        """Absolute effect of every row, in SDs of the margin; rows without a number are left out.

        Parameters
        ----------
        margin_sd : float
            In reward units; used where the evidence does not hold its margins.
        kinds : tuple of str
            Only rows of these kinds of site, where the rows have one.

        Raises
        ------
        EvidenceError
            If the evidence has no such table or columns, or its margins do not vary.
        """
        table = self._chosen(evidence)
        if self.site is not None:
            ours = table[self.site].map(lambda name: site_kind(str(name)) in kinds)
            table = table[ours.to_numpy(dtype=bool)]
        unit = self._unit(evidence, margin_sd)
        names = self._names(table)
        effects = np.abs(table[self.effect].to_numpy(dtype=np.float64)) / unit
        return {n: float(e) for n, e in zip(names, effects, strict=True) if math.isfinite(e)}

    def label_of(self, place: Place) -> str | None:
        """Label of the row in which a number stands; nothing if it is not one of these rows."""
        row = {**self.where, **place.row}
        if place.table != self.table or not set(self.labels) <= set(row):
            return None
        return " ".join(str(row[c]) for c in self.labels)

    def covers(self, evidence: Evidence, label: str, truth: float) -> bool:
        """Whether the interval of the row that ``label`` names holds the true effect.

        Raises
        ------
        EvidenceError
            If there is no such row, or it has no interval.
        """
        ends = self._interval(evidence, label)
        if ends is None:
            raise EvidenceError(f"{evidence.id} has no interval for {label!r}")
        return bool(ends[0] <= truth <= ends[1])

    def has_interval(self, evidence: Evidence, label: str) -> bool:
        """Whether the row that ``label`` names is there and has an interval."""
        return self.step is None and self._interval(evidence, label) is not None

    def _interval(self, evidence: Evidence, label: str) -> tuple[float, float] | None:
        if self.step is not None:
            raise EvidenceError("the gain from row to row has no interval in the table")
        table = self._chosen(evidence, (self.low, self.high))
        for name, low, high in zip(
            self._names(table), table[self.low], table[self.high], strict=True
        ):
            if name == label and math.isfinite(low) and math.isfinite(high):
                return float(low), float(high)
        return None

    def _chosen(self, evidence: Evidence, more: tuple[str, ...] = ()) -> pd.DataFrame:
        columns = {*self.labels, self.effect, *self.where, *more}
        columns |= {c for c in (self.site, self.step) if c is not None}
        rows = _rows(_table(evidence, self.table, columns), self.where)
        if self.step is None:
            return rows
        others = [c for c in self.labels if c != self.step]
        rows = rows.sort_values([*others, self.step])
        values = rows[self.effect]
        gain = values.groupby([rows[c] for c in others]).diff() if others else values.diff()
        return rows.assign(**{self.effect: gain.fillna(values)})

    def _names(self, table: pd.DataFrame) -> list[str]:
        return [" ".join(map(str, row)) for row in table[list(self.labels)].to_numpy().tolist()]

    def _unit(self, evidence: Evidence, margin_sd: float) -> float:
        if self.margins is not None:
            name, column = self.margins
            margins = _table(evidence, name, (column,))[column].to_numpy(dtype=np.float64)
            margin_sd = float(margins.std(ddof=1)) if len(margins) > 1 else math.nan
        if not (math.isfinite(margin_sd) and margin_sd > 0):
            raise EvidenceError(
                f"{evidence.id}: the margins do not vary (SD {margin_sd:g}), so that no effect can "
                "be measured in SDs of the margin; it needs several pairs"
            )
        return margin_sd


def site_kind(name: str) -> str:
    """Kind of site of a component: ``attn_out`` of ``L3.attn_out``, ``head`` of ``L3.H2``."""
    kind = name.partition(".")[2] or name
    return "head" if re.match(r"H\d+(\.|$)", kind) else kind


def _table(evidence: Evidence, name: str, columns: Any) -> pd.DataFrame:
    if name not in evidence.tables:
        there = ", ".join(evidence.tables) or "none"
        raise EvidenceError(f"{evidence.id} has no table {name!r}; there are: {there}")
    table = evidence.tables[name]
    missing = sorted(set(columns) - set(table.columns))
    if missing:
        raise EvidenceError(
            f"table {name!r} of {evidence.id} has no column {missing[0]!r}; there are: "
            f"{', '.join(table.columns)}"
        )
    return table


def _rows(table: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    fits = np.ones(len(table), dtype=bool)
    for column, wanted in where.items():
        fits &= np.array([v == wanted for v in table[column].tolist()], dtype=bool)
    return table[fits]
