"""The first screen: answers to what a reader asks first."""

from __future__ import annotations

import math
from collections.abc import Mapping

from markupsafe import Markup

from reward_lens.evidence import Evidence, Interval
from reward_lens.report.biases import verdict
from reward_lens.report.numbers import Numbers
from reward_lens.report.parts import Cell, because, interval
from reward_lens.report.standings import trust_answer

#: Named biases on the first screen.
_NAMED = 3


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
        ) + _against_half(i) + _by_subset(evidence["preference"], number),
    ))  # fmt: skip
    if "bias_battery" in evidence:
        said.append(("What is it biased to?", verdict(evidence["bias_battery"], number, _NAMED)))
    said.append(("Does length matter?", _length(evidence["preference"], number)))
    if "lens" in evidence:
        said.append((
            "Where does the preference form?",
            Markup("The median margin first reaches half its final value at depth {} by what the "
                   "layers so far have written (norm frozen), at depth {} by what the head would "
                   "say there (norm applied), of {} layers.").format(
                number("lens", "table/crystallization/0/median_first", "g"),
                number("lens", "table/crystallization/1/median_first", "g"),
                int(evidence["lens"].value.sizes["depth"]) - 1,
            ),
        ))  # fmt: skip
    if "patch_grid" in evidence:
        said.append(("What causes it?", _largest_cause(evidence, number)))
    said.append(("How far can this be trusted?", trust_answer(evidence)))
    return said


def _length(preference: Evidence, number: Numbers) -> Cell:
    """What length does within a prompt, over all answers, and over prompts.

    Where a score follows the prompts' length and not the answers', length over whole texts says
    nothing of a preference among answers.
    """
    known = {i.name.removeprefix("length."): i for i in preference.uncertainty
             if i.name.startswith("length.")}  # fmt: skip
    said = Markup(
        "Within a prompt, one e-fold of length (2.7 times as long) changes the score by {} reward"
        "{}. Over all prompts, the rank correlation of score and length is {} for answers"
    ).format(interval(number, "preference", "length.slope"), because(known["slope"].note),
             interval(number, "preference", "length.correlation", ".2f"))  # fmt: skip
    if not {"prompt", "whole_text"} <= known.keys():
        return said + "."
    said += Markup(", {} for prompts and {} for whole texts as they were read.").format(
        *(interval(number, "preference", f"length.{k}", ".2f") for k in ("prompt", "whole_text"))
    )
    answers = [known["slope"], known["correlation"]]
    none_told = all(i.low <= 0 <= i.high for i in answers)  # not where there is no interval
    if _told(known["whole_text"]) and _told(known["prompt"]) and none_told:
        said += (
            " What whole texts show follows the length of the prompts: it is no preference for an "
            "answer's length."
        )
    return said


def _told(i: Interval) -> bool:
    """Whether an interval leaves out zero; not where there is none."""
    return i.low > 0 or i.high < 0


def _largest_cause(evidence: Mapping[str, Evidence], number: Numbers) -> Cell:
    """The component with the largest effect, and whether attribution names the same ones."""
    table = evidence["patch_grid"].tables["components"]
    sizes = table.groupby("component", sort=False)["mean_size"].mean().fillna(0.0)
    name = str(sizes.idxmax())
    if not sizes.max() > 0:
        return f"None of {len(sizes)} components has an effect when it is exchanged."
    parts = [
        Markup("{} of the margin ({})").format(
            number("patch_grid", f"table/components/{k}/share_of_margin", ".0%"),
            {"noise": "lost", "denoise": "gained"}[direction],
        )
        for k, direction in enumerate(table["direction"])
        if table["component"].iloc[k] == name
    ]
    text = Markup(
        "Of {} components, {} has the largest effect when it alone is exchanged between the sides: "
        "{}."
    ).format(len(sizes), name, Markup(" and ").join(parts))
    if "attribution" in evidence:
        writes = evidence["attribution"].tables["writes"]["write"].tolist()
        if name in writes:
            path = f"table/writes/{writes.index(name)}/share_of_margin"
            share = number("attribution", path, ".0%")
            text += Markup(" It writes {} of the margin itself: what it does beyond goes through "
                           "others.").format(share)  # fmt: skip
    return text


def _by_subset(preference: Evidence, number: Numbers) -> Markup:
    """On which subsets it is told from a coin: a mean may be the work of one of them."""
    table = preference.tables["accuracy"]
    rows = [k for k, g in enumerate(table["group"]) if str(g).startswith("subset=")]
    if len(rows) < 2:
        return Markup("")
    rows_of = table.iloc[rows]
    sure = ~rows_of["note"].str.contains("doubtful")
    above = [k for k, good in zip(rows, sure & (rows_of["low"] > 0.5), strict=True) if good]
    below = [k for k, bad in zip(rows, sure & (rows_of["high"] < 0.5), strict=True) if bad]
    said = [
        Markup("{} {}").format(
            table["group"].iloc[k].removeprefix("subset="),
            number("preference", f"table/accuracy/{k}/accuracy", ".2f"),
        )
        for k in sorted(above, key=lambda k: -table["accuracy"].iloc[k])[:_NAMED]
    ]
    more = f" and {len(above) - _NAMED} more" if len(above) > _NAMED else ""
    which = Markup(" ({}{})").format(Markup(", ").join(said), more) if said else ""
    worse = f", worse than one on {len(below)}" if below else ""
    return Markup(" By itself better than a coin on {} of {} subsets{}{}.").format(
        len(above), len(rows), which, worse
    )


def _listed(names: list[str]) -> str:
    return f" (failed: {', '.join(names)})" if names else ""


def _against_half(i: Interval) -> str:
    """A verdict against a coin, or why there is none."""
    if math.isnan(i.low):
        return f" No interval: {i.note}."
    if "doubtful" in i.note:
        return f" No verdict: {i.note}."
    if i.low > 0.5:
        return " Better than a coin."
    return " Worse than a coin." if i.high < 0.5 else " Not told apart from a coin."
