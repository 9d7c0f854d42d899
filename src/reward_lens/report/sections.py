"""The sections of the page: each turns one evidence into text, figures and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from markupsafe import Markup

from reward_lens.evidence import Evidence
from reward_lens.report import figures
from reward_lens.report.accuracy import accuracy_parts
from reward_lens.report.biases import biases
from reward_lens.report.causes import causes
from reward_lens.report.folders import by_folder, sources_of
from reward_lens.report.numbers import Numbers, resolve
from reward_lens.report.pair_texts import pair_section
from reward_lens.report.parts import (
    MEAN_INTERVALS,
    Cell,
    Figure,
    Section,
    Table,
    because,
    interval,
    labels,
    records,
    traced_rows,
)
from reward_lens.report.standings import standings_section
from reward_lens.report.subset_rows import SubsetRows
from reward_lens.report.summary import summary
from reward_lens.report.words import words_section
from reward_lens.wording import counted


def build_sections(
    evidence: Mapping[str, Evidence], number: Numbers, missing: Mapping[str, str]
) -> list[Section]:
    """Every section whose evidence is there, in reading order; then what did not run."""
    found = [
        _conformance(evidence["conformance"], number),
        replace(
            _preference(evidence["preference"], number), parts=accuracy_parts(evidence, number)
        ),
    ]
    found += [section] if (section := biases(evidence, number)) is not None else []
    makers = {"lens": _lens, "attribution": _attribution, "attribution_heads": _heads}
    found += [make(evidence[k], number) for k, make in makers.items() if k in evidence]
    found += [section] if (section := causes(evidence, number)) is not None else []
    if "batch_effect" in evidence:
        found.append(_batch_effect(evidence["batch_effect"], number))
    found.append(pair_section(evidence, number))
    found += [section] if (section := standings_section(evidence)) is not None else []
    if missing:
        sources = sources_of(evidence)
        rows: list[list[Cell]] = [[k, by_folder(v, sources)] for k, v in missing.items()]
        table = Table("What did not run, and why", ["instrument", "reason"], rows, open=True)
        found.append(Section("missing", "What did not run", tables=[table]))
    found.append(words_section())
    return found


def _conformance(e: Evidence, number: Numbers) -> Section:
    checks = records(e.tables["checks"])
    # What a check means is said where it does not hold.
    failed = [c for c in checks if not c["passed"]]
    head = ["", "check", "measured", "allowed", *(["means"] if failed else [])]
    rows: list[list[Cell]] = [
        ["ok" if c["passed"] else "FAILED", c["check"], c["measured"], c["allowed"],
         *(["" if c["passed"] else c["meaning"]] if failed else [])]
        for c in checks
    ]  # fmt: skip
    return Section(
        "conformance", "Is it loaded right?",
        ["Our reading against the model's own forward on one unpadded text at a time."],
        tables=[Table("Conformance checks", head, rows, open=True)],
    )  # fmt: skip


def _preference(e: Evidence, number: Numbers) -> Section:
    table = e.tables["accuracy"]
    columns = {"pairs": "d", "lineages": "d", "accuracy": ".3f", "low": ".3f", "high": ".3f",
               "ties": "d", "n_effective": ".0f"}  # fmt: skip
    shown = SubsetRows.of(table, "group", ~table["group"].str.startswith("subset="))
    rows = traced_rows(
        number, "preference", table, "accuracy", shown.which, ["group", "note"], columns
    )
    points = [
        figures.Row(r["group"].removeprefix("subset="), r["accuracy"], r["low"], r["high"])
        for r in records(table.iloc[shown.which])
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
    how = labels(e)
    accuracies = labels(e, units="share", intervals=MEAN_INTERVALS)
    tables = [
        Table(f"Accuracy by group{shown.more}", head, [[r[0], *r[2:], r[1]] for r in rows]),
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
                because(e.interval("length.slope").note)),
        ],
        [
            Figure(figures.rows(points, "share of pairs with the chosen response ahead",
                                "Accuracy by group with 95 % intervals", mark=0.5),
                   f"Accuracy by group{shown.more}; whiskers are 95 % intervals, the line is a "
                   f"coin.",
                   accuracies, ("preference",)),
            Figure(figures.histogram(margins, "margin (reward)", "Histogram of margins"),
                   "Margins, chosen minus rejected. Filled: chosen ahead; outlined: behind.", how,
                   ("preference",)),
            Figure(figures.scatter(ratio, margins[known],
                                   "log(characters chosen / rejected), responses",
                                   "margin (reward)", "Margin against length ratio"),
                   "Margin against the length ratio of the two sides, in the same prompt; "
                   f"at most {figures.MOST_POINTS} pairs are drawn.", how, ("preference",)),
        ],
        tables,
    )  # fmt: skip


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
        for k, r in enumerate(records(table))
    ]  # fmt: skip
    return Section(
        "lens", "Where does it form?",
        ["The margin read off the residual stream along the head, depth by depth (0 is the "
         "embedding). With the final norm frozen at the item, the curve is what the layers so far "
         "have written; with the norm applied at each depth, it is what the head would say if the "
         "network ended there. The two can disagree by most of a network, so both are shown.",
         f"{counted(e.value.sizes['pair'], 'pair')}."],
        [Figure(figures.curves(lines, "depth (layers)", "mean margin (reward)",
                               "Mean margin by depth under both readings"),
                "Mean margin by depth, bands are 95 % intervals. Solid: norm frozen; dashed: "
                "norm applied.", labels(e, intervals=MEAN_INTERVALS), ("lens",))],
        [Table("Crossings of half the final margin", summary_head, rows, open=True),
         Table("The curve in numbers", ["reading", "depth", "mean margin", "low", "high",
                                        "median share", "share with final sign"], curve_rows,
               slider=True)],
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
        [Figure(figures.rows(bars, "share of the margin",
                             f"{title} Share of the margin by write"),
                "Share of the margin, signed towards its final sign, over all pairs. Filled: "
                "towards the final margin; outlined: against.", labels(e, units="share"),
                (name,))],
        [Table("Writes", ["write", "mean (reward)", "low", "high", "mean size", "share"], rows)],
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


__all__ = ["Section", "build_sections", "resolve", "summary"]
