"""What a scorecard computes from its trials, and how effects are read."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from trust_kit import (
    MARGINS,
    READING,
    SD,
    grid,
    organisms,
    scorecard,
)

from reward_lens.errors import EvidenceError
from reward_lens.evidence import (
    Place,
    Reading,
    Scorecard,
    Trial,
)
from reward_lens.evidence.reading import site_kind
from reward_lens.evidence.scorecard import MAX_FALSE_POSITIVES, MIN_NULLS, MIN_ORGANISMS

# Scorecards.


def test_a_card_says_what_its_trials_say():
    card = scorecard(organisms(missed=2, false=1)[1])
    table = card.recovery.set_index("dose")
    assert table["found"].to_dict() == {0.25: 0, 0.5: 18, 1.0: 18}
    assert table["recovery"].to_dict() == {0.25: 0.0, 0.5: 0.9, 1.0: 0.9}
    assert card.detection_dose == 0.5
    k, bound = card.false_positives
    # One-sided Clopper-Pearson: the rate at which one or none in 60 has probability 5 %.
    assert k == 1
    assert (1 - bound) ** 60 + 60 * bound * (1 - bound) ** 59 == pytest.approx(0.05)
    assert card.coverage == (1.0, 60)
    assert card.passed
    text = card.summary()
    for part in ("passed", "planted: write", "0.5 SD: 18 of 20", "from 0.5 SD", "1 of 60 nulls"):
        assert part in text


def test_a_dose_counts_only_if_all_larger_ones_are_found():
    _, trials = organisms(doses=(0.5, 1.0, 2.0))
    holes = [dataclasses.replace(t, reading=0.0) if t.dose == 1.0 else t for t in trials]
    assert scorecard(trials).detection_dose == 0.5
    assert scorecard(holes).detection_dose == 2.0


def swap(trials, **changes):
    return [dataclasses.replace(t, **changes) for t in trials]


FAILED = {
    "misses": (
        organisms(missed=3)[1], {},
        "fewer than 90% of the rules were found.*: 17 of 20 at 1 SD, where 18 of 20 pass",
    ),
    "too few": (
        organisms(per_dose=MIN_ORGANISMS - 1)[1], {},
        "fewer than 20 were planted: 19 of 19 at 1 SD, where 18 of 20 pass",
    ),
    "few nulls": (organisms(nulls=MIN_NULLS - 1)[1], {}, "59 nulls were tried, 60 are needed"),
    "cries wolf": (organisms(false=2)[1], {}, "2 of 60 nulls.*10.1%, above 10%, where 1 pass"),
    "one kind": (organisms()[1], {"fixed_on": "write"}, "no rule.*kind other than 'write'"),
    "no trials": ((), {}, "no rule was planted.*0 nulls"),
    "another unit": (
        [dataclasses.replace(t, reading=10 * t.reading) if t.dose >= 0.5 else t
         for t in organisms()[1]],
        {}, "it reads the median rule at 10 times its size, where 0.67 to 1.5 pass",
    ),
    "narrow": (
        [dataclasses.replace(t, covered=k % 5 > 0) if t.dose else t
         for k, t in enumerate(organisms()[1])],
        {}, r"its 95% intervals hold 80.0% of 60 planted effects, where 88.3% pass",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", FAILED)
def test_a_card_fails_and_says_why(what):
    trials, changes, why = FAILED[what]
    card = scorecard(trials, **changes)
    assert not card.passed
    assert "FAILED" in card.summary()
    with pytest.raises(AssertionError, match=why):
        raise AssertionError("; ".join(card.failures))


def test_the_bound_lets_one_null_in_sixty_pass_and_not_two():
    bounds = [scorecard(organisms(false=k)[1]).false_positives[1] for k in (0, 1, 2)]
    assert bounds[0] == pytest.approx(1 - 0.05 ** (1 / 60))
    assert bounds[1] < MAX_FALSE_POSITIVES < bounds[2]


def test_trials_on_which_the_rule_was_fixed_count_for_nothing():
    _, trials = organisms()
    mine = swap(organisms(missed=20, false=9)[1], kind="concept")
    mine = [dataclasses.replace(t, organism=f"c{t.organism}", evidence=f"c{t.evidence}")
            for t in mine]  # fmt: skip
    both, alone = scorecard([*trials, *mine]), scorecard(trials)
    assert both.recovery.equals(alone.recovery)
    assert both.false_positives == alone.false_positives


def test_a_card_comes_back_from_json():
    card = scorecard(organisms()[1], seeds=(1, 2))
    assert Scorecard.from_dict(card.to_dict()) == card
    assert Scorecard.from_dict(card.to_dict()).summary() == card.summary()


@pytest.mark.parametrize("field", ["passed", "detection_dose", "trust", "failures", "recovery"])
def test_a_verdict_is_no_field_of_a_card(field):
    card = scorecard(organisms()[1])
    with pytest.raises(EvidenceError, match=rf"unknown \['{field}'\]"):
        Scorecard.from_dict({**card.to_dict(), field: True})
    with pytest.raises(TypeError):
        scorecard(organisms()[1], **{field: True})
    with pytest.raises(EvidenceError, match="its content is sc-"):
        Scorecard.from_dict({**card.to_dict(), "threshold": 0.01})


WRONG = {
    "twice": ({"trials": organisms()[1][:1] * 2}, "two trials have the organism 'organism-0.25-0'"),
    "evidence twice": (
        {"trials": swap(organisms()[1][:2], evidence="ev-1")},
        "two trials have the evidence 'ev-1': each counts once",
    ),
    "threshold": ({"threshold": 0.0}, "threshold=0 are positive"),
    "sd": ({"margin_sd": math.nan}, "margin_sd=nan"),
    "pairs": ({"n_pairs": (9, 3)}, "fewest and the most pairs"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_card_that_cannot_be_is_refused(what):
    changes, why = WRONG[what]
    with pytest.raises(EvidenceError, match=why):
        scorecard(**{"trials": (), **changes})


def test_a_trial_that_cannot_be_is_refused():
    for changes, why in (
        ({"dose": -1.0}, "finite and not negative"),
        ({"reading": math.nan}, "finite and not negative"),
        ({"place": ""}, "a planted rule has a place"),
    ):
        with pytest.raises(EvidenceError, match=why):
            Trial(**{"kind": "k", "organism": "o", "dose": 1.0, "place": "p", "reading": 1.0,
                     "evidence": "e", **changes})  # fmt: skip


# Readings.


def test_effects_are_read_in_sds_of_the_evidences_own_margins():
    e = grid({"L0.mlp_out": -0.75})
    assert np.std(MARGINS, ddof=1) == pytest.approx(SD)
    sizes = READING.sizes(e, 99.0, ("mlp_out",))
    assert sizes == {"noise L0.mlp_out": pytest.approx(0.75), "noise L1.mlp_out": 0.0}
    foreign = dataclasses.replace(READING, margins=None)
    assert foreign.sizes(e, 3.0, ("mlp_out",))["noise L0.mlp_out"] == pytest.approx(0.5)


def test_a_gain_from_row_to_row():
    import pandas as pd

    curve = pd.DataFrame({"reading": ["a"] * 3 + ["b"] * 3, "depth": [2, 0, 1] * 2,
                          "mean": [6.0, 1.0, 2.0, 0.0, 0.0, -2.0]})  # fmt: skip
    e = grid(tables={"curve": curve})
    lens = Reading("curve", ("reading", "depth"), step="depth")
    assert lens.sizes(e, 2.0) == {
        "a 0": 0.5, "a 1": 0.5, "a 2": 2.0, "b 0": 0.0, "b 1": 1.0, "b 2": 1.0
    }  # fmt: skip
    alone = Reading("curve", ("depth",), where={"reading": "a"}, step="depth")
    assert alone.sizes(e, 1.0) == {"0": 1.0, "1": 1.0, "2": 4.0}
    with pytest.raises(EvidenceError, match="gain from row to row has no interval"):
        alone.covers(e, "0", 1.0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("L3.mlp_out", "mlp_out"), ("L12.H2", "head"), ("L1.H3.q", "head"), ("embed", "embed")],
)
def test_the_kind_of_a_site(name, kind):
    assert site_kind(name) == kind


def test_what_is_not_there_is_named():
    e = grid()
    for place, why in (
        (Place(table="rows"), "no table 'rows'; there are: components, pairs"),
        (Place(table="components", row={"colour": 1}), "no column 'colour'; there are: direction"),
        (Place(table="components", row={"direction": "noise"}), "4 rows.*fit"),
        (Place(interval="x"), "no interval 'x'"),
    ):
        with pytest.raises(EvidenceError, match=why):
            place.read(e)
    with pytest.raises(EvidenceError, match="interval= by its name, or a table="):
        Place()
    with pytest.raises(EvidenceError, match="margins do not vary"):
        dataclasses.replace(READING, margins=None).sizes(e, 0.0, ("mlp_out",))
