"""Sections of a page of two models: loading, agreement, margins, depth, conditions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from markupsafe import Markup

from reward_lens.evidence import Evidence
from reward_lens.report import figures
from reward_lens.report.causal_figures import paired_bars
from reward_lens.report.comparison_figures import Marks
from reward_lens.report.comparison_figures import margins as margin_figure
from reward_lens.report.comparison_parts import (
    COMPARE,
    LETTERS,
    Models,
    both,
    compared_labels,
    joint_labels,
    names_of,
    stated,
)
from reward_lens.report.folders import by_folder, sources_of
from reward_lens.report.numbers import Numbers
from reward_lens.report.parts import (
    MEAN_INTERVALS,
    Cell,
    Figure,
    Section,
    Table,
    of_pairs,
    records,
    traced_rows,
)
from reward_lens.report.subset_rows import SubsetRows
from reward_lens.wording import counted

READINGS = ("frozen", "applied")


def loading(evidence: Mapping[str, Evidence], models: Models) -> Section:
    """What the two are, and whether each behaves as its checkpoint does."""
    (one, other), sources = models.facts, sources_of(evidence)
    facts: list[list[Cell]] = [
        [k, *(by_folder(x.get(k, ""), sources) for x in (one, other))] for k in {**one, **other}
    ]
    tables = [Table("The two models", ["what", "a", "b"], facts, open=True)]
    for letter, name in zip(LETTERS, names_of("conformance"), strict=True):
        if name not in evidence:
            continue
        checks = records(evidence[name].tables["checks"])
        failed = [c for c in checks if not c["passed"]]
        rows: list[list[Cell]] = [
            ["ok" if c["passed"] else "FAILED", c["check"], c["measured"], c["allowed"],
             *(["" if c["passed"] else c["meaning"]] if failed else [])]
            for c in checks
        ]  # fmt: skip
        head = ["result", "check", "measured", "allowed", *(["means"] if failed else [])]
        title = f"Conformance of {letter}: {len(checks) - len(failed)} of {len(checks)} checks hold"
        tables.append(Table(title, head, rows, open=bool(failed)))
    text = "Our reading against the model's own forward on one unpadded text at a time."
    return Section("loading", "Are both loaded right?", [text], tables=tables)


def agreement(e: Evidence, models: Models, number: Numbers) -> Section:
    """How often both prefer the same side, and which is right how often, over all and by subset."""
    table = e.tables["agreement"]
    shown = SubsetRows.below_first(table, "group")
    drawn, some = table.iloc[shown.which], shown.more
    one, other = (
        [figures.Row(str(g), float(v)) for g, v in zip(drawn["group"], drawn[c], strict=True)]
        for c in ("accuracy_a", "accuracy_b")
    )
    n = of_pairs(int(table["pairs"].iloc[0]))
    shares = compared_labels(e, units="probability", n=n, intervals=MEAN_INTERVALS)
    x_label = "share with the chosen response ahead"
    return Section(
        "agreement", "Do they agree, and which is right?",
        [
            Markup("The share of pairs on which both prefer the same side, or both tie, is {}. A "
                   "pair that one of them ties on counts half.").format(
                stated(number, COMPARE, e, "agreement")),
            Markup("Of the scores, the mean of each prompt taken out: Pearson's correlation {}, "
                   "Spearman's {}. The effective angle between the two is {} radians: 0 is the "
                   "same preference, {:.2f} none in common, {:.2f} the opposite.").format(
                *(stated(number, COMPARE, e, k, ".2f") for k in ("pearson", "spearman", "angle")),
                np.pi / 2, np.pi),
            Markup("The accuracy of a less that of b is {}.").format(
                stated(number, COMPARE, e, "accuracy_difference", "+.3f")),
            "Accuracies are compared pair by pair: what both have right, or both have wrong, says "
            "nothing of which is better. The p value is exact (signs of whole lineages exchanged); "
            "those of the subsets are adjusted for their number (Holm).",
        ],
        [
            Figure(figures.rows(_rows(drawn, "agreement", "low", "high"),
                                "share of pairs that they agree on",
                                "Agreement by subset with 95 % intervals", mark=0.5),
                   f"Agreement by subset{some}; whiskers are 95 % intervals, the line is a half.",
                   shares, (COMPARE,)),
            Figure(paired_bars(one, other, models.legend, x_label, "Accuracy of both by subset"),
                   f"Accuracy of both by subset{some}. Filled: a; outlined: b. The next figure has "
                   f"the differences with their intervals.",
                   compared_labels(e, units="probability", n=n), (COMPARE,)),
            Figure(figures.rows(_rows(drawn, "difference", "difference_low", "difference_high"),
                                "accuracy of a less that of b",
                                "Difference of accuracies by subset with 95 % intervals"),
                   f"Paired difference of the accuracies{some}. Filled: a is right more often; "
                   f"outlined: b is.", shares, (COMPARE,)),
        ],
        [_agreement_table(table, shown, number)],
    )  # fmt: skip


def _rows(table: pd.DataFrame, value: str, low: str, high: str) -> list[figures.Row]:
    columns = table[["group", value, low, high]].itertuples(index=False)
    return [figures.Row(str(g), float(v), float(x), float(y)) for g, v, x, y in columns]


def _agreement_table(table: pd.DataFrame, shown: SubsetRows, number: Numbers) -> Table:
    columns = {"pairs": "d", "lineages": "d", "agreement": ".3f", "low": ".3f", "high": ".3f",
               "accuracy_a": ".3f", "accuracy_b": ".3f", "difference": "+.3f",
               "difference_low": "+.3f", "difference_high": "+.3f", "only_a": "d", "only_b": "d",
               "ties_of_one": "d", "ties_of_both": "d", "p": ".2g",
               "p_adjusted": ".2g"}  # fmt: skip
    head = ["group", "pairs", "lineages", "agreement", "low", "high", "accuracy a", "accuracy b",
            "a less b", "low", "high", "only a right", "only b right", "one ties", "both tie",
            "p, exact", "p, Holm", "note"]  # fmt: skip
    rows = traced_rows(number, COMPARE, table, "agreement", shown.which, ["group", "note"], columns)
    return Table(
        f"Agreement and accuracy by subset{shown.more}", head, [[r[0], *r[2:], r[1]] for r in rows]
    )


def margins(e: Evidence, models: Models) -> Section:
    """The margins of both against each other, each in its own within-prompt SDs."""
    table = e.tables["pairs"]
    a, b = (table[f"margin_{letter}"].to_numpy(dtype=float) for letter in LETTERS)
    real = np.isfinite(a) & np.isfinite(b)
    if not real.any():
        return Section(
            "margins",
            "Where do they part?",
            ["A model that scores all responses of a prompt alike has no such scale."],
        )
    flip = (table["agreement"] == "flip").to_numpy()
    agreed, flips = (
        Marks(name, a[where & real], b[where & real])
        for name, where in (("not a flip", ~flip), ("flip", flip))
    )
    one, other = (f"margin of {x} (within-prompt SDs)" for x in LETTERS)
    drawn = margin_figure(agreed, flips, one, other, "Margins of both models")
    who = "; ".join(models.legend)
    return Section(
        "margins", "Where do they part?",
        ["A flip is a pair on which one model prefers the chosen response and the other the "
         "rejected one.",
         "A reward is fixed only up to its scale and a shift per prompt, so that margins of two "
         "models cannot be set against each other in reward. Each model's are divided by the "
         "standard deviation of its own scores within a prompt.",
         "Upper right: both prefer the chosen response. Lower left: both prefer the rejected one. "
         "Upper left, lower right: they flip. The pairs are listed below."],
        [Figure(drawn, f"Margins of both, pair by pair ({who}). Crosses are flips. At most "
                       f"{figures.MOST_POINTS} of each are drawn.",
                compared_labels(e, units="within-prompt SD", n=of_pairs(int(real.sum()))),
                (COMPARE,))],
    )  # fmt: skip


def depths(evidence: Mapping[str, Evidence], number: Numbers) -> Section | None:
    """How the margin forms over depth in both, under both readings; nothing without both."""
    found = both(evidence, "lens")
    if found is None:
        return None
    compared = evidence[COMPARE]
    n = "n = " + ", ".join(
        f"{counted(e.value.sizes['pair'], 'pair')} ({letter})"
        for letter, e in zip(LETTERS, found, strict=True)
    )
    drawn = []
    if frozen := _frozen(compared):
        drawn.append(Figure(
            figures.curves(frozen, "fraction of depth", "share of the final margin",
                           "Median share of the final margin by depth, norm frozen"),
            "Norm frozen: median share of the final margin by depth; bands hold the middle half of "
            "the pairs. Solid: a; dashed: b.",
            compared_labels(compared, units="share", n=n,
                            intervals="bands are quartiles over pairs, not intervals"),
            (COMPARE,),
        ))  # fmt: skip
    if applied := _applied(found):
        drawn.append(Figure(
            figures.curves(applied, "fraction of depth", "share of the final margin",
                           "Median share of the final margin by depth, norm applied"),
            "Norm applied at each depth: median share of the final margin. Solid: a; dashed: b.",
            joint_labels(*found, units="share", n=n), names_of("lens"),
        ))  # fmt: skip
    return Section(
        "depth", "Does the preference form at the same depth?",
        ["The margin read off the residual stream along each model's own head, as a share of its "
         "final value: 0 is the embedding, 1 the last layer. With the final norm frozen at the "
         "item, the curve is what the layers so far have written; with the norm applied, what the "
         "head would say if the network ended there."],
        drawn, [_crossings(found, number)],
    )  # fmt: skip


def _frozen(e: Evidence) -> list[figures.Curve]:
    """Medians and quartiles of both; nothing if a model has no margin to take a share of."""
    if "depth" not in e.tables or e.tables["depth"]["signal"].nunique() < len(LETTERS):
        return []
    columns = ["fraction", "median_share", "lower_quartile", "upper_quartile"]
    tables = dict(list(e.tables["depth"].groupby("signal")))
    return [
        figures.Curve(x, *(tables[x][column].to_numpy(dtype=np.float64) for column in columns))
        for x in LETTERS
    ]


def _applied(found: tuple[Evidence, Evidence]) -> list[figures.Curve]:
    """Medians of both, as far as they are known."""
    lines = []
    for letter, e in zip(LETTERS, found, strict=True):
        table = e.tables["curve"]
        share = table.loc[table["reading"] == "applied", "median_share"].to_numpy(dtype=np.float64)
        none = np.full(len(share), np.nan)
        lines.append(figures.Curve(letter, e.value["fraction"].values, share, none, none))
    return lines if all(np.isfinite(line.y).all() for line in lines) else []


def _crossings(found: tuple[Evidence, Evidence], number: Numbers) -> Table:
    fields = {"median_first": "g", "median_stable": "g", "share_sign_change_after_first": ".2f",
              "pairs": "d", "degenerate": "d"}  # fmt: skip
    rows: list[list[Cell]] = []
    for letter, name, e in zip(LETTERS, names_of("lens"), found, strict=True):
        known = {i.name for i in e.uncertainty}
        for k, reading in enumerate(e.tables["crystallization"]["reading"]):
            key = f"{reading}.first"
            rows.append([
                letter, f"norm {reading}", str(e.value.sizes["depth"] - 1),
                *(number(name, f"table/crystallization/{k}/{c}", f) for c, f in fields.items()),
                stated(number, name, e, key, ".1f") if key in known else "",
            ])  # fmt: skip
    head = ["model", "reading", "layers", "median first crossing", "median stable crossing",
            "sign changes after first", "pairs", "degenerate", "mean first crossing"]  # fmt: skip
    return Table("Crossings of half the final margin, in layers", head, rows, open=True)


def conditions(e: Evidence, missing: Mapping[str, str], left_out: Mapping[str, str]) -> Section:
    """What was dropped, joined or not measured."""
    said: list[list[Cell]] = [
        [str(c), by_folder(str(v), sources_of({COMPARE: e}))]
        for c, v in e.tables["conditions"].itertuples(index=False)
    ]
    sources = sources_of({COMPARE: e})
    tables = [Table("Conditions", ["condition", "value"], said, open=True)]
    if left_out:
        rows: list[list[Cell]] = [[k, by_folder(why, sources)] for k, why in left_out.items()]
        tables.append(Table(f"{counted(len(rows), 'pair')} left out", ["pair", "why"], rows))
    if missing:
        rows = [[k, by_folder(why, sources)] for k, why in missing.items()]
        tables.append(Table("What did not run, and why", ["measured", "reason"], rows, open=True))
    text = ["What was counted, joined and left out, for both models alike."]
    return Section("conditions", "Under which conditions?", [*text], tables=tables)
