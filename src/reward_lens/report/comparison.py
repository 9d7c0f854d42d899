"""The page of two models: its first screen, its sections in order, and the page itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from markupsafe import Markup

from reward_lens.data import Pairs
from reward_lens.evidence import Evidence
from reward_lens.report.comparison_biases import BATTERY, STYLE, alike, biases
from reward_lens.report.comparison_pairs import compared_pairs
from reward_lens.report.comparison_parts import (
    ALPHA,
    COMPARE,
    LETTERS,
    Models,
    both,
    names_of,
    stated,
)
from reward_lens.report.comparison_sections import (
    agreement,
    conditions,
    depths,
    loading,
    margins,
)
from reward_lens.report.numbers import Numbers
from reward_lens.report.page import PAIRS, Page, compose, write_whole
from reward_lens.report.parts import Cell, Section
from reward_lens.report.standings import standings_section, trust_answer

_RIGHT = "Which is more often right?"


def render_comparison(
    page: Page,
    models: Models,
    evidence: Mapping[str, Evidence],
    pairs: Pairs,
    left_out: Mapping[str, str] | None = None,
) -> str:
    """Return the page of two models.

    Parameters
    ----------
    page : Page
        Of kind ``"comparison"``; its ``missing`` names what was not measured, and why.
    models : Models
    evidence : mapping of str to Evidence
        By name, as :class:`~reward_lens.comparing.Comparison` has it; ``compare`` at least.
    pairs : Pairs
        Those that were compared; the texts of some of them are on the page.
    left_out : mapping of str to str, optional
        Pair id -> why it was not scored.

    Raises
    ------
    EvidenceError
        If a pair was not compared.
    """
    number = Numbers(evidence)
    return compose(
        page,
        evidence,
        comparison_summary(evidence, number),
        comparison_sections(models, evidence, number, page.missing, left_out or {}),
        lambda budgets: compared_pairs(
            evidence[COMPARE], pairs, sidecar=page.sidecar, budgets=budgets
        ),
    )


def write_comparison(
    path: Path,
    page: Page,
    models: Models,
    evidence: Mapping[str, Evidence],
    pairs: Pairs,
    left_out: Mapping[str, str] | None = None,
) -> None:
    """Write the page of two models; it appears whole or not at all."""
    write_whole(path, render_comparison(page, models, evidence, pairs, left_out))


def comparison_sections(
    models: Models,
    evidence: Mapping[str, Evidence],
    number: Numbers,
    missing: Mapping[str, str],
    left_out: Mapping[str, str],
) -> list[Section]:
    """Every section whose evidence is there, in reading order."""
    compared = evidence[COMPARE]
    found = [
        loading(evidence, models),
        agreement(compared, models, number),
        margins(compared, models),
        Section(PAIRS, "On which pairs do they part?"),
        depths(evidence, number),
        biases(evidence, number),
        standings_section(evidence),
        conditions(compared, missing, left_out),
    ]
    return [section for section in found if section is not None]


def comparison_summary(evidence: Mapping[str, Evidence], number: Numbers) -> list[tuple[str, Cell]]:
    """Answers to what a reader asks first."""
    e = evidence[COMPARE]
    said: list[tuple[str, Cell]] = []
    if _same_model(e):
        said.append((
            "Are they two models?",
            "No: a and b are the same model: same weights, tokenizer, template.",
        ))  # fmt: skip
    said.append(("Are both loaded right?", _loaded(evidence)))
    said.append((
        "Do they agree?",
        Markup("Both prefer the same side{} on {} of {} pairs in {} lineages. Their scores "
               "within a prompt correlate by {} (Pearson) and {} (Spearman); the effective angle "
               "is {} radians (0: the same; {:.2f}: nothing in common).").format(
            _tied(e.tables["agreement"], number),
            stated(number, COMPARE, e, "agreement", ".1%", brief=True),
            number(COMPARE, "interval/agreement/n", "d"),
            number(COMPARE, "interval/agreement/clusters", "d"),
            *(number(COMPARE, f"interval/{k}/estimate", ".2f")
              for k in ("pearson", "spearman", "angle")),
            np.pi / 2),
    ))  # fmt: skip
    said.append((_RIGHT, _more_often_right(e, number)))
    said.append(("Where do they differ most?", _where(e, number)))
    said.append(("Does the preference form at the same depth?", _depth(evidence, number)))
    if both(evidence, BATTERY) is not None:
        said.append(("Are they biased alike?", alike(evidence, number)))
    if both(evidence, STYLE) is not None:
        said.append(("Does length matter to both?", _length(evidence, number)))
    said.append(("How far can this be trusted?", trust_answer(evidence)))
    return said


def _same_model(e: Evidence) -> bool:
    """Whether both have one fingerprint: of weights, tokenizer and template."""
    one, other = (dict(e.subject.notes.get(letter, {})).get("signal") for letter in LETTERS)
    return one is not None and one == other


def _tied(table: pd.DataFrame, number: Numbers) -> Markup:
    """On how many pairs the agreement is that neither prefers a side."""
    if not table["ties_of_both"].iloc[0]:
        return Markup("")
    return Markup(" or both tie ({} ties of both)").format(
        number(COMPARE, "table/agreement/0/ties_of_both", "d")
    )


def _loaded(evidence: Mapping[str, Evidence]) -> str:
    said = []
    for letter, name in zip(LETTERS, names_of("conformance"), strict=True):
        if name not in evidence:
            said.append(f"{letter}: not checked")
            continue
        checks = evidence[name].tables["checks"]
        failed = checks[~checks["passed"]]["check"].tolist()
        which = f" (failed: {', '.join(failed)})" if failed else ""
        said.append(
            f"{letter}: {'no' if failed else 'yes'}, {len(checks) - len(failed)} of {len(checks)} "
            f"conformance checks hold{which}"
        )
    return "; ".join(said) + "."


def _more_often_right(e: Evidence, number: Numbers) -> Markup:
    """Both accuracies, their paired difference, and a verdict by the exact p value."""
    row, at = e.tables["agreement"].iloc[0], "table/agreement/0"
    if not row["only_a"] + row["only_b"] + row["ties_of_one"]:
        return Markup(
            "Neither: on no pair is one of them right and the other not. The accuracy of both is "
            "{}{}."
        ).format(
            number(COMPARE, f"{at}/accuracy_a", ".1%"),
            Markup(", a tie of both counted as half ({} of {} pairs)").format(
                number(COMPARE, f"{at}/ties_of_both", "d"), number(COMPARE, f"{at}/pairs", "d")
            ) if row["ties_of_both"] else "",
        )  # fmt: skip
    verdict = f"Model {'a' if row['difference'] > 0 else 'b'} is."
    if row["p"] >= ALPHA:
        verdict = "Not told apart."
    return Markup("{} Model a is right on {}, model b on {} of the pairs. Pair by pair, a less b: "
                  "{}; exact p = {}. Pairs that only a is right on: {}; only b: {}.").format(
        verdict,
        *(number(COMPARE, f"{at}/accuracy_{letter}", ".1%") for letter in LETTERS),
        stated(number, COMPARE, e, "accuracy_difference", "+.1%", brief=True),
        number(COMPARE, f"{at}/p", ".2g"),
        *(number(COMPARE, f"{at}/only_{letter}", "d") for letter in LETTERS),
    )  # fmt: skip


def _where(e: Evidence, number: Numbers) -> Cell:
    """The subset with the smallest p, and the one that they surely agree least on."""
    table = e.tables["agreement"]
    flips = bool((e.tables["pairs"]["agreement"] == "flip").any())
    link = Markup('The pairs are <a href="#{}">below</a>{}.').format(
        PAIRS, ", the surest flips first" if flips else "; none is a flip"
    )
    if len(table) < 2:
        return Markup("All pairs are of one subset. {}").format(link)
    # Row 0 is that of all pairs.
    p, size = table["p"].to_numpy()[1:], table["difference"].abs().to_numpy()[1:]
    k = 1 + int(np.lexsort((-size, p))[0])
    least = 1 + int(np.nan_to_num(table["high"].to_numpy()[1:], nan=1.0).argmin())

    def n(row: int, column: str, form: str) -> Markup:
        return number(COMPARE, f"table/agreement/{row}/{column}", form)

    told, group = bool(table["p_adjusted"].iloc[k] < ALPHA), str(table["group"].iloc[k])
    accuracies = Markup("In accuracy on {}: a {}, b {} (n = {} pairs; p = {} after Holm over "
                        "{} subsets).").format(
        group if told else f"no subset for sure; most nearly on {group}",
        n(k, "accuracy_a", ".0%"), n(k, "accuracy_b", ".0%"),
        n(k, "pairs", "d"), n(k, "p_adjusted", ".2g"), len(table) - 1,
    )  # fmt: skip
    if (table["agreement"] == 1).all():
        agreed = Markup("They agree on all pairs of every subset.")
    else:
        agreed = Markup("They agree least on {}: on {} (n = {} pairs).").format(
            table["group"].iloc[least], n(least, "agreement", ".0%"), n(least, "pairs", "d")
        )
    return Markup("{} {} {}").format(
        accuracies if size.any() else "In accuracy on no subset.", agreed, link
    )


def _length(evidence: Mapping[str, Evidence], number: Numbers) -> Markup:
    """What length does to the score of both, within a prompt."""
    slopes = [
        stated(number, n, evidence[n], "length.slope", "+.2f", brief=True) for n in names_of(STYLE)
    ]
    return Markup(
        "Within a prompt, one e-fold of length changes the score by {} with a and {} with b, in "
        "median |margins| of each model."
    ).format(*slopes)


def _depth(evidence: Mapping[str, Evidence], number: Numbers) -> Cell:
    found = both(evidence, "lens")
    if found is None:
        conditions = evidence[COMPARE].tables["conditions"].set_index("condition")["value"]
        why = "; ".join(f"{letter}: {conditions[f'depth of {letter}']}" for letter in LETTERS)
        return f"Not measured on both ({why})."
    said = []
    for k, reading in enumerate(found[0].tables["crystallization"]["reading"]):
        depths = [
            Markup("{} of {} layers ({})").format(
                number(name, f"table/crystallization/{k}/median_first", "g"),
                e.value.sizes["depth"] - 1, letter)
            for letter, name, e in zip(LETTERS, names_of("lens"), found, strict=True)
        ]  # fmt: skip
        said.append(Markup("{} with the norm {}").format(Markup(" and ").join(depths), reading))
    return Markup("The median margin first reaches half its final value after {}.").format(
        Markup(", ").join(said)
    )
