"""Parts of the section of accuracy: margins by subset, how sure it is, where it is most wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from markupsafe import Markup

from reward_lens.evidence import Evidence
from reward_lens.report import figures
from reward_lens.report.accuracy_figures import Bin, reliability
from reward_lens.report.numbers import Numbers
from reward_lens.report.parts import (
    MEAN_INTERVALS,
    Figure,
    Part,
    Table,
    TextPair,
    because,
    interval,
    labels,
    of_pairs,
    traced_rows,
)
from reward_lens.report.subset_rows import SubsetRows
from reward_lens.wording import counted

#: Errors whose texts are shown, and characters of a text; the evidence file has all of them.
MOST_ERRORS, MOST_CHARACTERS = 10, 600
SIDES = ("chosen", "rejected")


def accuracy_parts(evidence: Mapping[str, Evidence], number: Numbers) -> list[Part]:
    """What there is of margins by subset, sections, reliability and errors."""
    makers = {
        "margin_distribution": _margins,
        "section_accuracy": _sections,
        "reliability_curve": _reliability,
        "worst_errors": _errors,
    }
    return [make(evidence[name], number) for name, make in makers.items() if name in evidence]


def _margins(e: Evidence, number: Numbers) -> Part:
    name, table = "margin_distribution", e.tables["summary"]
    shown = SubsetRows.below_first(table, "subset")
    columns_drawn = ["subset", "mean", "low", "high"]
    drawn = [
        figures.Row(str(s), float(m), float(a), float(b))
        for s, m, a, b in table.iloc[shown.which][columns_drawn].itertuples(index=False)
    ]
    columns = {"pairs": "d", "lineages": "d", "mean": ".3g", "low": ".3g", "high": ".3g",
               "median": ".3g", "median_size": ".3g", "sd": ".3g", "share_right": ".2f",
               "ties": "d"}  # fmt: skip
    rows = traced_rows(number, name, table, "summary", shown.which, ["subset", "note"], columns)
    head = ["subset", *(c.replace("_", " ") for c in columns), "note"]
    pairs = int(table["pairs"].iloc[0])
    return Part(
        "How far apart are the two sides?",
        [Markup("The mean margin is {} reward.").format(interval(number, name, "margin", ".3g"))],
        [Figure(
            figures.rows(drawn, "mean margin (reward)", "Mean margin by subset"),
            f"Mean margin by subset{shown.more}; whiskers are 95 % intervals. Filled: the chosen "
            f"response ahead; outlined: behind.",
            labels(e, n=of_pairs(pairs), intervals=MEAN_INTERVALS), (name,),
        )],
        [Table(f"Margins by subset{shown.more}", head, [[r[0], *r[2:], r[1]] for r in rows])],
    )  # fmt: skip


def _sections(e: Evidence, number: Numbers) -> Part:
    name, table = "section_accuracy", e.tables["sections"]
    columns = {"pairs": "d", "lineages": "d", "accuracy": ".3f", "low": ".3f", "high": ".3f",
               "ties": "d"}  # fmt: skip
    rows = traced_rows(number, name, table, "sections", list(range(len(table))),
                       ["group", "note"], columns)  # fmt: skip
    return Part(
        "How does RewardBench count it?",
        ["Subsets are weighted within their section, and sections among each other, as RewardBench "
         "publishes them; a tie counts as a loss."],
        tables=[Table("Accuracy by section", ["section", *columns, "note"],
                      [[r[0], *r[2:], r[1]] for r in rows], open=True)],
    )  # fmt: skip


def _reliability(e: Evidence, number: Numbers) -> Part:
    name, curve, summary = "reliability_curve", e.tables["curve"], e.tables["ece"]
    at = [int(k) for k in np.flatnonzero(curve["pairs"] > 0)]
    columns = {"low": ".2f", "high": ".2f", "pairs": "d", "lineages": "d", "predicted": ".3f",
               "observed": ".3f", "observed_low": ".3f", "observed_high": ".3f"}  # fmt: skip
    quantities = summary["quantity"].tolist()
    null = number(name, f"table/ece/{quantities.index('calibrated: mean')}/value", ".3f")
    return Part(
        "Is it as sure as it should be?",
        [
            Markup(
                "A reward trained with the Bradley–Terry loss states, with each margin, how "
                "probable it is that the preferred side is the better one. The expected "
                "calibration error is {}{}. Noise alone would give a calibrated signal {} on these "
                "pairs, on average."
            ).format(interval(number, name, "ece"), because(e.interval("ece").note), null),
            Markup("Confidence less the share that is right: {}{}. {}").format(
                interval(number, name, "overconfidence"),
                because(e.interval("overconfidence").note),
                _sure(e),
            ),
        ],
        [Figure(
            reliability(_bins(curve.iloc[at])),
            "Share of pairs whose preferred side is the chosen one, by stated probability; "
            "whiskers are 95 % intervals, numbers are pairs; on the dashed line the two are "
            "equal.",
            labels(e, n=of_pairs(int(curve["pairs"].sum())), intervals=MEAN_INTERVALS),
            (name,),
        )],
        [Table("Confidence and outcome by bin",
               ["confidence from", "to", "pairs", "lineages", "stated", "right", "low", "high"],
               traced_rows(number, name, curve, "curve", at, [], columns))],
    )  # fmt: skip


def _bins(curve: pd.DataFrame) -> list[Bin]:
    columns = ["predicted", "observed", "observed_low", "observed_high", "pairs"]
    return [
        Bin(float(x), float(y), float(low), float(high), int(n))
        for x, y, low, high, n in curve[columns].itertuples(index=False)
    ]


def _sure(e: Evidence) -> str:
    """Over- or underconfident, by the interval; what no interval says is not said."""
    i = e.interval("overconfidence")
    if math.isnan(i.low):
        return "There is no interval to judge it by."
    if i.low > 0:
        return "It is overconfident on these pairs."
    if i.high < 0:
        return "It is underconfident on these pairs."
    return "Neither over- nor underconfidence is told from none."


def _errors(e: Evidence, number: Numbers) -> Part:
    name, table = "worst_errors", e.tables["errors"]
    wrong = int(e.provenance.parameters["errors"])
    if not len(table):
        return Part("Where is it most wrong?", ["It prefers no rejected response on these pairs."])
    texts = []
    for k, row in enumerate(table.head(MOST_ERRORS).to_dict("records")):
        margin, sure = (
            number(name, f"table/errors/{k}/{c}", f)
            for c, f in (("margin", ".3g"), ("confidence", ".0%"))
        )
        scores = [number(name, f"table/errors/{k}/score_{s}") for s in SIDES]
        texts.append(TextPair(
            str(row["pair"]), str(row["subset"]),
            Markup("margin {}, {} sure of the wrong side").format(margin, sure),
            _cut(row["prompt"]),
            [(s, n, _cut(row[s])) for s, n in zip(SIDES, scores, strict=True)],
        ))  # fmt: skip
    shown = f"the {len(texts)} worst" if len(texts) < wrong else "all of them"
    return Part(
        "Where is it most wrong?",
        [
            f"On {counted(wrong, 'pair')} the rejected response is ahead; here "
            f"{'it is' if wrong == 1 else f'are {shown}'}, with texts."
        ],
        labels=labels(e, n=of_pairs(len(texts))),
        texts=texts,
    )


def _cut(text: object) -> str:
    """A text as it is, or its beginning and how much is not shown."""
    whole = str(text)
    left = len(whole) - MOST_CHARACTERS
    return whole if left <= 0 else f"{whole[:MOST_CHARACTERS]} … ({left} more characters)"
