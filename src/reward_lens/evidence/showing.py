"""How an evidence shows itself: a few lines in a terminal, a short table in a notebook.

Both stay short whatever was measured; the receipt and ``to_dataframe`` have everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from reward_lens.evidence.pictures import SAMPLES, clip
from reward_lens.evidence.receipt import interval_text, lines
from reward_lens.wording import counted

if TYPE_CHECKING:
    from reward_lens.evidence.parts import Interval
    from reward_lens.evidence.record import Evidence

_IN_TERMINAL, _IN_NOTEBOOK, _LINE = 4, 8, 150
#: Characters of one fact; bytes of the facts, of the intervals, and of
#: the receipt that unfolds below them.
_FACT, _FACTS, _INTERVALS, _RECEIPT = 240, 6000, 5000, 7000
# No colour of its own: it is read on a light page and on a dark one.
LEFT = "text-align:left;padding:.15em .6em"
QUIET = "opacity:.75"


def in_terminal(evidence: Evidence) -> str:
    """What was measured, tier, gauge, units and trust, and the first intervals."""
    e = evidence
    shape = ", ".join(f"{d}: {n}" for d, n in e.value.sizes.items())
    shown = [f"{i.name}: {_span(i)} (n = {i.n} in {i.clusters} lineages)"
             for i in _numbers_first(e)[:_IN_TERMINAL]]  # fmt: skip
    more = len(e.uncertainty) - len(shown)
    facts = [
        f"{e.instrument} v{e.version}, {e.tier.value}: {e.value.name} ({shape})",
        f"gauge {e.gauge.value}, units {e.units.value}, trust {e.standing.name}",
        *shown,
        *([f"and {more} more intervals"] if more else []),
    ]
    return "\n".join([f"<Evidence {e.id}", *(f"  {clip(fact, _LINE)}" for fact in facts)]) + ">"


def in_notebook(evidence: Evidence) -> str:
    """The facts a reader needs first, the intervals, and the receipt folded away; under 20 kB."""
    e = evidence
    head = f"{e.instrument} v{e.version}, {e.tier.value}: {e.value.name}"
    facts = table(_cells(*row) for row in _within(_facts(e), _FACTS))
    rest = table(_cells(*row) for row in _within(lines(e), _RECEIPT))
    below = "<code>.plot()</code>, <code>.to_dataframe()</code>, <code>.tables</code>, "
    return (
        f"<div><strong>{escape(clip(head, _FACT))}</strong>{facts}{_intervals(e)}"
        f"<details><summary>receipt</summary>{rest}</details>"
        f"<div style='{QUIET}'>{below}<code>.receipt()</code></div></div>"
    )


def in_pandas(evidence: Evidence) -> pd.DataFrame:
    """The value as a tidy table; what it is a table of in ``attrs``."""
    e, value = evidence, evidence.value
    if value.ndim:
        frame = value.to_dataframe().reset_index()
    else:  # of one number xarray makes no table
        columns = {**value.coords, value.name: value}
        frame = pd.DataFrame({str(k): [v.item()] for k, v in columns.items()})
    frame.attrs = {
        "id": e.id,
        "instrument": e.instrument,
        "tier": e.tier.value,
        "gauge": e.gauge.value,
        "units": e.units.value,
        "quantity_units": {k: u.value for k, u in e.quantity_units.items()},
    }
    return frame


def _facts(e: Evidence) -> list[tuple[str, str]]:
    s, standing = e.subject, e.standing
    source = str(s.notes.get("source", "")) or f"signal {s.signal}"
    note = s.notes.get("readout_note")
    units = [e.units.value, *(f"{q} {u.value}" for q, u in e.quantity_units.items())]
    facts = [
        ("subject", f"{source}, readout {s.readout}" + (f" ({note})" if note else "")),
        ("gauge, units", f"{e.gauge.value}; {', '.join(units)}"),
        ("trust", f"{standing.name}: {standing.meaning}"),
        *([("n", size)] if (size := size_of(e)) else []),
        ("value", _values(e)),
        *([("interventions", "; ".join(s.interventions))] if s.interventions else []),
        *([("frame", s.frame)] if s.frame is not None else []),
    ]
    if e.tables:
        tables = (f"{k} ({len(t)} × {len(t.columns)})" for k, t in e.tables.items())
        facts.append(("tables", ", ".join(tables)))
    return facts


def size_of(e: Evidence) -> str:
    """Rows and lineages that it rests on; empty where it is of no sample."""
    value = e.value
    for d in SAMPLES:
        if d in value.dims:
            labels = value["lineage"].values.tolist() if "lineage" in value.coords else []
            size, lineages = counted(value.sizes[d], d), counted(len(set(labels)), "lineage")
            return f"{size} in {lineages}" if labels else size
    if not e.uncertainty:
        return ""
    i = max(e.uncertainty, key=lambda i: i.n)
    return f"{counted(i.n, 'row')} in {counted(i.clusters, 'lineage')}"


def _values(e: Evidence) -> str:
    """Shape, range and how many are missing."""
    value = e.value
    shape = " × ".join(f"{n} {d}" for d, n in value.sizes.items()) or "one number"
    if value.dtype.kind == "b":
        return f"{shape}; {int(value.values.sum())} of {value.size} true"
    if value.dtype.kind not in "fiu":
        return f"{shape}; text"
    found = value.values[np.isfinite(value.values)]
    missing = value.size - found.size
    some = f"; {missing} missing" if missing else ""
    if not found.size:
        return shape + some
    return f"{shape}; {found.min():.4g} to {found.max():.4g}, median {np.median(found):.4g}{some}"


def _intervals(e: Evidence) -> str:
    names = ("interval", "estimate and interval", "n", "lineages", "worth", "method, doubt")
    rows = ["".join(f"<th style='{LEFT}'>{name}</th>" for name in names)]
    for i in _numbers_first(e)[:_IN_NOTEBOOK]:
        cells = (i.name, _span(i), i.n, i.clusters, f"{i.n_effective:.4g}", _how(i))
        row = "".join(f"<td style='{LEFT}'>{escape(clip(str(c), 120))}</td>" for c in cells)
        if len("".join(rows).encode()) + len(row.encode()) > _INTERVALS:
            break
        rows.append(row)
    more = len(e.uncertainty) - len(rows) + 1
    said = f"<div style='{QUIET}'>and {more} more in <code>.uncertainty</code></div>"
    found = table(f"<tr>{row}</tr>" for row in rows) if e.uncertainty else ""
    return found + (said if more else "")


def _numbers_first(e: Evidence) -> list[Interval]:
    """As they are given, those that have no interval last."""
    return sorted(e.uncertainty, key=lambda i: math.isnan(i.low))


def _how(i: Interval) -> str:
    return f"{i.method}; {i.note}" if i.note else i.method


def _span(i: Interval) -> str:
    """The estimate and the ends of its interval, as the receipt has them."""
    return interval_text(i).split(" (")[0]


def _cells(name: str, text: str) -> str:
    return (
        f"<tr><th style='{LEFT}'>{escape(clip(name, 60))}</th>"
        f"<td style='{LEFT}'>{escape(clip(text, _FACT))}</td></tr>"
    )


def table(rows: Iterable[str]) -> str:
    """Rows of HTML as a table."""
    return f"<table>{''.join(rows)}</table>"


def _within(rows: list[tuple[str, str]], budget: int) -> list[tuple[str, str]]:
    """The first rows that fit into so many bytes, and how many did not."""
    kept: list[tuple[str, str]] = []
    for row in rows:
        budget -= len(_cells(*row).encode())
        if budget < 0:
            return [*kept, ("…", f"{len(rows) - len(kept)} more lines: .receipt() has them")]
        kept.append(row)
    return kept
