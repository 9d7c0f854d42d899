"""REGISTERED and ADJUDICATED: what was predicted before the data was measured."""

from __future__ import annotations

import dataclasses
import math
import sqlite3

import pytest
from trust_kit import (
    calibrated,
    card_of,
    grid,
    prediction,
    said,
)

from reward_lens.errors import EvidenceError
from reward_lens.evidence import (
    Evidence,
    EvidenceStore,
    Outcome,
    TrustLevel,
    chain,
)
from reward_lens.evidence.records import entry_of, parents_of

STRONG = {"L1.mlp_out": 0.9}
EXPLORATORY, CALIBRATED, REGISTERED, ADJUDICATED = TrustLevel


def test_the_whole_ladder(calibrated_store):
    store = calibrated_store
    registration = store.register(prediction(bound=1.0))
    e = grid(STRONG)  # 0.9 SD = 1.8 in reward units, interval 1.7 to 1.9
    store.append(e)
    assert e.trust is REGISTERED
    assert "not adjudicated yet" in said(store, e)
    assert "self-attested: only the order of this store says so" in e.receipt()
    outcome = store.adjudicate(registration.id, e.id)
    assert outcome.held
    assert (outcome.estimate, outcome.low) == (pytest.approx(1.8), pytest.approx(1.7))
    assert e.trust is ADJUDICATED
    text = e.receipt()
    assert "trust: adjudicated: the registered expectation held" in text
    assert "lies above 1; it HELD: 1.8, interval 1.7 to 1.9" in text
    assert "you may say: what was predicted before the data was measured came out" in text
    assert store.standing(e.id).records[1:] == (registration.id, outcome.id)
    assert set(store.parents(outcome.id)) == {registration.id, e.id}


def test_a_refuted_prediction_is_kept_and_shown(calibrated_store):
    store = calibrated_store
    registration = store.register(prediction(bound=2.5))
    e = grid(STRONG)
    store.append(e)
    outcome = store.adjudicate(registration.id, e.id)
    assert not outcome.held
    assert "REFUTED" in outcome.summary()
    assert e.trust is REGISTERED
    assert "lies above 2.5; it was REFUTED: 1.8, interval 1.7 to 1.9" in e.receipt()
    assert outcome.id in store


def test_an_anchor_outside_is_shown_and_is_for_the_reader_to_check(calibrated_store):
    store = calibrated_store
    p = prediction()
    store.register(p, anchor="git commit 1a2b3c")
    e = grid(STRONG)
    store.append(e)
    assert f"anchored outside: git commit 1a2b3c; whether that holds {p.id} is for the reader" in (
        e.receipt()
    )
    with pytest.raises(EvidenceError, match="name what shows the time"):
        store.register(p, anchor=" ")


def test_what_is_registered_after_the_data_was_measured_does_not_count(calibrated_store):
    store = calibrated_store
    e = grid(STRONG)
    store.append(e)
    registration = store.register(prediction(data=None))  # open, so that it may still count
    assert e.trust is CALIBRATED
    assert f"{registration.id} does not count: the instrument had been used on this model and " in (
        said(store, e)
    )
    with pytest.raises(EvidenceError, match=f"had been used.*{e.id}"):
        store.adjudicate(registration.id, e.id)
    # Measured again with a difference that changes the id only.
    again = grid(STRONG, cost_forwards=2.0)
    store.append(again)
    assert again.trust is CALIBRATED
    with pytest.raises(EvidenceError, match="had been used"):
        store.adjudicate(registration.id, again.id)


def test_other_data_makes_a_new_chance(calibrated_store):
    store = calibrated_store
    store.append(grid(STRONG))
    registration = store.register(prediction(data=None))
    fresh = grid(STRONG, data="fresh")
    store.append(fresh)
    assert store.adjudicate(registration.id, fresh.id).held
    assert fresh.trust is ADJUDICATED


def test_a_prediction_is_judged_on_the_first_measurement_only(calibrated_store):
    store = calibrated_store
    registration = store.register(prediction(bound=1.75))
    first, second = grid(STRONG), grid({"L1.mlp_out": 0.95})
    store.append(first)
    store.append(second)
    assert not store.adjudicate(registration.id, first.id).held
    with pytest.raises(EvidenceError, match=f"judged on the first measurement.*{first.id}"):
        store.adjudicate(registration.id, second.id)
    assert second.trust is CALIBRATED


def test_of_predictions_that_exclude_each_other_one_always_holds(calibrated_store):
    store = calibrated_store
    up, down = store.register(prediction("above", 1.0)), store.register(prediction("below", 1.0))
    e = grid(STRONG)
    store.append(e)
    store.adjudicate(up.id, e.id)
    assert e.trust is REGISTERED  # the other one is open
    store.adjudicate(down.id, e.id)
    assert e.trust is REGISTERED
    assert "HELD" in said(store, e)
    assert "REFUTED" in said(store, e)


def test_without_calibration_a_prediction_that_held_raises_nothing(empty_store):
    store = empty_store
    registration = store.register(prediction())
    e = grid(STRONG)
    store.append(e)
    store.adjudicate(registration.id, e.id)
    assert e.trust is EXPLORATORY
    assert "it HELD" in said(store, e)
    assert "it raises nothing" in said(store, e)
    calibrated(store)
    assert e.trust is ADJUDICATED


def test_a_predicted_number_under_the_detection_limit_raises_nothing(calibrated_store):
    store = calibrated_store
    registration = store.register(prediction("below", 1.0, component="L0.mlp_out"))
    e = grid(STRONG)
    store.append(e)
    assert store.adjudicate(registration.id, e.id).held
    assert e.trust is CALIBRATED
    assert "no calibrated reading above the detection dose" in said(store, e)


COMPARED = [
    ("above", 1.0, None, True), ("above", 1.75, None, False), ("above", 2.0, None, False),
    ("below", 2.0, None, True), ("below", 1.85, None, False),
    ("within", 1.6, 2.0, True), ("within", 1.75, 2.0, False),
    ("outside", -1.0, 1.0, True), ("outside", 2.0, 3.0, True), ("outside", 1.0, 1.75, False),
]  # fmt: skip


@pytest.mark.parametrize(("comparison", "bound", "upper", "held"), COMPARED)
def test_the_whole_interval_has_to_lie_where_it_was_expected(comparison, bound, upper, held):
    p = prediction(comparison, bound, upper)
    assert p.holds(p.place.read(grid(STRONG))) is held


def test_predictions_that_cannot_be_judged_are_refused(calibrated_store):
    store = calibrated_store
    for changes, why in (
        ({"comparison": "near"}, "comparison='near': choose one of above, below, within"),
        ({"comparison": "within"}, "take one bound"),
        ({"upper": 2.0}, "take one bound"),
        ({"bound": math.nan}, "take one bound"),
    ):
        with pytest.raises(EvidenceError, match=why):
            prediction(**changes)
    registration = store.register(prediction(component="L7.mlp_out"))
    e, other = grid(STRONG), grid(STRONG, signal="s2")
    store.append_all([e, other])
    with pytest.raises(EvidenceError, match="0 rows"):
        store.adjudicate(registration.id, e.id)
    with pytest.raises(EvidenceError, match="about another instrument or subject"):
        store.adjudicate(registration.id, other.id)
    with pytest.raises(EvidenceError, match="give the id of a registration"):
        store.adjudicate(e.id, registration.id)
    with pytest.raises(EvidenceError, match="is no evidence, and only evidence has a rung"):
        store.trust(registration.id)
    with pytest.raises(EvidenceError, match="there is no record ev-9"):
        store.trust("ev-9")


def test_records_come_back_from_the_store(calibrated_store):
    store = calibrated_store
    card = card_of(store)
    registration = store.register(prediction("within", 0.0, 9.0), anchor="a")
    e = grid(STRONG)
    store.append(e)
    outcome = store.adjudicate(registration.id, e.id)
    path = store.path
    store.close()
    with EvidenceStore(path) as again:
        assert again.get(card.id) == card
        assert again.get(registration.id) == registration
        assert again.get(outcome.id) == outcome
        assert again.trust(e.id) is ADJUDICATED
        assert again.verify().ok
        assert "expected: the interval of components" in again.get(registration.id).summary()


def test_evidence_that_names_a_card_gains_nothing_by_it(calibrated_store):
    store = calibrated_store
    card = card_of(store)
    e = (
        grid({"L1.mlp_out": 0.1}, calibration=card.id)
        if False
        else dataclasses.replace(grid({"L1.mlp_out": 0.1}), calibration=card.id)
    )
    store.append(e)
    assert isinstance(e, Evidence)
    assert e.trust is EXPLORATORY


def test_a_change_by_another_connection_is_noticed(calibrated_store):
    store = calibrated_store
    e = grid(STRONG)
    store.append(e)
    assert e.trust is CALIBRATED
    with sqlite3.connect(store.path) as raw:
        for name in ("update", "delete"):
            raw.execute(f"DROP TRIGGER records_no_{name}")
        raw.execute("UPDATE records SET added = 'never' WHERE seq = 3")
    raw.close()
    assert e.trust is EXPLORATORY
    assert "the store does not verify" in e.receipt()


def test_no_call_sets_a_rung(calibrated_store):
    store = calibrated_store
    registration = store.register(prediction(bound=2.5))
    e = grid(STRONG)
    store.append(e)
    lie = Outcome(registration.id, e.id, 1.8, 1.7, 1.9, held=True)
    for record in (lie, registration):
        with pytest.raises(EvidenceError, match="registrations are made by register"):
            store.append(record)
    with pytest.raises(TypeError):
        store.append(e, trust=ADJUDICATED)
    with pytest.raises(TypeError):
        store.adjudicate(registration.id, e.id, held=True)
    with pytest.raises(AttributeError):
        e.trust = ADJUDICATED

    class Forged(Evidence):
        @property
        def trust(self):
            return ADJUDICATED

    forged = Forged(**{f.name: getattr(e, f.name) for f in dataclasses.fields(e)})
    with pytest.raises(EvidenceError, match=r"evidence, scorecard, .* not Forged"):
        store.append(forged)
    assert e.trust is REGISTERED


def test_an_outcome_that_was_smuggled_in_decides_nothing(calibrated_store):
    store = calibrated_store
    registration = store.register(prediction(bound=2.5))
    e = grid(STRONG)
    store.append(e)
    lie = Outcome(registration.id, e.id, 1.8, 1.7, 1.9, held=True)
    with store._transaction("IMMEDIATE") as connection:
        chain.add(connection, entry_of(lie), parents_of(lie))
    assert store.verify().ok  # well formed and chained, and still not what follows
    assert e.trust is REGISTERED
    assert "not adjudicated yet" in said(store, e)
    assert not store.adjudicate(registration.id, e.id).held
    assert "REFUTED" in said(store, e)
