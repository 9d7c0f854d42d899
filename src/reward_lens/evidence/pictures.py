"""What to draw of an evidence: which entries, averaged over what, in which panels.

No instrument is known here, only dimensions: those whose entries are data are averaged with their
interval, those that tell a few quantities apart become series and panels, the rest become axes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xarray as xr

from reward_lens.errors import EvidenceError
from reward_lens.evidence.intervals import cluster_t

if TYPE_CHECKING:
    from reward_lens.evidence.record import Evidence

Floats = npt.NDArray[np.float64]

#: Dimensions whose entries are independent data, averaged over unless one is selected.
SAMPLES = ("pair", "item", "choice")
#: Dimensions that tell a few quantities apart; the first becomes series where there is room.
FACETS = ("quantity", "reading", "direction", "side", "source")
#: Rows and bars that are still read one by one; series on one row; panels of one figure.
MOST_ROWS, MOST_SERIES, MOST_PANELS = 20, 3, 9
#: Quantities that are the ends of the interval of the one named first.
_ENDS = ("low", "high")


class Cell(NamedTuple):
    """One number with the ends of its interval, NaN where there is none."""

    estimate: float
    low: float
    high: float
    doubt: str = ""


@dataclass(frozen=True)
class Series:
    """Numbers along an axis, ``[n]`` each."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes
    ----------
    kind : {"rows", "curve", "map", "counts"}
        Labelled rows; a curve over numbers; a map of two axes; how often what was read.
    name : str
        What sets it apart from the other panels.
    value : str
        What is measured, with its units.
    axes : tuple of (str, sequence)
        Name and entries of each axis that is no value.
    series : tuple of Series
        Of rows and curves.
    values : ndarray
        Of a map, ``[first axis, second axis]``; of counts, every entry.
    binary : bool
        Whether the values are 1 for yes and 0 for no.
    """

    kind: str
    name: str
    value: str
    axes: tuple[tuple[str, Sequence[Any]], ...] = ()
    series: tuple[Series, ...] = ()
    values: Floats = field(default_factory=lambda: np.empty(0))
    binary: bool = False


@dataclass(frozen=True)
class Picture:
    """Panels, with what stands above and below them."""

    title: str
    panels: tuple[Panel, ...]
    note: str = ""


def picture(evidence: Evidence, select: Mapping[str, Any]) -> Picture:
    """Choose what to draw.

    Parameters
    ----------
    evidence : Evidence
    select : mapping
        Dimension -> the label to draw, or a list of labels.

    Raises
    ------
    EvidenceError
        If a dimension or label is not there, nothing is left, or more has to be selected first.
    """
    value = _selected(evidence.value, select)
    if value.dtype.kind not in "fiub":
        raise EvidenceError(f"{value.name} is text: there is nothing to draw; see to_dataframe()")
    numbers = value.astype(np.float64)
    if not np.isfinite(numbers.values).any():
        sizes = ", ".join(f"{d} ({n})" for d, n in value.sizes.items()) or "one entry"
        raise EvidenceError(f"there is nothing to draw: {sizes}, and none is a number")
    layout = _Layout(evidence, numbers, binary=value.dtype.kind == "b")
    return Picture(layout.title(select), layout.panels(), layout.note())


def _selected(value: xr.DataArray, select: Mapping[str, Any]) -> xr.DataArray:
    for dim, wanted in select.items():
        if dim not in value.dims:
            raise EvidenceError(
                f"there is no dimension {dim!r} to select; there are: "
                f"{', '.join(map(str, value.dims)) or 'none'}"
            )
        try:
            indexed = dim in value.indexes
            value = value.sel({dim: wanted}) if indexed else value.isel({dim: wanted})
        except (KeyError, IndexError) as error:
            first = ", ".join(map(str, _labels(value, dim)[:6]))
            raise EvidenceError(
                f"{dim}={wanted!r} is not there; there are {value.sizes[dim]}: {first}"
                f"{', …' if value.sizes[dim] > 6 else ''}"
            ) from error
    return _without_padding(value)


def _without_padding(value: xr.DataArray) -> xr.DataArray:
    """Without the end of what is counted in each pair, where it is beyond all that are left."""
    if value.dtype.kind != "f" or any(d in SAMPLES for d in value.dims):
        return value
    for d in value.dims:
        if d not in value.indexes:
            (there,) = np.nonzero(value.notnull().any([x for x in value.dims if x != d]).values)
            value = value.isel({d: slice(0, int(there.max(initial=-1)) + 1)})
    return value


def _labels(value: xr.DataArray, dim: str) -> list[Any]:
    found: list[Any] = value[dim].values.tolist()
    return found


class _Layout:
    """Gives every dimension of a value its part in a figure."""

    def __init__(self, evidence: Evidence, value: xr.DataArray, binary: bool) -> None:
        self.evidence, self.binary = evidence, binary
        self.bars, self.doubts = set[str](), Counter[str]()
        ends = value.sizes.get("quantity", 0) and set(_ENDS) <= set(_labels(value, "quantity"))
        self.ends = value if ends else None
        if ends:
            kept = [q for q in _labels(value, "quantity") if q not in _ENDS]
            value = value.sel(quantity=kept)
        self.value = value
        dims = [str(d) for d in value.dims]
        self.sample = next((d for d in dims if d in SAMPLES), None)
        self.facets = [d for d in FACETS if d in dims]
        self.axes = [d for d in dims if d not in (*self.facets, self.sample)]
        self._give_parts()

    def _give_parts(self) -> None:
        value, sample = self.value, self.sample
        own = [d for d in self.axes if d not in value.indexes]
        if sample is not None and own:
            self._refuse(f"{own[0]} is counted in each {sample} on its own", sample)
        if len(self.axes) > 2:
            self._refuse("a figure has two axes", self.axes[0])
        if not self.axes and sample is None and self.facets:
            self.axes = [max(self.facets, key=lambda d: value.sizes[d])]
            self.facets.remove(self.axes[0])
        if not self.axes and sample is not None and value.sizes[sample] <= MOST_ROWS:
            self.axes, self.sample = [sample], None  # few enough to be told one by one
        if not self.axes:
            self.kind = "counts" if self.sample is not None else "rows"
        elif len(self.axes) == 2:
            self.kind = "map"
        else:
            numeric = value[self.axes[0]].dtype.kind in "fiu"
            self.kind = "curve" if numeric and value.sizes[self.axes[0]] > 1 else "rows"

    def _refuse(self, why: str, dim: str) -> None:
        sizes = ", ".join(f"{d} ({n})" for d, n in self.value.sizes.items())
        raise EvidenceError(
            f"the value has the dimensions {sizes}, and {why}: select first, e.g. "
            f"ev.plot({dim}={_labels(self.value, dim)[0]!r}); ev.tables have the summaries"
        )

    # Words.

    def title(self, select: Mapping[str, Any]) -> str:
        """What was measured and drawn; tier, gauge, trust and readout."""
        e, s = self.evidence, self.evidence.subject
        what = f"{e.instrument}: {e.value.name}"
        if self.sample is not None and self.kind != "counts":
            what += f", mean over {self.value.sizes[self.sample]} {self.sample}s"
        what += "".join(f", {d} {clip(v)}" for d, v in select.items())
        facts = [e.tier.value, f"gauge {e.gauge.value}", f"trust {e.standing.name}"]
        noted = s.notes.get("readout_note")
        facts.append(clip(f"readout {s.readout}" + (f" ({noted})" if noted else ""), 90))
        if s.interventions:
            facts.append(clip("done to the model: " + "; ".join(s.interventions), 110))
        return "\n".join([what, " · ".join(facts)])

    def note(self) -> str:
        """What the bars are, and what makes them doubtful."""
        doubts = [text for text, _ in self.doubts.most_common(1)]
        what = next(iter(self.bars)) if len(self.bars) == 1 else "intervals of several methods"
        bars = "bands" if self.kind == "curve" else "bars"
        return "; ".join([f"{bars}: {what}", *doubts] if self.bars else [])

    def _units(self, quantities: Sequence[str]) -> str:
        e = self.evidence
        if self.binary:
            return "yes or no"
        if "units" in self.value.attrs:
            return str(self.value.attrs["units"])
        found = {e.quantity_units.get(q, e.units).value for q in quantities or [""]}
        return " or ".join(f"{u} units" for u in sorted(found))

    def _label(self, quantities: Sequence[str]) -> str:
        """What is measured, in which units; a word that says both is said once."""
        one = len(quantities) == 1 and "quantity" not in self.axes
        name, units = quantities[0] if one else str(self.value.name), self._units(quantities)
        return name if units == f"{name} units" else f"{name}, {units}"

    # Panels.

    def panels(self) -> tuple[Panel, ...]:
        """Every panel, with the same rows in each."""
        groups = self._groups()
        rest = [d for d in self.facets if d != "quantity"]
        several = "quantity" in self.facets and max(len(g) for g in groups) > 1
        hue = self._hue(["quantity"] * several + rest)
        if several and hue != "quantity":
            groups = [[q] for g in groups for q in g]
        across = [d for d in rest if d != hue]
        fixed = [dict(zip(across, c, strict=True))
                 for c in itertools.product(*(_labels(self.value, d) for d in across))]  # fmt: skip
        if len(groups) * len(fixed) > MOST_PANELS:
            self._refuse(f"that is {len(groups) * len(fixed)} panels", (across or rest)[0])
        kept = self._rows(hue)
        return tuple(
            self._panel(group, at, hue, kept) for group in groups for at in fixed
        )  # fmt: skip

    def _groups(self) -> list[list[str]]:
        """Quantities that share an axis, since they are in the same units."""
        if "quantity" not in self.value.dims:
            one = "quantity" in self.value.coords  # that was selected
            return [[str(self.value["quantity"].item())] if one else []]
        by_units: dict[str, list[str]] = {}
        for q in _labels(self.value, "quantity"):
            by_units.setdefault(self._units([q]), []).append(q)
        return list(by_units.values())

    def _hue(self, among: Sequence[str]) -> str | None:
        """The dimension that becomes series of one panel."""
        if self.kind in ("counts", "map"):
            return None
        for d in among:
            # Sides in rows are apart by as little as the rows: they are given panels.
            if self.value.sizes[d] <= MOST_SERIES and (self.kind == "curve" or d != "side"):
                return d
        return None

    def _rows(self, hue: str | None) -> list[int] | None:
        """The largest rows, where there are too many; of sides, by their margins."""
        if self.kind != "rows" or not self.axes or self.value.sizes[self.axes[0]] <= MOST_ROWS:
            return None
        size = self._mean()
        for d in self.facets:
            first = "margin" if "margin" in _labels(size, d) else _labels(size, d)[0]
            size = size.sel({d: first})
        order = np.argsort(-np.nan_to_num(np.abs(size.values), nan=-1.0), kind="stable")
        return [int(k) for k in order[:MOST_ROWS]]

    def _mean(self) -> xr.DataArray:
        return self.value if self.sample is None else self.value.mean(self.sample)

    def _panel(
        self, group: list[str], at: dict[str, Any], hue: str | None, kept: list[int] | None
    ) -> Panel:
        name = ", ".join(f"{d} {v}" for d, v in at.items())
        value = self._label(group)
        inside = dict(at)
        if "quantity" in self.facets and hue != "quantity":
            inside["quantity"] = group[0]
        if self.kind == "counts":
            found = self.value.sel(inside).values
            return Panel("counts", name, value, values=found[np.isfinite(found)])
        if self.kind == "map":
            # Numbers, and the longer axis of two alike, lie along the wider side.
            x, y = sorted(self.axes, key=lambda d: (
                self.value[d].dtype.kind not in "fiu", -self.value.sizes[d]
            ))  # fmt: skip
            axes = tuple((d, self._entries(d)) for d in (x, y))
            found = self._mean().sel(inside).transpose(x, y).values
            return Panel("map", name, value, axes, values=found)
        axis = self.axes[0] if self.axes else None
        entries = [""] if axis is None else self._entries(axis)
        rows = list(range(len(entries))) if kept is None else kept
        if axis == "quantity":
            rows = [k for k in rows if entries[k] in group]
        labels = [None] if hue is None else (group if hue == "quantity" else self._entries(hue))
        series = []
        for label in labels:
            where = inside if hue is None else {**inside, hue: label}
            cells = [self._cell(where, axis, k) for k in rows]
            series.append(Series("" if label is None else str(label), tuple(cells)))
        many = f" ({len(rows)} largest of {len(entries)})" if kept is not None else ""
        shown = (f"{axis}{many}" if axis else "", [entries[k] for k in rows])
        return Panel(self.kind, name, value, (shown,), tuple(series), binary=self.binary)

    def _entries(self, dim: str) -> list[Any]:
        return _labels(self.value, dim)

    # Numbers.

    def _cell(self, where: Mapping[str, Any], axis: str | None, k: int) -> Cell:
        at = self.value.sel(where)
        at = at if axis is None else at.isel({axis: k})
        if self.sample is not None:
            return self._mean_cell(at)
        estimate = float(at)
        label = {**where, **({axis: self._entries(axis)[k]} if axis else {})}
        if self.ends is not None:
            if label.get("quantity") != _labels(self.value, "quantity")[0]:
                return Cell(estimate, np.nan, np.nan)
            low, high = (float(self.ends.sel({**label, "quantity": q})) for q in _ENDS)
            return self._stated(Cell(estimate, low, high), "from low to high")
        for i in self.evidence.uncertainty:
            # The same number under a name that holds every label of it.
            if i.estimate == estimate and all(str(v) in i.name for v in label.values()):
                return self._stated(
                    Cell(i.estimate, i.low, i.high, i.note),
                    f"{100 * i.level:g} % intervals ({i.method})",
                )
        return Cell(estimate, np.nan, np.nan)

    def _mean_cell(self, at: xr.DataArray) -> Cell:
        rows = at.values
        ok = np.isfinite(rows)
        if not ok.any():
            return Cell(np.nan, np.nan, np.nan)
        if "lineage" not in at.coords:
            return Cell(float(rows[ok].mean()), np.nan, np.nan)
        i = cluster_t("mean", rows[ok], at["lineage"].values[ok])
        found = Cell(i.estimate, i.low, i.high, i.note)
        return self._stated(found, f"{100 * i.level:g} % cluster-t intervals over lineages")

    def _stated(self, cell: Cell, what: str) -> Cell:
        if np.isfinite(cell.low):
            self.bars.add(what)
            self.doubts.update([cell.doubt] if cell.doubt else [])
        return cell


def clip(text: Any, most: int = 60) -> str:
    """The beginning of a long text, on one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
