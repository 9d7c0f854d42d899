"""The pairs that a page's browser holds: texts, numbers, token maps and curves, as one block.

The page's script shows them; it computes no number. What it writes as ``<data>`` was formatted here
from the evidence, with the path it is found at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from reward_lens.data import Pairs
from reward_lens.errors import EvidenceError
from reward_lens.evidence import Evidence
from reward_lens.report.browser_choice import GAP, order_of_showing, with_texts
from reward_lens.report.browser_json import packed, spent
from reward_lens.report.browser_maps import SIDES, Curves, TokenMap, depth_curves, token_maps
from reward_lens.report.numbers import shown


@dataclass(frozen=True)
class Budgets:
    """How much of the pairs a page holds, so that it stays under 500 kB with all its figures.

    Attributes
    ----------
    pairs, mapped : int
        Pairs with texts, and of them with token maps; more nobody looks through.
    texts, maps, curves : int
        Bytes of texts with what is said of their pairs, of token maps, and of curves by depth,
        before they are packed to less than half of it. What maps and curves leave over is spent on
        texts.
    """

    pairs: int = 200
    mapped: int = 50
    texts: int = 250_000
    maps: int = 250_000
    curves: int = 80_000

    @property
    def bytes(self) -> tuple[int, int, int]:
        """Of texts, maps and curves."""
        return self.texts, self.maps, self.curves

    @classmethod
    def within(cls, room: int) -> Budgets:
        """The usual budgets, or as much of each as keeps all of them within so many bytes."""
        usual = cls()
        share = min(1.0, max(0, room) / sum(usual.bytes))
        return cls(usual.pairs, usual.mapped, *(int(share * part) for part in usual.bytes))


@dataclass(frozen=True)
class Column:
    """A number of a pair: key, title and unit, and its path with ``{k}`` for the pair's row."""

    key: str
    title: str
    unit: str
    path: str


@dataclass(frozen=True)
class Side:
    """A side of a pair, and the path of its score with ``{k}`` for the pair's row."""

    key: str
    title: str
    score: str


@dataclass(frozen=True)
class Sort:
    """An order of the list: by ``subset`` or one of the raw numbers, or by its size."""

    key: str
    title: str
    by: str
    down: bool
    abs: bool = False


@dataclass(frozen=True)
class BrowserData:
    """What the browser of a page shows.

    Attributes
    ----------
    total : int
        Pairs that were scored.
    sidecar : str
        Name of the file that holds all of them; empty where there is none.
    about : list of str
        What of them is on the page and what is not, in sentences.
    columns, sides, sorts, maps, curves
        What there is of a pair, and how it is called; ``curves`` is None without any.
    pairs : list of dict
        ``id``, ``subset``, ``k`` (row in the table that paths speak of), ``n`` (numbers of the
        columns, formatted), ``s`` (scores of the sides, formatted), ``r`` (raw numbers to sort by),
        ``t`` (texts, and how many characters of each are left out), and where they were measured
        ``m`` (token maps) and ``c`` (curves).
    """

    total: int
    sidecar: str
    about: list[str]
    columns: list[Column]
    sides: list[Side]
    sorts: list[Sort]
    maps: list[TokenMap]
    curves: Curves | None
    pairs: list[dict[str, Any]]


def as_block(data: BrowserData) -> str:
    """The data as it stands in the page; see :func:`~reward_lens.report.browser_json.packed`."""
    return packed(asdict(data))


def fitting(make: Callable[[Budgets], BrowserData], room: int) -> tuple[BrowserData, str]:
    """As much as fits a page, and its block of at most so many bytes.

    How far texts can be packed is known once they are: budgets are cut until the block fits.

    Parameters
    ----------
    make : callable
        Makes the data from budgets of bytes before packing.
    room : int
        Bytes of the block.
    """
    raw = float(sum(Budgets().bytes)) if room > 0 else 0.0
    while True:
        data = make(Budgets.within(int(raw)))
        block = as_block(data)
        if len(block) <= room or not data.pairs:
            return data, block
        raw *= min(0.95, 0.98 * room / len(block))


_COLUMNS = [Column("margin", "margin", "reward", "preference|table/scores/{k}/margin|+.3g")]
_SIDES = [Side(s, s, f"preference|table/scores/{{k}}/{s}|.3g") for s in SIDES]
_SORTS = [
    Sort("low", "margin, lowest first", "margin", False),  # the worst errors are what is asked for
    Sort("high", "margin, highest first", "margin", True),
    Sort("close", "smallest |margin| first", "margin", False, abs=True),
    Sort("subset", "subset", "subset", False),
    Sort("length", "longest first", "length", True),
    Sort("ratio", "chosen longest relative to rejected first", "ratio", True),
]


def browser_data(
    evidence: Mapping[str, Evidence],
    pairs: Pairs,
    *,
    sidecar: str = "",
    budgets: Budgets | None = None,
    seed: int = 0,
) -> BrowserData:
    """Choose the pairs of a page and gather what the evidence has of them; nothing is measured.

    All pairs where they are few and fit; else those with token maps, the worst errors, one of every
    subset, the highest, lowest and smallest margins, and a sample stratified by subset.

    Parameters
    ----------
    evidence : mapping of str to Evidence
        By name, as :func:`~reward_lens.audit` returns it; ``preference`` at least.
    pairs : Pairs
        All that were scored, or some of them: only their texts can be shown.
    sidecar : str
        Name of the file beside the page that holds all of them.
    budgets : Budgets, optional
    seed : int
        Of the sample.

    Raises
    ------
    EvidenceError
        If a pair is not among those that were scored.
    """
    limits = budgets or Budgets()
    scores = evidence["preference"].tables["scores"]
    rows = rows_of(scores, pairs, "scored")
    margins = scores["margin"].to_numpy(dtype=np.float64)[rows]
    order = order_of_showing(
        pairs.subsets.tolist(), margins, *_known(evidence, pairs.ids), seed
    )[: limits.pairs]  # fmt: skip
    chosen = pairs.select(order)
    maps, tokens, measured = token_maps(evidence, chosen.ids, limits.mapped, limits.maps)
    curves, points = depth_curves(evidence, chosen.ids, limits.curves)
    left = limits.maps - spent(tokens) + limits.curves - spent(points)
    said = [_record(scores, p.id, p.subset, rows[k]) for k, p in zip(order, chosen, strict=True)]
    records, cap = with_texts(said, chosen, limits.texts + left)
    for record in records:
        more = {"m": tokens.get(record["id"]), "c": points.get(record["id"])}
        record |= {key: value for key, value in more.items() if value is not None}
    about = [_held(records, len(scores))]
    if records:
        about += _left(records, cap, pairs)
        about += _unmapped(sum("m" in record for record in records), measured)
    return BrowserData(
        len(scores), sidecar, about, _COLUMNS, _SIDES, _sorts(records), maps, curves, records
    )


def rows_of(table: pd.DataFrame, pairs: Pairs, done: str) -> list[int]:
    """The row of every pair in a table of pairs that something was done to.

    Raises
    ------
    EvidenceError
        If one is not there.
    """
    place = {pair: k for k, pair in enumerate(table["pair"].tolist())}
    unknown = [pair for pair in pairs.ids if pair not in place]
    if unknown:
        raise EvidenceError(
            f"the pair {unknown[0]!r} ({len(unknown)} in all) is not among the {len(place)} that "
            f"were {done}; give the pairs that the evidence was measured on"
        )
    return [place[pair] for pair in pairs.ids]


def _known(
    evidence: Mapping[str, Evidence], ids: Sequence[str]
) -> tuple[list[int], np.ndarray[Any, np.dtype[np.bool_]]]:
    """The pairs that must be on the page, and those of which a curve by depth is known."""
    place = {pair: k for k, pair in enumerate(ids)}
    first: list[str] = []
    for name in ("token_map", "token_map_causal", "source_attribution"):
        if name in evidence:
            first += evidence[name].value["pair"].values.tolist()
    if "worst_errors" in evidence:
        first += evidence["worst_errors"].tables["errors"]["pair"].tolist()
    read = set(evidence["lens"].value["pair"].values.tolist()) if "lens" in evidence else set()
    named = [place[pair] for pair in dict.fromkeys(first) if pair in place]
    return named, np.array([pair in read for pair in ids], dtype=bool)


def _record(scores: pd.DataFrame, pair: str, subset: str, k: int) -> dict[str, Any]:
    """What the scores say of a pair."""
    row = scores.iloc[k]
    characters = [float(row[f"characters_{side}"]) for side in SIDES]
    known = not any(math.isnan(count) for count in characters)
    ratio = math.log(characters[0] / characters[1]) if known and min(characters) else math.nan
    return {
        "id": pair,
        "subset": subset,
        "k": k,
        "n": {c.key: shown(row[c.key], c.path.rpartition("|")[2]) for c in _COLUMNS},
        "s": {s.key: shown(row[s.key], s.score.rpartition("|")[2]) for s in _SIDES},
        "r": {
            "margin": float(f"{row['margin']:.7g}"),
            "length": int(sum(characters)) if known else None,
            "ratio": None if math.isnan(ratio) else float(f"{ratio:.4g}"),
        },
    }


def _sorts(records: Sequence[dict[str, Any]]) -> list[Sort]:
    """The orders that tell these pairs apart."""
    known = {key for record in records for key, raw in record["r"].items() if raw is not None}
    if len({record["subset"] for record in records}) > 1:
        known.add("subset")
    return [sort for sort in _SORTS if sort.by in known]


def none_fit(total: int) -> str:
    """What is said where no pair is on the page."""
    return (
        f"No pair is on this page: what else it shows leaves no room for the texts of any of the "
        f"{total:,} that were scored."
    )


def _held(records: Sequence[dict[str, Any]], total: int) -> str:
    """How many pairs are on the page, and with what."""
    if not records:
        return none_fit(total)
    whole = len(records) == total
    count = f"all {total:,}" if whole else f"{len(records):,} of {total:,}"
    mapped, curved = (sum(key in record for record in records) for key in ("m", "c"))
    texts = "The text of the one pair is" if total == 1 else f"The texts of {count} pairs are"
    said = f"{texts} on this page, {mapped} with token maps, {curved} with "
    said += "their margin by depth"
    if whole:
        return f"{said}."
    return (
        f"{said}. Chosen in this order while there is room: those with token maps, the worst "
        f"errors, the highest, lowest and smallest margins, a sample over the subsets."
    )


def _left(records: Sequence[dict[str, Any]], cap: int, pairs: Pairs) -> list[str]:
    """What of texts and subsets is not on the page."""
    left = sum(gone > 0 for record in records for _, gone in record["t"].values())
    said = [cut_texts(left, cap)] if left else []
    there, every = len({record["subset"] for record in records}), len(pairs.subset_counts)
    if there < every:
        said.append(f"{every - there} of the {every} subsets have no pair on this page.")
    return said


def cut_texts(count: int, cap: int) -> str:
    """How many texts are cut, and where."""
    one = count == 1
    return (
        f"{count} {'text' if one else 'texts'} of more than {cap:,} characters "
        f"{'is' if one else 'are'} cut in the middle, at {GAP.strip()}."
    )


def _unmapped(there: int, measured: int) -> list[str]:
    """How many token maps are not on the page."""
    if there == measured:
        return []
    return [f"Of the {measured} pairs with token maps, {measured - there} do not fit on this page."]
