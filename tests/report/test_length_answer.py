"""What the first screen says of length: answers told apart from prompts."""

from __future__ import annotations

import dataclasses
import math

import pandas as pd
import pytest
from markupsafe import Markup

import reward_lens as rl
from reward_lens.report.numbers import Numbers
from reward_lens.report.summary import summary

PROMPTS = "What whole texts show follows the length of the prompts"


@pytest.fixture(scope="module")
def evidence():
    signal = rl.from_tiny()
    rows = [(f"question {k}", f"an answer {k}", "no " * k) for k in range(1, 21)]
    return rl.audit(signal, rows, sample=2, biases=0, causal_sample=1).evidence


def said(evidence, **ranges):
    """The answer, with these ranges of the intervals on length."""
    preference = evidence["preference"]
    replaced = tuple(
        dataclasses.replace(i, low=ranges[key][0], high=ranges[key][1])
        if (key := i.name.removeprefix("length.")) in ranges
        else i
        for i in preference.uncertainty
    )
    given = {**evidence, "preference": dataclasses.replace(preference, uncertainty=replaced)}
    answers = dict(summary(given, Numbers(given)))
    return Markup(answers["Does length matter?"]).striptags()


NONE, BELOW, ABOVE = (-0.1, 0.1), (-0.4, -0.1), (0.1, 0.4)


@pytest.mark.parametrize("whole", [BELOW, ABOVE])
def test_a_correlation_of_whole_texts_and_prompts_alone_is_the_prompts(evidence, whole):
    found = said(evidence, slope=NONE, correlation=NONE, prompt=whole, whole_text=whole)
    assert PROMPTS in found


UNKNOWN = (math.nan, math.nan)


@pytest.mark.parametrize(
    "changed",
    [{"prompt": NONE}, {"prompt": UNKNOWN}, {"correlation": UNKNOWN}, {"slope": UNKNOWN}],
)
def test_what_prompts_or_answers_do_not_show_is_not_put_down_to_prompts(evidence, changed):
    ranges = {"slope": NONE, "correlation": NONE, "prompt": BELOW, "whole_text": BELOW}
    assert PROMPTS not in said(evidence, **{**ranges, **changed})


@pytest.mark.parametrize("of_answers", [{"slope": BELOW}, {"correlation": ABOVE}])
def test_where_answers_show_it_too_it_is_not_put_down_to_prompts(evidence, of_answers):
    ranges = {"slope": NONE, "correlation": NONE, "prompt": BELOW, "whole_text": BELOW}
    ranges.update(of_answers)
    assert PROMPTS not in said(evidence, **ranges)


def test_where_whole_texts_show_nothing_there_is_nothing_to_explain(evidence):
    ranges = {"slope": NONE, "correlation": NONE, "prompt": BELOW, "whole_text": NONE}
    assert PROMPTS not in said(evidence, **ranges)


def test_all_numbers_are_said(evidence):
    text = said(evidence)
    for key in ("slope", "correlation", "prompt", "whole_text"):
        form = ".3f" if key == "slope" else ".2f"
        i = evidence["preference"].interval(f"length.{key}")
        assert f"{i.estimate:{form}} (95 % interval {i.low:{form}} to {i.high:{form}})" in text


def test_evidence_of_before_has_two_numbers(evidence):
    preference = evidence["preference"]
    older = tuple(i for i in preference.uncertainty if i.name != "length.whole_text")
    given = {**evidence, "preference": dataclasses.replace(preference, uncertainty=older)}
    answers = dict(summary(given, Numbers(given)))
    assert "whole texts" not in answers["Does length matter?"]


def test_accuracy_names_the_subsets_that_carry_it(evidence):
    preference = evidence["preference"]
    table = preference.tables["accuracy"]
    rows = [
        {**table.iloc[0].to_dict(), "group": f"subset={name}", "accuracy": mean, "low": low,
         "high": high, "note": note}
        for name, mean, low, high, note in (
            ("good", 0.9, 0.8, 0.95, ""), ("few", 1.0, 0.7, 1.0, "the stated level is doubtful"),
            ("even", 0.5, 0.4, 0.6, ""), ("bad", 0.2, 0.1, 0.3, ""),
        )
    ]  # fmt: skip
    many = pd.concat([table.iloc[:1], pd.DataFrame(rows)], ignore_index=True)
    changed = dataclasses.replace(preference, tables={**preference.tables, "accuracy": many})
    given = {**evidence, "preference": changed}
    answers = dict(summary(given, Numbers(given)))
    text = Markup(answers["How often does it prefer the chosen response?"]).striptags()
    assert text.endswith("better than a coin on 1 of 4 subsets (good 0.90), worse than one on 1.")


def test_where_nothing_has_an_effect_no_component_is_named(evidence):
    grid = evidence["patch_grid"]
    still = grid.tables["components"].assign(mean_size=0.0, share_of_margin=math.nan)
    tables = {**grid.tables, "components": still}
    given = {**evidence, "patch_grid": dataclasses.replace(grid, tables=tables)}
    answers = dict(summary(given, Numbers(given)))
    assert answers["What causes it?"] == "None of 5 components has an effect when it is exchanged."
