"""What sections are made of: figures, tables, and the labels that stand under every figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from markupsafe import Markup

from reward_lens.evidence import Evidence, Standing
from reward_lens.report.numbers import Numbers
from reward_lens.wording import counted

Cell = str | Markup

#: What intervals of means over pairs are.
MEAN_INTERVALS = "95 % intervals (cluster-t over lineages)"


@dataclass(frozen=True)
class Figure:
    """A drawing, what it shows, and how it was measured.

    Attributes
    ----------
    svg : Markup
    caption, labels : str
        ``labels`` as :func:`labels` makes them.
    names : tuple of str
        What the evidence is called that it shows; their receipts are linked.
    """

    svg: Markup
    caption: str
    labels: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table that can be folded.

    Attributes
    ----------
    title : str
    head : list of str
    rows : list of list
    open : bool
        Whether it is unfolded at first.
    slider : bool
        Whether a reader moves along its steps, and with them along the curves of the figure before
        it. The columns are then a group (a line of the figure), the step, and what is known there.
        At most one table of a page.
    """

    title: str
    head: list[str]
    rows: list[list[Cell]]
    open: bool = False
    slider: bool = False


@dataclass(frozen=True)
class TextPair:
    """One pair with its texts: what is said of it, its prompt, and name, score, text of a side."""

    id: str
    subset: str
    about: Markup
    prompt: str
    sides: list[tuple[str, Markup, str]]


@dataclass(frozen=True)
class Part:
    """Text, figures and tables, and pairs with their texts, under a heading of their own."""

    title: str
    text: list[Cell] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    labels: str = ""
    texts: list[TextPair] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """One section of the page."""

    id: str
    title: str
    text: list[Cell] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    labels: str = ""
    parts: list[Part] = field(default_factory=list)


def labels(e: Evidence, *, units: str = "", n: str = "", intervals: str = "no intervals") -> str:
    """How something was measured, as it stands under every figure.

    Tier, gauge, units, how many pairs, what the intervals are, which executors ran, trust, and the
    readout's note.

    Parameters
    ----------
    units, n : str
        Where the figure shows others than the evidence's value has.
    """
    note = e.subject.notes.get("readout_note")
    executors = e.tables["engine"]["executor"] if "engine" in e.tables else ()
    count = n or (of_pairs(e.value.sizes["pair"]) if "pair" in e.value.sizes else "")
    said = [
        e.tier.value,
        f"gauge {e.gauge.value}",
        f"{units or e.units.value} units",
        *([count] if count else []),
        intervals,
        *([f"run as {', '.join(dict.fromkeys(executors))}"] if len(executors) else []),
        f"trust {rung(e.standing)}",
        *([str(note)] if note else []),
    ]
    return " · ".join(said)


def of_pairs(n: int) -> str:
    """How many pairs a figure shows, as its label says it."""
    return f"n = {counted(n, 'pair')}"


def only_below(standing: Standing) -> bool:
    """Whether the instrument passed its scorecard, and all that it reads is under its limit."""
    return bool(standing.below) and not standing.above


def rung(standing: Standing) -> str:
    """A rung in a few words; an exploratory one says if it was checked."""
    return standing.name + (", under the detection limit" if only_below(standing) else "")


def interval(number: Numbers, name: str, key: str, form: str = ".3f") -> Markup:
    """An estimate with its interval, every number traced."""
    n = {f: number(name, f"interval/{key}/{f}", form) for f in ("estimate", "low", "high")}
    return Markup("{} (95 % interval {} to {})").format(n["estimate"], n["low"], n["high"])


def because(note: str) -> str:
    """A note in brackets, where there is one."""
    return f" ({note})" if note else ""


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as plain mappings."""
    return [{str(k): v for k, v in row.items()} for row in table.to_dict(orient="records")]


def traced_rows(
    number: Numbers,
    name: str,
    table: pd.DataFrame,
    key: str,
    which: Sequence[int],
    words: Sequence[str],
    columns: dict[str, str],
) -> list[list[Cell]]:
    """Rows of an evidence's table: words as they are, then numbers that can be traced.

    Parameters
    ----------
    table, key : DataFrame, str
        The table, and what the evidence calls it.
    which : sequence of int
        Its rows.
    words : sequence of str
        Columns of text.
    columns : mapping
        Column -> format of its numbers.
    """
    return [
        [*(str(table[w].iloc[k]) for w in words),
         *(number(name, f"table/{key}/{k}/{c}", form) for c, form in columns.items())]
        for k in which
    ]  # fmt: skip
