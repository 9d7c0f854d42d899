"""Numbers of a page that can be traced: each one names the evidence and the place it comes from."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from markupsafe import Markup

from reward_lens.errors import EvidenceError
from reward_lens.evidence import Evidence

_TRACED = re.compile(r'<data value="([^"|]+\|table/[^"|/]+/[0-9]+/)')
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


def by_row(cells: Sequence[object]) -> tuple[str, list[object]]:
    """Take what the numbers of a table's row have in common out of them.

    A page has thousands of numbers, and those of a row are mostly from one row of one table.

    Returns
    -------
    base : str
        ``NAME|table/TABLE/ROW/`` where at least two numbers begin so; else empty.
    cells : list
        The cells, with ``COLUMN|FORM`` left in those numbers.
    """
    said = [m[1] for cell in cells for m in _TRACED.finditer(str(cell))]
    base, count = Counter(said).most_common(1)[0] if said else ("", 0)
    if count < 2:
        return "", list(cells)
    long, short = f'<data value="{base}', '<data value="'
    return str(Markup(base).unescape()), [
        Markup(str(cell).replace(long, short)) if isinstance(cell, Markup) else cell
        for cell in cells
    ]


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
