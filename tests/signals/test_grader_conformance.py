"""Graders of other people: the documented one passes, each sabotage fails the check it is for."""

from __future__ import annotations

import dataclasses
import re

import graders
import numpy as np
import pytest
from graders import BLOCKS, PAGE, Brevity, Constant, Delegate, Toy, remade, run_blocks

import reward_lens as rl
from reward_lens.errors import ConformanceError, RewardLensError

NAMES = [
    "members", "capabilities", "fingerprint", "readouts", "unknown readout", "evidence", "units",
    "subject", "determinism", "alone = together", "order", "item forms", "text and ids",
    "input kept", "bad items", "no items", "finite", "text decides", "claims", "file",
]  # fmt: skip


def test_the_documented_grader_conforms():
    report = rl.run_conformance(Brevity())
    assert report.passed, str(report)
    assert [c.name for c in report.checks] == NAMES
    assert all(c.measured and c.allowed and c.meaning for c in report.checks)
    assert report.signal == "rule from memory"


def test_the_page_runs_as_it_stands(capsys):
    space = run_blocks(BLOCKS, {"__name__": "page"})
    space["test_brevity_is_a_grader"]()
    assert "ok     head = native" in capsys.readouterr().out
    assert space["report"].failed == ["alone = together"]


def test_the_page_lists_every_check():
    tables = PAGE.split("## The checks of a grader")[1].split("## The checks of a classifier")
    of_grader, of_classifier = (re.findall(r"^\| `(.+?)` \|", t, re.MULTILINE) for t in tables)
    assert of_grader == NAMES
    classifier = rl.run_conformance(rl.from_tiny())
    assert of_classifier == [c.name for c in classifier.checks]
    assert classifier.judge == "its checkpoint does"


SABOTAGE = {
    "members": graders.PlainMeta,
    "capabilities": graders.NoScores,
    "fingerprint": graders.HashOfItsState,
    "readouts": graders.NameTwice,
    "unknown readout": graders.AnyName,
    "evidence": graders.Rows,
    "units": graders.Ranks,
    "subject": graders.Anonymous,
    "determinism": graders.Drifts,
    "alone = together": graders.Leaks,
    "order": graders.Placed,
    "item forms": graders.PairsOnly,
    "text and ids": graders.CrashesOnIds,
    "input kept": graders.Eats,
    "bad items": graders.Swallows,
    "no items": graders.ScoresNothing,
    "finite": graders.NotANumber,
    "text decides": graders.Constant,
    "claims": graders.Overclaims,
    "file": graders.Misfiled,
}

SAID = {
    "members": "meta is a dict: give a SignalMeta",
    "capabilities": "none",
    "fingerprint": "'state 0', then 'state 1'",
    "readouts": "'reward', 'reward'",
    "unknown readout": "got 'reward'",
    "evidence": r"'score', float64 \[row: 5\] for 5 items",
    "units": "Units.RANK",
    "subject": "signal 'some grader', fingerprint '.+'",
    "determinism": r"\d\.0e-09 between two calls",
    "alone = together": r"5\.\de-01 of the scores' spread",
    "order": r"5\.\de-01 of the scores' spread",
    "item forms": "mapping: DataError: give pairs; mapping of messages: DataError: give pairs",
    "text and ids": r"text refused; ids raised TypeError: object of type 'NoneType' has no len\(\)",
    "input kept": "changed: pairs, messages",
    "bad items": r"a number scored \[.+\]; None scored .+; a triple scored",
    "no items": r"scored \[\]",
    "finite": "4 of 5; first other: item 2",
    "text decides": "scores do not depend on the text: all are 0.5",
    "claims": "PREFIX_SCORES: AttributeError: .* has no attribute 'score_prefixes'",
    "file": "EvidenceError: .*, line 1: the record says it is ev-",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_sabotage_fails_its_check_and_no_other(name):
    report = rl.run_conformance(SABOTAGE[name]())
    assert report.failed == [name], str(report)
    assert re.match(SAID[name], report[name].measured), report[name].measured
    assert report[name].meaning in str(report)


def test_the_untouched_toy_conforms():
    """So that each sabotage fails for what it does, not for how it is built."""
    assert rl.run_conformance(Toy()).passed


def failure(grader, name):
    check = rl.run_conformance(grader)[name]
    assert not check.passed
    return check.measured


@pytest.mark.parametrize("missing", ["meta", "caps", "fingerprint", "readouts", "readout", "score"])
def test_a_member_that_is_missing_is_named_and_the_other_checks_go_on(missing):
    class Lacking(Delegate):
        def __getattr__(self, name):
            if name == missing:
                raise AttributeError(f"no {name}", name=name, obj=self)
            return super().__getattr__(name)

    report = rl.run_conformance(Lacking(Toy()))
    assert [c.name for c in report.checks] == NAMES
    assert report["members"].measured == f"no {missing}"
    assert ("units" in report.failed) == (missing == "score")
    if missing == "meta":
        assert report.failed == ["members"]
        assert report.signal == "Lacking"


def test_members_of_the_wrong_kind_say_what_to_do():
    class Wrong(Toy):
        readout = "reward"

        def fingerprint(self):
            return "a method"

        @property
        def meta(self):
            raise OSError("the service\nis down")

    found = failure(Wrong(), "members")
    assert "fingerprint is a method: make it a property" in found
    assert "readout is a str: make it a method" in found
    assert "meta raised OSError: the service is down" in found


def test_a_grader_that_is_no_object_of_the_kind_fails_without_a_crash():
    report = rl.run_conformance(42)
    assert report.failed == NAMES
    assert report["members"].measured == (
        "no meta; no caps; no fingerprint; no readouts; no readout; no score"
    )
    with pytest.raises(ConformanceError, match="does not behave as a grader must: members, cap"):
        report.raise_if_failed()


def test_a_grader_whose_scoring_raises_gets_the_text_in_every_check_that_scores():
    class Down(Toy):
        def score(self, items):
            raise ConnectionError("no route to the reward service")

    report = rl.run_conformance(Down())
    scoring = [n for n in NAMES if n not in NAMES[:2] and n not in NAMES[3:5] and n != "claims"]
    assert report.failed == scoring
    for name in scoring:
        assert "ConnectionError: no route to the reward service" in report[name].measured


def test_scores_that_are_no_evidence():
    class Bare(Toy):
        def score(self, items):
            return super().score(items).value.values

    assert failure(Bare(), "evidence") == "score() returned a ndarray"


def test_whole_numbers_and_a_score_too_few():
    class Whole(Toy):
        def meddle(self, values, given):
            return np.round(100 * values).astype(int)

    class Short(Toy):
        def score(self, items):
            found = super().score(items)
            return remade(found, value=found.value[1:])

    assert failure(Whole(), "evidence") == "'score', int64 [item: 5] for 5 items"
    assert failure(Short(), "evidence") == "'score', float64 [item: 4] for 5 items"
    assert "5 items gave values of shape (4,)" in failure(Short(), "finite")


def test_a_subject_that_does_not_tell_items_apart():
    class SameData(Toy):
        def score(self, items):
            found = super().score(items)
            subject = dataclasses.replace(found.subject, data="items", readout="score")
            return remade(found, subject=subject)

    found = failure(SameData(), "subject")
    assert found == "readout 'score'; data 'items' for two sets of items"


def test_a_blank_fingerprint():
    class Blank(Toy):
        fingerprint = " "

    assert rl.run_conformance(Blank()).failed == ["fingerprint"]


def test_a_readout_that_is_not_the_one_asked_for():
    class Two(Toy):
        def readouts(self):
            (reward,) = super().readouts()
            return [reward, type(reward)(name="tone", kind="rule")]

        def readout(self, name="reward"):
            return super().readout("reward" if name == "tone" else name)

    assert failure(Two(), "readouts") == "'reward', 'tone'; another one comes for 'tone'"


def test_an_unknown_readout_that_crashes():
    class Crash(Toy):
        def readout(self, name="reward"):
            return {r.name: r for r in self.readouts()}[name]

    assert failure(Crash(), "unknown readout") == "KeyError: 'no such readout'"


def test_a_grader_that_looks_at_the_prompt_only():
    class Prompt(Toy):
        def meddle(self, values, given):
            return np.array([float(len(x.prompt_text)) for x in given])

    found = failure(Prompt(), "text decides")
    assert found == "scores do not depend on the response: all are 14 for one prompt"


def test_a_turn_of_messages_that_is_altered():
    class Tags(Toy):
        def score(self, items):
            given = list(items)
            found = super().score(given)
            for x in given:
                if isinstance(x, list):
                    x[-1]["content"] += "</s>"
            return found

    assert rl.run_conformance(Tags()).failed == ["input kept"]


def test_half_precision_is_judged_for_gross_faults_only():
    class Rounded(Toy):
        def meddle(self, values, given):
            return values + 1e-3 * len(given)

    class Half(Rounded):
        meta = Toy.meta.updated(dtype="bfloat16")

    assert rl.run_conformance(Rounded()).failed == ["alone = together"]
    assert rl.run_conformance(Half()).passed


def test_probes_of_the_users_own():
    probes = [("Two and two?", "Four."), ("Two and two?", "Five, or so")]
    report = rl.run_conformance(Brevity(), probes)
    assert report.passed
    assert report["text decides"].measured == "2 scores of 2 texts, 2 of 2 responses to one prompt"
    assert rl.run_conformance(Constant(), probes).failed == ["text decides"]


@pytest.mark.parametrize(("probes", "said"), [
    ([("Why?", "So.")], "one probe cannot show that scores differ: give two or more"),
    ([("Why?", "So."), ("Why?", "")], "the response is empty"),
])  # fmt: skip
def test_probes_that_are_none_are_not_blamed_on_the_grader(probes, said):
    with pytest.raises(RewardLensError, match=said):
        rl.run_conformance(Brevity(), probes)
