"""The section of biases: what is rewarded that has nothing to do with what is said."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from markupsafe import Markup

from reward_lens.evidence import Evidence
from reward_lens.report import figures
from reward_lens.report.accuracy_figures import Effect, effects
from reward_lens.report.numbers import Numbers
from reward_lens.report.parts import (
    MEAN_INTERVALS,
    Cell,
    Figure,
    Part,
    Section,
    Table,
    because,
    interval,
    labels,
    of_pairs,
    traced_rows,
)

NAME, STYLE = "bias_battery", "style_accuracy"
#: Effects that the figure shows, and named ones that are put in words.
MOST, MOST_NAMED = 24, 6
#: Effects that are told from zero, of which so many are put in words where none is named.
_MOVES, _ALPHA = 3, 0.05
_NONE_NAMED = (
    "No bias is named: no effect lies wholly beyond what random heads on the same trunk show. That "
    "proves no absence."
)
_FEW = " On this trunk random heads show much of what its own head does, so little can be named."
_LEVELS = ("easy", "normal", "hard")


def biases(evidence: Mapping[str, Evidence], number: Numbers) -> Section | None:
    """The section, with what there is of the battery, of style and of length."""
    battery = evidence.get(NAME)
    parts = [_style(evidence[STYLE], number)] if STYLE in evidence else []
    if battery is None:
        return Section("biases", "What is it biased to?", parts=parts) if parts else None
    table = battery.tables["effects"]
    return Section(
        "biases",
        "What is it biased to?",
        [verdict(battery, number), *_how(battery, number)],
        [_figure(battery, table)],
        _tables(battery, table, number),
        parts=parts,
    )


def named_rows(table: pd.DataFrame) -> list[int]:
    """Rows of the named effects, the largest for their threshold first."""
    size = table["mean"].abs() / table["threshold"]
    named = np.flatnonzero(table["named"].to_numpy())
    return [int(k) for k in named[np.argsort(-size.to_numpy()[named], kind="stable")]]


def verdict(battery: Evidence, number: Numbers, most: int = MOST_NAMED) -> Markup:
    """The named biases in words with their sizes, or that nothing is named and what that means.

    Places of one edit are named together. A phrase of a tone that does no more than a sentence that
    says nothing, at the same place, is told apart: what is rewarded there is the sentence.
    """
    table = battery.tables["effects"]
    named = named_rows(table)
    if not named:
        few = str(battery.tables["null"]["note"].iloc[0])
        return Markup("{}{}{}").format(_NONE_NAMED, _FEW if few else "", _moves(table, number))
    plain = like_neutral(battery)
    groups: dict[tuple[str, bool], list[int]] = {}
    for k in named:
        if table["edit"].iloc[k] not in plain:
            key = (str(table["name"].iloc[k]), bool(table["mean"].iloc[k] > 0))
            groups.setdefault(key, []).append(k)
    said = [_in_words(table, rows, number) for rows in list(groups.values())[:most]]
    if len(groups) > most:
        said.append(Markup("{} more, in the table").format(len(groups) - most))
    others = {str(table["name"].iloc[k]) for k in named} - {name for name, _ in groups}
    if tones := [n for n in dict.fromkeys(table["name"].astype(str)) if n in others]:
        said.append(Markup("no more than any added sentence does: {}").format(", ".join(tones)))
    return Markup("Named, in median |margins|: {}.").format(Markup("; ").join(said))


def _moves(table: pd.DataFrame, number: Numbers) -> Markup:
    """The largest effects that are told from zero: the score moves, whatever random heads do."""
    told = np.flatnonzero(table["p_adjusted"].to_numpy(dtype=float) < _ALPHA)
    if not len(told):
        return Markup(" No effect is told from zero either.")
    order = told[np.argsort(-table["mean"].abs().to_numpy()[told], kind="stable")]
    said = [
        Markup("{} {} ({} to {})").format(table["edit"].iloc[k], *(
            number(NAME, f"table/effects/{k}/{c}", "+.2f") for c in ("mean", "low", "high")))
        for k in order[:_MOVES].tolist()
    ]  # fmt: skip
    return Markup(
        " The score does move: {} of {} edits are told from zero (Holm), the largest in median "
        "|margins| {}."
    ).format(len(told), len(table), Markup("; ").join(said))


def like_neutral(battery: Evidence) -> set[str]:
    """Named phrases whose effect is not told from that of a sentence that says nothing."""
    if "against_neutral" not in battery.tables:
        return set()
    effects_of = battery.tables["effects"].set_index("edit")["mean"]
    tone = battery.tables["against_neutral"].set_index("edit")
    up = effects_of.loc[tone.index] > 0
    beyond = (up & (tone["low"] > 0)) | (~up & (tone["high"] < 0))
    return set(tone.index[~beyond].astype(str))


def _in_words(table: pd.DataFrame, rows: list[int], number: Numbers) -> Markup:
    """The largest effect of an edit with its interval, and the other places it is named at."""
    first, *others = rows
    mean, low, high = (
        number(NAME, f"table/effects/{first}/{c}", "+.2f") for c in ("mean", "low", "high")
    )
    places = " and ".join(str(table["position"].iloc[k]) for k in others)
    return Markup("{} by {} (95 % interval {} to {}{})").format(
        table["direction"].iloc[first], mean, low, high, f"; also at the {places}" if places else ""
    )


def _how(battery: Evidence, number: Numbers) -> list[Cell]:
    """How the verdict is reached, how often it is reached wrongly, and what weakens it."""
    null = battery.tables["null"]
    unit = {c: number(NAME, f"table/unit/0/{c}", f)
            for c, f in (("responses", "d"), ("pairs", "d"), ("median_margin", ".3g"))}  # fmt: skip
    tested = {c: number(NAME, f"table/null/0/{c}", f)
              for c, f in (("heads", "d"), ("naming_any", "d"), ("test_heads", "d"),
                           ("low", ".1%"), ("high", ".1%"))}  # fmt: skip
    said: list[Cell] = [
        Markup("{} responses of {} pairs are edited in ways that should not matter, and scored "
               "again. An effect is the edited score minus the original one, in units of the "
               "median |margin| of these pairs ({} reward).").format(*unit.values()),
        Markup("A bias is named where its interval lies wholly beyond a threshold: what the "
               "largest of all effects of {} random heads on the same trunk stays below 19 times "
               "in 20. Of other random heads, {} of {} would be said to have a bias (95 % interval "
               "{} to {}). Being told from zero is no verdict: random heads react to nearly every "
               "edit.").format(*tested.values()),
    ]  # fmt: skip
    if note := str(null["note"].iloc[0]):
        directions = number(NAME, "table/null/0/directions", ".3g")
        said.append(Markup("By their participation ratio the margins of the states vary in {} "
                           "directions: {}.").format(directions, note))  # fmt: skip
    return said


def _figure(battery: Evidence, table: pd.DataFrame) -> Figure:
    """The effects that are largest for their threshold, in the table's order."""
    size = (table["mean"].abs() / table["threshold"]).fillna(-1.0).to_numpy()
    order = np.lexsort((-size, ~table["named"].to_numpy()))  # the named ones before the others
    chosen = np.sort(order[:MOST])
    drawn = [
        Effect(
            str(row["edit"]),
            float(row["mean"]),
            float(row["low"]),
            float(row["high"]),
            float(row["threshold"]),
            bool(row["named"]),
        )
        for _, row in table.iloc[chosen].iterrows()
    ]
    some = "" if len(drawn) == len(table) else f", the {len(drawn)} largest for their threshold"
    responses = int(battery.tables["unit"]["responses"].iloc[0])
    return Figure(
        effects(drawn, "change of the score (median |margins|)", "Effects of edits"),
        f"Mean change of the score by edit and place{some}. Filled: raises it; outlined: lowers "
        f"it; whiskers: 95 % intervals; brackets: the smallest effect that counts, on either side. "
        f"▸ marks the named ones: their whiskers lie wholly outside the brackets.",
        labels(battery, units="share", n=f"n = at most {responses} responses",
               intervals="95 % intervals (cluster-t over lineages)"),
        (NAME,),
    )  # fmt: skip


def _tables(battery: Evidence, table: pd.DataFrame, number: Numbers) -> list[Table]:
    columns = {"mean": "+.2f", "low": "+.2f", "high": "+.2f", "threshold": ".2f",
               "p_adjusted": ".2g", "n": "d", "lineages": "d"}  # fmt: skip
    head = ["edit", "verdict", "effect", "low", "high", "threshold", "p, Holm",
            "responses", "lineages", "finding", "note"]  # fmt: skip
    rows = traced_rows(number, NAME, table, "effects", list(range(len(table))), ["edit"],
                       columns)  # fmt: skip
    said = table[["named", "direction", "note"]].itertuples(index=False)
    found = [
        Table("Every edit: effect, threshold, verdict", head, [
            [row[0], "named" if named else "", *row[1:], str(direction), str(note)]
            for row, (named, direction, note) in zip(rows, said, strict=True)
        ])
    ]  # fmt: skip
    if "against_neutral" in battery.tables:
        tone = battery.tables["against_neutral"]
        columns = {"n": "d", "difference": "+.2f", "low": "+.2f", "high": "+.2f",
                   "p_adjusted": ".2g"}  # fmt: skip
        rows = traced_rows(number, NAME, tone, "against_neutral", list(range(len(tone))),
                           ["edit"], columns)  # fmt: skip
        found.append(Table(
            "A sentence of a tone, less a sentence that says nothing at the same place",
            ["edit", "responses", "difference", "low", "high", "p, Holm"], rows,
        ))  # fmt: skip
    examples = battery.tables["examples"]
    shown = table["edit"].iloc[named_rows(table)].tolist() or examples["edit"].tolist()
    texts: list[list[Cell]] = [
        [str(e), str(before), str(after)]
        for e, before, after in examples.itertuples(index=False)
        if e in shown
    ]
    what = "named edits" if table["named"].any() else "edits"
    return [*found, Table(f"What the {what} do to a text", ["edit", "before", "after"], texts)]


def _style(e: Evidence, number: Numbers) -> Part:
    """Accuracy where style speaks for, or against, the better answer; and score against length."""
    text: list[Cell] = []
    drawn: list[Figure] = []
    if any(i.name == "easy_less_hard" and i.n for i in e.uncertainty):
        pairs = number(STYLE, "interval/easy_less_hard/n", "d")
        text.append(Markup(
            "Both responses of {} pairs are written plainly, longer, and longer with markdown, and "
            "every style meets every other. Easy: the chosen response has the richer style; "
            "normal: the same; hard: the plainer. From easy to hard the accuracy falls by {}."
        ).format(pairs, interval(number, STYLE, "easy_less_hard")))  # fmt: skip
        points = [
            figures.Row(n, i.estimate, i.low, i.high) for n in _LEVELS for i in (e.interval(n),)
        ]
        drawn.append(Figure(
            figures.rows(points, "share with the chosen response ahead",
                         "Accuracy by style with 95 % intervals", mark=0.5),
            "Accuracy where style is with, even with, or against the chosen response; whiskers are "
            "95 % intervals, the line is a coin.",
            labels(e, n=of_pairs(e.interval("easy_less_hard").n), intervals=MEAN_INTERVALS),
            (STYLE,),
        ))  # fmt: skip
    else:
        text.append("No pair can be written in all styles, so that style is not controlled here.")
    text.append(
        Markup("Within a prompt, one e-fold of length changes the score by {} median |margins|{}, "
               "and the rank correlation of score and length is {}{}.").format(
            *(said for name in ("length.slope", "length.correlation")
              for said in (interval(number, STYLE, name, ".2f"), because(e.interval(name).note))))
    )  # fmt: skip
    return Part("Does style or length decide?", text, drawn, _style_tables(e, number))


def _style_tables(e: Evidence, number: Numbers) -> list[Table]:
    levels, observed = e.tables["levels"], e.tables["observed"]
    columns = {"accuracy": ".3f", "low": ".3f", "high": ".3f"}
    found = []
    if len(levels):
        rows = traced_rows(number, STYLE, levels, "levels", list(range(len(levels))),
                           ["level", "note"], {"n": "d", "lineages": "d", **columns})  # fmt: skip
        found.append(Table("Accuracy by style", ["level", "comparisons", "lineages", *columns,
                           "note"], [[r[0], *r[2:], r[1]] for r in rows]))  # fmt: skip
    rows = traced_rows(number, STYLE, observed, "observed", list(range(len(observed))),
                       ["of", "side", "note"], {"pairs": "d", **columns, "ties": "d"})  # fmt: skip
    found.append(Table(
        "Accuracy of the pairs as they are, by which side has more",
        ["of", "side", "pairs", *columns, "ties", "note"], [[*r[:2], *r[3:], r[2]] for r in rows],
    ))  # fmt: skip
    return found
