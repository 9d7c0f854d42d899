"""What the first screen says of length: answers told apart from prompts."""

from __future__ import annotations

import dataclasses

import pytest
from markupsafe import Markup

import reward_lens as rl
from reward_lens.report.numbers import Numbers
from reward_lens.report.summary import summary

PROMPTS = "follows the length of the prompts"


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
def test_a_correlation_of_whole_texts_alone_is_the_prompts(evidence, whole):
    assert PROMPTS in said(evidence, slope=NONE, correlation=NONE, whole_text=whole)


@pytest.mark.parametrize("of_answers", [{"slope": BELOW}, {"correlation": ABOVE}])
def test_where_answers_show_it_too_it_is_not_put_down_to_prompts(evidence, of_answers):
    ranges = {"slope": NONE, "correlation": NONE, "whole_text": BELOW, **of_answers}
    assert PROMPTS not in said(evidence, **ranges)


def test_where_whole_texts_show_nothing_there_is_nothing_to_explain(evidence):
    assert PROMPTS not in said(evidence, slope=NONE, correlation=NONE, whole_text=NONE)


def test_all_three_numbers_are_said(evidence):
    text = said(evidence)
    for key in ("slope", "correlation", "whole_text"):
        form = ".3f" if key == "slope" else ".2f"
        i = evidence["preference"].interval(f"length.{key}")
        assert f"{i.estimate:{form}} (95 % interval {i.low:{form}} to {i.high:{form}})" in text


def test_evidence_of_before_has_two_numbers(evidence):
    preference = evidence["preference"]
    older = tuple(i for i in preference.uncertainty if i.name != "length.whole_text")
    given = {**evidence, "preference": dataclasses.replace(preference, uncertainty=older)}
    answers = dict(summary(given, Numbers(given)))
    assert "whole texts" not in answers["Does length matter?"]
