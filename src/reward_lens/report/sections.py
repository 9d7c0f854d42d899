"""The sections of the page: each turns one evidence into text, figures and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from reward_lens.data import Pairs
from reward_lens.evidence import Evidence, Interval
from reward_lens.report import figures
from reward_lens.report.numbers import Numbers, resolve
from reward_lens.report.tokens import scales, text_map

Cell = str | Markup


@dataclass(frozen=True)
class Figure:
    """A drawing and what it shows."""

    svg: Markup
    caption: str


@dataclass(frozen=True)
class Table:
    """A table that can be folded."""

    title: str
    head: list[str]
    rows: list[list[Cell]]
    open: bool = False


@dataclass(frozen=True)
class Section:
    """One section of the page."""

    id: str
    title: str
    text: list[Cell] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    labels: str = ""
    pairs: list[dict[str, Any]] = field(default_factory=list)
    has_curves: bool = False
    has_sources: bool = False
    scales: str = ""


def build_sections(
    evidence: Mapping[str, Evidence], shown: Pairs, number: Numbers, missing: Mapping[str, str]
) -> list[Section]:
    """Every section whose evidence is there, in reading order; then what did not run."""
    makers = {
        "conformance": _conformance,
        "preference": _preference,
        "lens": _lens,
        "attribution": _attribution,
        "attribution_heads": _heads,
        "batch_effect": _batch_effect,
    }
    found = [make(evidence[k], number) for k, make in makers.items() if k in evidence]
    if "token_curves" in evidence or "source_attribution" in evidence:
        found.append(_pairs(evidence, shown, number))
    if missing:
        rows: list[list[Cell]] = [[k, v] for k, v in missing.items()]
        table = Table("What did not run, and why", ["instrument", "reason"], rows, open=True)
        found.append(Section("missing", "What did not run", tables=[table]))
    return found


def labels(e: Evidence) -> str:
    """Tier, gauge, units and trust, as they stand under every figure; and the readout's note."""
    note = e.subject.notes.get("readout_note")
    said = [
        e.tier.value,
        f"gauge {e.gauge.value}",
        f"{e.units.value} units",
        f"trust {e.trust.name.lower()}",
        *([str(note)] if note else []),
    ]
    return " · ".join(said)


def interval(number: Numbers, name: str, key: str, form: str = ".3f") -> Markup:
    """An estimate with its interval, every number traced."""
    n = {f: number(name, f"interval/{key}/{f}", form) for f in ("estimate", "low", "high")}
    return Markup("{} (95 % interval {} to {})").format(n["estimate"], n["low"], n["high"])


def summary(evidence: Mapping[str, Evidence], number: Numbers) -> list[tuple[str, Cell]]:
    """Answers to what a reader asks first."""
    said: list[tuple[str, Cell]] = []
    checks = evidence["conformance"].tables["checks"]
    failed = checks[~checks["passed"]]["check"].tolist()
    loaded = f"{len(checks) - len(failed)} of {len(checks)} conformance checks hold"
    answer = "Yes" if not failed else "No"
    said.append(("Is it loaded right?", f"{answer}: {loaded}{_listed(failed)}."))
    i = evidence["preference"].interval("accuracy")
    said.append((
        "How often does it prefer the chosen response?",
        Markup("{} of {} pairs in {} lineages.").format(
            interval(number, "preference", "accuracy"),
            number("preference", "interval/accuracy/n", "d"),
            number("preference", "interval/accuracy/clusters", "d"),
        ) + _against_half(i),
    ))  # fmt: skip
    said.append((
        "Does length matter?",
        Markup("Within a prompt, one e-fold of length changes the score by {} reward{}. Over all "
               "texts, the rank correlation of score and length is {}.").format(
            interval(number, "preference", "length.slope"),
            _because(evidence["preference"].interval("length.slope").note),
            interval(number, "preference", "length.correlation"),
        ),
    ))  # fmt: skip
    if "lens" in evidence:
        said.append((
            "Where does the preference form?",
            Markup("The median margin first reaches half its final value at depth {} (norm frozen) "
                   "or {} (norm applied) of {}.").format(
                number("lens", "table/crystallization/0/median_first", "g"),
                number("lens", "table/crystallization/1/median_first", "g"),
                int(evidence["lens"].value.sizes["depth"]) - 1,
            ),
        ))  # fmt: skip
    levels = {e.trust for e in evidence.values()}
    lowest = min(levels).name.lower()
    said.append((
        "How far can this be trusted?",
        f"Every number here is at least {lowest}. Exploratory means that no planted rule has shown "
        f"that the instrument finds what it should on this model: leads, not findings.",
    ))  # fmt: skip
    return said


def _listed(names: list[str]) -> str:
    return f" (failed: {', '.join(names)})" if names else ""


def _because(note: str) -> str:
    return f" ({note})" if note else ""


def _against_half(i: Interval) -> str:
    """A verdict against a coin, or why there is none."""
    if math.isnan(i.low):
        return f" No interval: {i.note}."
    if "doubtful" in i.note:
        return f" No verdict: {i.note}."
    if i.low > 0.5:
        return " Better than a coin."
    return " Worse than a coin." if i.high < 0.5 else " Not told apart from a coin."


def _conformance(e: Evidence, number: Numbers) -> Section:
    rows: list[list[Cell]] = [
        ["ok" if r["passed"] else "FAILED", r["check"], r["measured"], r["allowed"],
         "" if r["passed"] else r["meaning"]]
        for r in _records(e.tables["checks"])
    ]  # fmt: skip
    return Section(
        "conformance", "Is it loaded right?",
        ["Our reading against the model's own forward on one unpadded text at a time."],
        tables=[Table("Conformance checks", ["", "check", "measured", "allowed", "means"], rows,
                      open=True)],
    )  # fmt: skip


def _preference(e: Evidence, number: Numbers) -> Section:
    table = e.tables["accuracy"]
    columns = {"pairs": "d", "lineages": "d", "accuracy": ".3f", "low": ".3f", "high": ".3f",
               "ties": "d", "n_effective": ".0f"}  # fmt: skip
    rows: list[list[Cell]] = [
        [g, *(number("preference", f"table/accuracy/{k}/{c}", f) for c, f in columns.items()), note]
        for k, (g, note) in enumerate(zip(table["group"], table["note"], strict=True))
    ]
    points = [
        figures.Row(r["group"].removeprefix("subset="), r["accuracy"], r["low"], r["high"])
        for r in _records(table)
    ]
    margins = e.value.sel(side="margin").values.astype(float)
    scores = e.tables["scores"]
    lengths = [scores[f"characters_{s}"].to_numpy(dtype=float) for s in ("chosen", "rejected")]
    known = np.isfinite(lengths[0]) & np.isfinite(lengths[1])
    ratio = np.log(lengths[0][known] / lengths[1][known])
    quantiles: list[list[Cell]] = [
        [f"{q:.0%}", number("preference", f"table/margins/{k}/margin"),
         number("preference", f"table/margins/{k}/size")]
        for k, q in enumerate(e.tables["margins"]["quantile"])
    ]  # fmt: skip
    head = ["group", *(c.replace("_", " ") for c in columns), "note"]
    tables = [
        Table("Accuracy by group", head, rows),
        Table("Quantiles of the margin", ["quantile", "margin", "size of margin"], quantiles),
    ]
    if "positions" in e.tables:
        tables.append(_positions(e, number))
    if "head_ties" in e.tables:
        tables.append(_head_ties(e, number))
    return Section(
        "preference", "What does it prefer?",
        [
            Markup("Accuracy {}. A tie is neither a win nor a loss and counts half. Intervals "
                   "count lineages (prompts), not rows.").format(
                interval(number, "preference", "accuracy")),
            Markup("Within a prompt, one e-fold of response length changes the score by {} reward"
                   "{}.").format(
                interval(number, "preference", "length.slope"),
                _because(e.interval("length.slope").note)),
        ],
        [
            figures_of(figures.rows(points, "share of pairs with the chosen response ahead",
                                    "Accuracy by group with 95 % intervals", mark=0.5),
                       "Accuracy by group; whiskers are 95 % intervals, the line is a coin."),
            figures_of(figures.histogram(margins, "margin (reward)", "Histogram of margins"),
                       "Margins, chosen minus rejected. Filled: chosen ahead; outlined: behind."),
            figures_of(figures.scatter(ratio, margins[known],
                                       "log(characters chosen / rejected), responses",
                                       "margin (reward)", "Margin against length ratio"),
                       "Margin against the length ratio of the two sides, in the same prompt; "
                       f"at most {figures.MOST_POINTS} pairs are drawn."),
        ],
        tables, labels(e),
    )  # fmt: skip


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as plain mappings."""
    return [{str(k): v for k, v in row.items()} for row in table.to_dict(orient="records")]


def figures_of(svg: Markup, caption: str) -> Figure:
    """A figure with its caption."""
    return Figure(svg, caption)


def _positions(e: Evidence, number: Numbers) -> Table:
    rows: list[list[Cell]] = [
        [p, number("preference", f"table/positions/{k}/items_that_differ", "d"),
         number("preference", f"table/positions/{k}/accuracy", ".3f"),
         number("preference", f"table/positions/{k}/low", ".3f"),
         number("preference", f"table/positions/{k}/high", ".3f")]
        for k, p in enumerate(e.tables["positions"]["position"])
    ]  # fmt: skip
    title = "Native and last read position differ on some texts: both accuracies"
    return Table(title, ["position", "items that differ", "accuracy", "low", "high"], rows, True)


def _head_ties(e: Evidence, number: Numbers) -> Table:
    columns = list(e.tables["head_ties"].columns)
    row: list[Cell] = [number("preference", f"table/head_ties/0/{c}", "d") for c in columns]
    title = (
        "Ties that the model's own head makes in half precision (scores here are read in float32)"
    )
    return Table(title, [c.replace("_", " ") for c in columns], [row])


def _lens(e: Evidence, number: Numbers) -> Section:
    table = e.tables["curve"]
    lines = []
    for reading in ("frozen", "applied"):
        r = table[table["reading"] == reading]
        columns = (r[c].to_numpy(dtype=float) for c in ("depth", "mean_margin", "low", "high"))
        lines.append(figures.Curve(f"norm {reading}", *columns))
    summary_head = ["reading", "median first crossing", "median stable crossing",
                    "sign changes after first", "pairs", "degenerate"]  # fmt: skip
    fields = {"median_first": "g", "median_stable": "g", "share_sign_change_after_first": ".2f",
              "pairs": "d", "degenerate": "d"}  # fmt: skip
    rows: list[list[Cell]] = [
        [r, *(number("lens", f"table/crystallization/{k}/{c}", f) for c, f in fields.items())]
        for k, r in enumerate(e.tables["crystallization"]["reading"])
    ]
    curve_fields = ("mean_margin", "low", "high", "median_share", "share_with_final_sign")
    curve_rows: list[list[Cell]] = [
        [r["reading"], str(r["depth"]),
         *(number("lens", f"table/curve/{k}/{c}") for c in curve_fields)]
        for k, r in enumerate(_records(table))
    ]  # fmt: skip
    return Section(
        "lens", "Where does it form?",
        ["The margin read off the residual stream along the head, depth by depth (0 is the "
         "embedding). With the final norm frozen at the item, the curve is what the layers so far "
         "have written; with the norm applied at each depth, it is what the head would say if the "
         "network ended there. The two can disagree by most of a network, so both are shown.",
         f"{e.value.sizes['pair']} pairs."],
        [figures_of(figures.curves(lines, "depth (layers)", "mean margin (reward)",
                                   "Mean margin by depth under both readings"),
                    "Mean margin by depth, bands are 95 % intervals. Solid: norm frozen; dashed: "
                    "norm applied.")],
        [Table("Crossings of half the final margin", summary_head, rows, open=True),
         Table("The curve in numbers", ["reading", "depth", "mean margin", "low", "high",
                                        "median share", "share with final sign"], curve_rows)],
        labels(e),
    )  # fmt: skip


def _attribution(e: Evidence, number: Numbers) -> Section:
    return _writes(
        e, number, "attribution", "Which layers write it?",
        "What attention and MLP of every layer add to the margin, through the final norm frozen at "
        "each item: the writes, with rounding, add up to the margin exactly. This is where the "
        "margin is written, not what causes it.", None,
    )  # fmt: skip


def _heads(e: Evidence, number: Numbers) -> Section:
    return _writes(
        e, number, "attribution_heads", "Which heads write it?",
        "The same, with attention split by query head; the twenty largest.", 20,
    )  # fmt: skip


def _writes(
    e: Evidence, number: Numbers, name: str, title: str, text: str, top: int | None
) -> Section:
    table = e.tables["writes"]
    names = table["write"].tolist()
    shares = table["share_of_margin"].to_numpy(dtype=float)
    order = list(range(len(table)))
    if top is not None:
        order = sorted(order, key=lambda k: -abs(shares[k]))[:top]
    drawn = [k for k in order if names[k] not in ("bias", "rounding")][:64]
    bars = [figures.Row(names[k], float(shares[k])) for k in drawn]
    columns = ("mean", "low", "high", "mean_size", "share_of_margin")
    rows: list[list[Cell]] = [
        [names[k], *(number(name, f"table/writes/{k}/{c}") for c in columns)] for k in order
    ]
    check = number(name, "table/completeness/0/completeness", ".1e")
    return Section(
        name, title,
        [text, Markup("Without rounding the writes miss the score by at most {} of their size.")
         .format(check)],
        [figures_of(figures.rows(bars, "share of the margin",
                                 f"{title} Share of the margin by write"),
                    "Share of the margin, signed towards its final sign, over all pairs. Filled: "
                    "towards the final margin; outlined: against.")],
        [Table("Writes", ["write", "mean (reward)", "low", "high", "mean size", "share"], rows)],
        labels(e),
    )  # fmt: skip


def _batch_effect(e: Evidence, number: Numbers) -> Section:
    row = "table/summary/0"
    text = Markup(
        "In {} a score depends on what else is in the batch. The margin changes by a median of {} "
        "of the median |margin| (at most {}); {} of {} pairs change sign, {} could."
    ).format(
        e.provenance.dtype,
        number("batch_effect", f"{row}/median_share", ".2%"),
        number("batch_effect", f"{row}/largest_share", ".2%"),
        number("batch_effect", f"{row}/sign_changes", "d"),
        number("batch_effect", f"{row}/pairs", "d"),
        number("batch_effect", f"{row}/could_flip", "d"),
    )
    return Section("batch_effect", "How exact are the scores?", [text], labels=labels(e))


def _pairs(evidence: Mapping[str, Evidence], shown: Pairs, number: Numbers) -> Section:
    curves, sources = evidence.get("token_curves"), evidence.get("source_attribution")
    scale = scales(curves, sources)
    ids = evidence["preference"].tables["scores"]["pair"].tolist()
    rows = []
    for pair in shown:
        k = ids.index(pair.id)
        sides = [
            {
                "name": side,
                "score": number("preference", f"table/scores/{k}/{side}"),
                "text": text_map(curves, sources, pair.id, side, scale),
            }
            for side in ("chosen", "rejected")
        ]
        margin = number("preference", f"table/scores/{k}/margin", "+.3g")
        rows.append({"id": pair.id, "subset": pair.subset, "margin": margin, "sides": sides})
    about = ["The pairs with the highest, the lowest and the smallest margins, of those short "
             "enough for a page."]  # fmt: skip
    full = f"{scale.source:.3g} reward"
    if curves is not None:
        about[0] += (" A prefix score is what the model would give the text cut there; it was "
                     "trained to be read at the end only.")  # fmt: skip
        full = f"{scale.change:.3g} and {full}"
    measured = curves if curves is not None else sources
    return Section(
        "pairs", "Pairs, token by token", list(about),
        labels=labels(measured) if measured is not None else "", pairs=rows,
        has_curves=curves is not None, has_sources=sources is not None, scales=full,
    )  # fmt: skip


__all__ = ["Section", "build_sections", "resolve", "summary"]
