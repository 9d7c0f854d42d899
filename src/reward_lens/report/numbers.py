"""Numbers of a page that can be traced: each one names the evidence and the place it comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from reward_lens.errors import EvidenceError
from reward_lens.evidence import Evidence

#: What a missing number looks like.
NONE = "–"


def resolve(evidence: Evidence, path: str) -> Any:
    """Return what a path names: ``interval/NAME/FIELD`` or ``table/TABLE/ROW/COLUMN``.

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
    except (KeyError, IndexError, AttributeError, ValueError) as error:
        raise EvidenceError(f"{evidence!r} has nothing at {path!r}") from error
    raise EvidenceError(f"{path!r} is no path: it begins with interval/ or table/")


def shown(value: Any, form: str) -> str:
    """Format a number as the page shows it; a NaN as a dash."""
    if isinstance(value, float) and math.isnan(value):
        return NONE
    return format(value, form)


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
