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
        ) + _against_half(i),
    ))  # fmt: skip
    if "bias_battery" in evidence:
        said.append(("What is it biased to?", verdict(evidence["bias_battery"], number, _NAMED)))
    said.append(("Does length matter?", _length(evidence["preference"], number)))
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
    if "patch_grid" in evidence:
        said.append(("What causes it?", _largest_cause(evidence, number)))
    said.append(("How far can this be trusted?", trust_answer(evidence)))
    return said


def _length(preference: Evidence, number: Numbers) -> Cell:
    """What length does within a prompt, over all answers, and over whole texts.

    The last follows the prompts as much as the answers: where it alone is told from none, no
    preference for an answer's length is shown by it.
    """
    note = because(preference.interval("length.slope").note)
    said = Markup(
        "Within a prompt, one e-fold of length changes the score by {} reward{}. Over all prompts, "
        "the rank correlation of score and length is {}"
    ).format(interval(number, "preference", "length.slope"), note,
             interval(number, "preference", "length.correlation", ".2f"))  # fmt: skip
    if "length.whole_text" not in {i.name for i in preference.uncertainty}:
        return said + "."
    said += Markup(" for answers and {} for whole texts.").format(
        interval(number, "preference", "length.whole_text", ".2f")
    )
    answers = [preference.interval(f"length.{k}") for k in ("slope", "correlation")]
    if _told(preference.interval("length.whole_text")) and not any(map(_told, answers)):
        said += (
            " The last follows the length of the prompts: it shows no preference for an answer's "
            "length."
        )
    return said


def _told(i: Interval) -> bool:
    """Whether an interval leaves out zero; not where there is none."""
    return i.low > 0 or i.high < 0


def _largest_cause(evidence: Mapping[str, Evidence], number: Numbers) -> Cell:
    """The component with the largest effect, and whether attribution names the same ones."""
    table = evidence["patch_grid"].tables["components"]
    sizes = table.groupby("component", sort=False)["mean_size"].mean()
    name = sizes.idxmax()
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
    if "compare_views" in evidence and evidence["compare_views"].uncertainty:
        key = evidence["compare_views"].uncertainty[0].name
        text += Markup(" Its rank by what it writes need not be its rank by effect: the two agree "
                       "to a rank correlation of {}.").format(
            interval(number, "compare_views", key, ".2f"))  # fmt: skip
    return text


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
