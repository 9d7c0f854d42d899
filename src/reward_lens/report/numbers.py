"""Numbers of a page that can be traced: each one names the evidence and the place it comes from."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from markupsafe import Markup

from reward_lens.errors import EvidenceError
from reward_lens.evidence import Evidence

_TRACED = re.compile(r'<data value="([^"|]+\|table/[^"|/]+/[0-9]+/)')
_RELATIVE = re.compile(r'<data value="([^"|]*\|[^"|]*)">([^<]*)</data>')
#: What a missing number looks like.
NONE = "–"


def resolve(evidence: Evidence, path: str) -> Any:
    """Return what a path names.

    Parameters
    ----------
    evidence : Evidence
    path : str
        ``interval/NAME/FIELD``, ``table/TABLE/ROW/COLUMN``, or ``value/DIM=COORD,DIM=COORD`` with
        every dimension of the value and its coordinates as :func:`value_path` writes them.

    Raises
    ------
    EvidenceError
        If there is nothing there.
    """
    kind, *rest = path.split("/")
    try:
        if kind == "interval":
            return getattr(evidence.interval("/".join(rest[:-1])), rest[-1])
        if kind == "table":
            return evidence.tables[rest[0]][rest[2]].iloc[int(rest[1])]
        if kind == "value":
            return _at(evidence, "/".join(rest))
    except (KeyError, IndexError, AttributeError, ValueError) as error:
        raise EvidenceError(f"{evidence!r} has nothing at {path!r}") from error
    raise EvidenceError(f"{path!r} is no path: it begins with interval/, table/ or value/")


def value_path(**coordinates: Any) -> str:
    """Return the path of one element of a value.

    Coordinates are percent-encoded, since an id may hold any of the characters that divide a path.

    Parameters
    ----------
    **coordinates
        Dimension -> coordinate (along a dimension without coordinates: the index).
    """
    named = (f"{dim}={quote(str(at), safe='')}" for dim, at in coordinates.items())
    return f"value/{','.join(named)}"


def _at(evidence: Evidence, coordinates: str) -> Any:
    """The element of the value at coordinates that name every dimension once.

    Raises
    ------
    KeyError, ValueError
        If a dimension is missing, unknown or named twice, or a coordinate is not there.
    """
    value = evidence.value
    parts = [part.split("=") for part in coordinates.split(",")]
    asked = {dim: unquote(at) for dim, at in parts}
    if len(asked) != len(parts) or set(asked) != {str(dim) for dim in value.dims}:
        raise KeyError(coordinates)
    # Compared as texts: a path does not say whether 3 is a number or a label.
    index = tuple(
        [str(c) for c in value[dim].values.tolist()].index(asked[str(dim)]) for dim in value.dims
    )
    return value.values[index]


def shown(value: Any, form: str) -> str:
    """Format a number as the page shows it; a NaN as a dash."""
    if isinstance(value, (float, np.floating)) and math.isnan(value):
        return NONE
    return format(value, form)


@dataclass(frozen=True)
class TracedTable:
    """A table whose numbers say only what of their path is their own.

    The path of a number is ``table + row + column``, or its own where it has a whole one.

    Attributes
    ----------
    table : str
        What the paths of rows begin with: ``NAME|table/TABLE/``, or empty.
    columns : list of str
        By column, how numbers go on that say nothing themselves: ``COLUMN|FORM``, or empty.
    rows : list of (str, list)
        What the row adds, empty where its numbers have little in common; and its cells.
    """

    table: str
    columns: list[str]
    rows: list[tuple[str, list[object]]]

    @classmethod
    def of(cls, rows: Sequence[Sequence[object]]) -> TracedTable:
        """Say once what numbers of a table have in common: a page has thousands of them."""
        found = [_by_row(cells) for cells in rows]
        tables = {base[: base.rindex("/", 0, -1) + 1] for base, _ in found if base}
        table = tables.pop() if len(tables) == 1 else ""
        width = max((len(cells) for _, cells in found), default=0)
        columns = [""] * width
        for k in range(width):
            said = [m[1] for base, cells in found if base and (m := _rest(cells, k)) is not None]
            column, count = Counter(said).most_common(1)[0] if said else ("", 0)
            if count > 1:
                columns[k] = column
                for _, cells in found:
                    if (m := _rest(cells, k)) is not None and m[1] == column:
                        cells[k] = Markup(f"<data>{m[2]}</data>")
        unescaped = [str(Markup(column).unescape()) for column in columns]
        return cls(table, unescaped, [(base.removeprefix(table), cells) for base, cells in found])


def _by_row(cells: Sequence[object]) -> tuple[str, list[object]]:
    """What at least two numbers of a row begin with, ``NAME|table/TABLE/ROW/``; and the rest."""
    said = [m[1] for cell in cells for m in _TRACED.finditer(str(cell))]
    base, count = Counter(said).most_common(1)[0] if said else ("", 0)
    if count < 2:
        return "", list(cells)
    long, short = f'<data value="{base}', '<data value="'
    return str(Markup(base).unescape()), [
        Markup(str(cell).replace(long, short)) if isinstance(cell, Markup) else cell
        for cell in cells
    ]


def _rest(cells: Sequence[object], k: int) -> re.Match[str] | None:
    """A cell that is one number and says no more than its column."""
    cell = cells[k] if k < len(cells) else None
    return _RELATIVE.fullmatch(cell) if isinstance(cell, Markup) else None


class Numbers:
    """Formats numbers of named evidence as elements that say where they are from.

    Parameters
    ----------
    evidence : mapping of str to Evidence
    """

    def __init__(self, evidence: Mapping[str, Evidence]) -> None:
        self._evidence = evidence

    def __call__(self, name: str, path: str, form: str = ".3g") -> Markup:
        """Return ``<data value="name|path|form">number</data>``."""
        text = shown(resolve(self._evidence[name], path), form)
        return Markup('<data value="{}|{}|{}">{}</data>').format(name, path, form, text)
