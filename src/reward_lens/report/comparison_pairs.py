"""The pair browser of two models: on which pairs they part, with the texts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from reward_lens.data import Pair, Pairs
from reward_lens.data.writing import pair_row
from reward_lens.errors import EvidenceError
from reward_lens.evidence import Evidence
from reward_lens.report.browser_choice import order_of_showing, with_texts
from reward_lens.report.browser_data import (
    BrowserData,
    Budgets,
    Column,
    Side,
    Sort,
    cut_texts,
    none_fit,
    rows_of,
)
from reward_lens.report.comparison_parts import COMPARE, LETTERS
from reward_lens.report.numbers import shown
from reward_lens.report.sidecar import write_rows

#: The surest flips that are on the page whatever else is.
FLIPS = 60
_SD = "SD"
_COLUMNS = [
    Column("agreement", "", "", f"{COMPARE}|table/pairs/{{k}}/agreement|"),
    *(Column(x, f"margin {x}", _SD, f"{COMPARE}|table/pairs/{{k}}/margin_{x}|+.2f")
      for x in LETTERS),
]  # fmt: skip
_SORTS = [
    Sort("flips", "flips, those first that both are surest of", "flip", True),
    Sort("apart", "margins furthest apart first", "apart", True),
    Sort("alike", "margins closest first", "apart", False),
    *(Sort(f"{way}_{x}", f"margin {x}, {way}est first", x, way == "high")
      for x in LETTERS for way in ("high", "low")),
    Sort("subset", "subset", "subset", False),
    Sort("length", "longest first", "length", True),
]  # fmt: skip


def compared_pairs(
    e: Evidence,
    pairs: Pairs,
    *,
    sidecar: str = "",
    budgets: Budgets | None = None,
    seed: int = 0,
) -> BrowserData:
    """Choose the pairs of a page of two models and gather what is said of them.

    The surest flips come first, then one pair of every subset, those whose margins are furthest
    apart and closest, and a sample stratified by subset.

    Parameters
    ----------
    e : Evidence
        Of :func:`~reward_lens.compare`.
    pairs : Pairs
        Those it was measured on, or some of them.
    sidecar : str
        Name of the file beside the page that holds all of them.
    budgets : Budgets, optional
    seed : int
        Of the sample.

    Raises
    ------
    EvidenceError
        If a pair is not among those that were compared.
    """
    limits, table = budgets or Budgets(), e.tables["pairs"]
    rows = rows_of(table, pairs, "compared")
    a, b = (table[f"margin_{x}"].to_numpy(dtype=np.float64)[rows] for x in LETTERS)
    flip = (table["agreement"] == "flip").to_numpy()[rows]
    # A signal whose scores do not differ within a prompt has no margins in these units.
    sure = np.nan_to_num(np.where(flip, np.minimum(np.abs(a), np.abs(b)), -1.0), nan=-1.0)
    surest = [int(k) for k in np.argsort(-sure, kind="stable")[:FLIPS] if sure[k] >= 0]
    order = order_of_showing(
        pairs.subsets.tolist(), np.nan_to_num(a - b), surest, np.zeros(len(rows), dtype=bool), seed
    )[: limits.pairs]
    chosen = pairs.select(order)
    said = [
        _record(table, rows[k], flip[k], float(a[k]), float(b[k]), p)
        for k, p in zip(order, chosen, strict=True)
    ]
    # There are no token maps and curves of two models: texts have their room.
    room = limits.texts + limits.maps + limits.curves
    records, cap = with_texts(said, chosen, room)
    known = {key for r in records for key, raw in r["r"].items() if raw is not None}
    if not flip.any():  # an order that none of them has
        known.discard("flip")
    known |= {"subset"} if len({r["subset"] for r in records}) > 1 else set()
    return BrowserData(
        total=len(table),
        sidecar=sidecar,
        about=_about(records, table, cap),
        columns=_COLUMNS,
        sides=[Side(s, s, "") for s in ("chosen", "rejected")],
        sorts=[s for s in _SORTS if s.by in known],
        maps=[],
        curves=None,
        pairs=records,
    )


def _record(
    table: pd.DataFrame, k: int, flip: bool, a: float, b: float, pair: Pair
) -> dict[str, Any]:
    row = table.iloc[k]
    texts = [i.response for i in (pair.chosen, pair.rejected) if i.response is not None]
    small = float(np.minimum(abs(a), abs(b)))  # NaN where one of them is
    raw = {"a": a, "b": b, "flip": small if flip else -small, "apart": abs(a - b)}
    columns = {"agreement": "agreement", **{x: f"margin_{x}" for x in LETTERS}}
    return {
        "id": pair.id,
        "subset": pair.subset,
        "k": k,
        "n": {c.key: shown(row[columns[c.key]], c.path.rpartition("|")[2]) for c in _COLUMNS},
        "s": {},
        "r": {
            **{key: None if math.isnan(v) else float(f"{v:.7g}") for key, v in raw.items()},
            "length": sum(map(len, texts)) if len(texts) == 2 else None,
        },
    }


def _about(records: list[dict[str, Any]], table: pd.DataFrame, cap: int) -> list[str]:
    """What is on the page and what is not, in sentences."""
    total, flips = len(table), int((table["agreement"] == "flip").sum())
    there = sum(r["n"]["agreement"] == "flip" for r in records)
    if not records:
        return [none_fit(total)]
    count = f"all {total:,}" if len(records) == total else f"{len(records):,} of {total:,}"
    said = [
        f"The texts of {count} pairs are on this page, {there:,} of the {flips:,} flips among "
        f"them. Margins are in standard deviations of each model's own scores within a prompt."
    ]
    if left := sum(gone > 0 for r in records for _, gone in r["t"].values()):
        said.append(cut_texts(left, cap))
    return said


def write_compared(path: Path, pairs: Pairs, e: Evidence) -> None:
    """Write one row a pair, texts and margins; the file appears whole or not at all.

    Parameters
    ----------
    path : Path
        Of a JSONL file; :func:`~reward_lens.load_pairs` reads the pairs back from it.
    pairs : Pairs
        Those that were compared.
    e : Evidence
        Of :func:`~reward_lens.compare` on these pairs: gives ``agreement``, ``margin_a`` and
        ``margin_b`` of each row, null where a model has no scale.

    Raises
    ------
    EvidenceError
        If it was measured on other pairs.
    """
    table = e.tables["pairs"]
    if table["pair"].tolist() != pairs.ids:
        raise EvidenceError(
            f"{path}: the margins are of other pairs, or in another order; give the pairs that "
            f"were compared"
        )
    rows = []
    for pair, row in zip(pairs, table.to_dict(orient="records"), strict=True):
        margins = {f"margin_{x}": float(row[f"margin_{x}"]) for x in LETTERS}
        said = {key: None if math.isnan(v) else v for key, v in margins.items()}
        rows.append({**pair_row(pair), "agreement": row["agreement"], **said})
    write_rows(path, rows)
