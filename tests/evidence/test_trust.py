"""CALIBRATED: what a scorecard does for a reading, and what it does not."""

from __future__ import annotations

import dataclasses

import pytest
from trust_kit import (
    calibrated,
    grid,
    organisms,
    planted,
    said,
    scorecard,
)

from reward_lens.errors import EvidenceError
from reward_lens.evidence import (
    Trial,
    TrustLevel,
    observables,
)

STRONG = {"L1.mlp_out": 0.9}
EXPLORATORY, CALIBRATED, REGISTERED, ADJUDICATED = TrustLevel


def test_without_a_card_a_reading_is_exploratory(empty_store):
    store = empty_store
    e = grid(STRONG)
    store.append(e)
    assert e.trust is store.trust(e.id) is EXPLORATORY
    assert "no scorecard of patch_grid v1 on this model and readout" in said(store, e)
    assert e.standing.detection_dose is None


def test_a_strong_effect_under_a_card_that_passes_is_calibrated(empty_store):
    store = empty_store
    e = grid(STRONG)
    store.append(e)
    assert e.trust is EXPLORATORY
    card = calibrated(store)
    assert e.trust is CALIBRATED  # it rises with a record that came later
    standing = store.standing(e.id)
    assert standing.records == (card.id,)
    assert standing.above == {"noise L1.mlp_out": pytest.approx(0.9)}
    assert len(standing.below) == 3
    assert standing.detection_dose == 0.5
    text = e.receipt()
    for part in (
        "trust: calibrated: the instrument recovers planted rules of this size",
        f"because: scorecard {card.id} passed: planted were write; nine in ten found from 0.5 SD",
        "0 of 60 nulls taken for rules (at most 4.9%); intervals hold 100% of 60 effects",
        "because: above the detection dose of 0.5 SD of the margin: noise L1.mlp_out 0.9 SD",
        "because: under the detection limit of 0.5 SD: 3 readings",
        "you may say: on this model the instrument finds planted rules of this size",
    ):
        assert part in text


def test_a_weak_effect_is_under_the_detection_limit(calibrated_store):
    store = calibrated_store
    e = grid({"L1.mlp_out": 0.49})
    store.append(e)
    assert e.trust is EXPLORATORY
    assert "under the detection limit of 0.5 SD: 4 readings; the largest is 0.49 SD" in said(
        store, e
    )


MISMATCHES = {
    "another model": ({"signal": "s2"}, "no scorecard of patch_grid v1 on this model"),
    "another instrument": ({"instrument": "attribution_patching"}, "no scorecard of attribution"),
    "another version": ({"version": "2"}, "version is '2' here, and '1' on the card"),
    "another readout": ({"readout": "criterion:1"}, "no scorecard of .* on this model and readout"),
    "another dtype": ({"dtype": "bfloat16"}, "dtype is 'bfloat16' here, and 'float32' on the card"),
    "another option": ({"parameters": {"by": "head"}}, "by is 'head' here, and 'component'"),
    "a new option": ({"parameters": {"by": "component", "x": 1}}, "x is 1 here, and None on the"),
    "another token": ({"notes": {"position": "last"}}, "position is 'last' here"),
    "steered": ({"interventions": ("steer", "patch")}, r"interventions is \('steer', 'patch'\)"),
    "a frame": ({"frame": "f"}, "frame is 'f' here"),
    "few pairs": ({"n": 47}, "47 pairs here, and 48 to 96 on the card"),
    "many pairs": ({"n": 97}, "97 pairs here"),
}  # fmt: skip


@pytest.mark.parametrize("what", MISMATCHES)
def test_a_card_speaks_only_of_what_was_calibrated(calibrated_store, what):
    store = calibrated_store
    changes, why = MISMATCHES[what]
    calibrated(store)
    e, other = grid(STRONG), grid(STRONG, **changes)
    store.append_all([e, other])
    assert store.trust(e.id) is CALIBRATED
    assert store.trust(other.id) is EXPLORATORY
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(said(store, other))


def test_how_a_measurement_is_batched_does_not_count(calibrated_store):
    store = calibrated_store
    e = grid(STRONG, parameters={"by": "component", "batch_tokens": 7, "executor": "full forward"})
    store.append(e)
    assert e.trust is CALIBRATED
    assert "batch_tokens" not in observables(e)


def test_sites_that_nothing_was_planted_in_do_not_count(empty_store):
    store = empty_store
    evidence, trials = organisms(sites=("L0.attn_out", "L1.attn_out"))
    e = grid({"L1.mlp_out": 0.9, "L0.attn_out": 0.4})
    store.append_all([*evidence, scorecard(trials, site_kinds=("attn_out",)), e])
    assert e.trust is EXPLORATORY
    assert "under the detection limit of 0.5 SD: 2 readings; the largest is 0.4 SD" in said(
        store, e
    )


def test_the_newest_card_decides(empty_store):
    store = empty_store
    e = grid(STRONG)
    store.append(e)
    calibrated(store)
    assert e.trust is CALIBRATED
    evidence, trials = organisms(missed=3)
    bad = scorecard(trials)
    store.append_all([*evidence, bad])
    assert e.trust is EXPLORATORY
    assert f"the instrument FAILED its scorecard {bad.id} on this model: at the largest" in said(
        store, e
    )
    calibrated(store, seeds=(7,))
    assert e.trust is CALIBRATED
    assert "1 earlier scorecards of the same had failed" in said(store, e)


def test_a_card_without_its_evidence_is_refused(empty_store):
    store = empty_store
    evidence, trials = organisms()
    with pytest.raises(EvidenceError, match=f"was computed from {evidence[0].id}, which is not in"):
        store.append(scorecard(trials))


FORGED_TRIALS = {
    "reading": ({"reading": 0.9}, "the card says 0.9 SD, the evidence 0.1"),
    "place": ({"place": "noise L1.mlp_out"}, "the card says 0.1 SD, the evidence 0"),
    "a place that is not there": ({"place": "noise L9.mlp_out"}, "no interval for 'noise L9"),
    "coverage": ({"covered": False}, "whether its interval holds the truth"),
    "a coverage that is not there": ({"truth": 99.0}, "whether its interval holds the truth"),
}


@pytest.mark.parametrize("what", FORGED_TRIALS)
def test_a_card_that_says_what_its_evidence_does_not_is_not_relied_on(empty_store, what):
    store = empty_store
    changes, why = FORGED_TRIALS[what]
    evidence, trials = organisms()
    trials[0] = dataclasses.replace(trials[0], **changes)
    e = grid(STRONG)
    store.append_all([*evidence, scorecard(trials), e])
    assert e.trust is EXPLORATORY
    with pytest.raises(
        AssertionError, match=f"cannot be relied on: trial on organism-0.25-0.*{why}"
    ):
        raise AssertionError(said(store, e))


def test_a_null_may_be_read_where_its_rule_would_have_been(empty_store):
    store = empty_store
    evidence, trials = organisms()
    # The model has a strong component of its own; the null is of another one.
    own = grid({"L0.attn_out": 0.9, "L1.mlp_out": 0.04}, data="null", signal="null",
               interventions=("planted rule", "patch"))  # fmt: skip
    k = next(k for k, t in enumerate(trials) if t.dose == 0)
    at = {"evidence": own.id, "organism": "null", "reading": 0.04}
    e = grid(STRONG)
    trials[k] = dataclasses.replace(trials[k], place="noise L1.mlp_out", **at)
    evidence[k] = own
    store.append_all([*evidence, scorecard(trials), e])
    assert e.trust is CALIBRATED
    trials[k] = dataclasses.replace(trials[k], place="")
    store.append(scorecard(trials))
    assert "the card says 0.04 SD, the evidence 0.9" in said(store, e)


def test_a_card_read_from_another_measurement_is_not_relied_on(empty_store):
    store = empty_store
    evidence, trials = organisms()
    e = grid(STRONG)
    other, fields = planted("0.25-0", "L0.attn_out", 0.25, read=0.1, half=10.0, dtype="bfloat16")
    trials[0] = Trial(kind="write", **{**fields, "covered": True})
    store.append_all([*evidence, other, scorecard(trials), e])
    assert e.trust is EXPLORATORY
    assert "dtype is 'bfloat16' here" in said(store, e)


def test_an_organism_is_judged_by_the_cards_of_the_model(calibrated_store):
    store = calibrated_store
    rule = "planted mlp write in L1.mlp_out, 2 SD, 0123"
    strong = grid(STRONG, data="sides drawn", interventions=(rule, "patch"))
    weak = grid({"L1.mlp_out": 0.3}, data="sides drawn", interventions=(rule, "patch"))
    store.append_all([strong, weak])
    assert store.trust(strong.id) is CALIBRATED
    assert store.trust(weak.id) is EXPLORATORY
    assert "under the detection limit of 0.5 SD" in said(store, weak)


@pytest.mark.parametrize("done", ["ablate L0.mlp_out", "steer planted L0.mlp_out", "planted"])
def test_a_card_does_not_speak_of_a_model_that_something_else_is_done_to(calibrated_store, done):
    store = calibrated_store
    rule = "planted mlp write in L1.mlp_out, 2 SD, 0123"
    for k, interventions in enumerate([(done, "patch"), (rule, done, "patch")]):
        e = grid(STRONG, data=f"d{k}", interventions=interventions)
        store.append(e)
        assert store.trust(e.id) is EXPLORATORY
        assert f"interventions is ({done!r}, 'patch') here" in said(store, e)


def test_a_trial_in_which_nothing_was_planted_is_none(empty_store):
    store = empty_store
    evidence, trials = organisms()
    own, e = grid({"L0.attn_out": 0.1}, half=10.0, data="own"), grid(STRONG)
    trials[0] = dataclasses.replace(trials[0], evidence=own.id)
    store.append_all([*evidence, own, scorecard(trials), e])
    assert e.trust is EXPLORATORY
    assert "nothing was planted in the model that it is of" in said(store, e)


def test_a_rule_in_a_component_that_was_not_looked_at_is_one_that_was_missed(empty_store):
    store = empty_store
    evidence, trials = organisms()
    missed = {"place": "noise L9.mlp_out", "reading": 0.0, "covered": None}
    at_half = next(k for k, t in enumerate(trials) if t.dose == 0.5)
    trials[at_half] = dataclasses.replace(trials[at_half], **missed)
    e = grid(STRONG)
    store.append_all([*evidence, scorecard(trials), e])
    assert e.trust is CALIBRATED
    null = next(k for k, t in enumerate(trials) if t.dose == 0)
    trials[null] = dataclasses.replace(trials[null], place="noise L9.mlp_out", reading=0.0)
    store.append(scorecard(trials))
    assert "cannot be relied on: trial on organism-null" in said(store, e)
