"""Scorecards earned on a model: right instruments pass, broken ones fail, readings are judged."""

from __future__ import annotations

import json

import pytest
from broken_instruments import BROKEN
from engine_kit import ids_item
from zoo import make, tokenizer_for

import reward_lens as rl
from reward_lens import wrap_hf_model
from reward_lens.data import Pair, Pairs
from reward_lens.errors import CapabilityError, DataError, EvidenceError, NumericsError
from reward_lens.evidence import EvidenceStore, Scorecard, TrustLevel
from reward_lens.evidence import scorecard as cards
from reward_lens.organisms import Planter, calibration
from reward_lens.organisms.calibration_draws import Draw

PAIRS = Pairs([
    Pair(ids_item(2 * k, 9 + k % 4), ids_item(2 * k + 1, 8 + k % 3), f"p{k}", f"p{k}")
    for k in range(24)
])  # fmt: skip
#: Enough for a card, and no more.
ENOUGH = {"doses": (2.0,), "organisms": 21, "nulls": 60, "fixing": 12}
#: Not enough for a card.
FEW = {"doses": (2.0,), "organisms": 3, "nulls": 1, "fixing": 2}
ORGANISMS = 3 + 1 + 2


@pytest.fixture(scope="module")
def signal():
    model = make("llama", initializer_range=0.2)
    return wrap_hf_model(model, tokenizer_for("llama"), conformance_quickcheck=False)


@pytest.fixture(scope="module")
def made(signal, tmp_path_factory):
    """A calibration and the store that it is in."""
    with EvidenceStore(tmp_path_factory.mktemp("store") / "s.db") as store:
        yield rl.calibrate(signal, PAIRS, ("lens", "patch_grid"), store=store, **ENOUGH), store


def test_right_instruments_pass(made):
    found, store = made
    assert found.passed
    assert set(found) == {"lens", "patch_grid"}
    for name, card in found.cards.items():
        assert store.get(card.id) == card
        assert card.instrument == name
        assert card.fixed_on == "mlp write"
        assert {t.kind for t in card.planted} == {"attention write", "head write", "two hops"}
        assert (len(card.planted), len(card.nulls)) == (21, 60)
        assert card.n_pairs == (24, 240)
        assert card.size == pytest.approx(1.0, abs=0.25)
    grid = found["patch_grid"]
    assert grid.coverage[1] == 21
    assert set(grid.site_kinds) <= {"attn_out", "mlp_out"}
    assert found.evidences == ()


def test_the_table_says_what_the_cards_say(made):
    found, _ = made
    table = found.to_dataframe().set_index("instrument")
    for name, card in found.cards.items():
        row = table.loc[name]
        assert row["detection_dose"] == card.detection_dose
        assert (row["false_positives"], row["at_most"]) == card.false_positives
        assert row["card"] == card.id
        assert card.id in str(found)
        assert card.id in found._repr_html_()


@pytest.mark.parametrize("instrument", ["lens", "patch_grid"])
def test_strong_plants_are_calibrated_and_weak_ones_are_under_the_limit(made, signal, instrument):
    found, store = made
    measure = getattr(rl, instrument)
    with Planter(signal, PAIRS) as planter:
        for kind in ("attention write", "mlp write"):
            strong = planter.organism(kind, 2.5, seed=99)
            weak = planter.organism(kind, 0.15, seed=99)
            e, under = (measure(o.signal, o.pairs) for o in (strong, weak))
            store.append_all([e, under])
            assert e.trust is TrustLevel.CALIBRATED
            assert under.trust is TrustLevel.EXPLORATORY
            assert "under the detection limit" in under.receipt()
    assert found[instrument].id in e.receipt()


def test_the_models_own_readings_are_judged_and_those_of_a_changed_one_are_not(made, signal):
    _, store = made
    own = rl.patch_grid(signal, PAIRS)
    with signal.intervene(rl.ablate("L0.mlp_out")) as view:
        changed = rl.patch_grid(view, PAIRS)
    fewer = rl.patch_grid(signal, PAIRS[:10])
    heads = rl.patch_grid(signal, PAIRS, by="head")
    store.append_all([own, changed, fewer, heads])
    assert own.standing.records
    for e, why in (
        (changed, "interventions is"),
        (fewer, "10 pairs here"),
        (heads, "by is 'head'"),
    ):
        assert e.trust is TrustLevel.EXPLORATORY
        assert why in e.receipt()


def test_new_nulls_do_not_speak_against_the_bound(made):
    found, _ = made
    table = found.fresh_nulls(20)
    assert table["nulls"].tolist() == [20, 20]
    assert (table["p_value"] > 0.01).all()
    seeds = {s for card in found.cards.values() for s in card.seeds}
    with found.course.planter() as planter:
        fresh = found.course.nulls(planter, 20)
    assert len(fresh) == 20
    assert not seeds & {draw.seed(0) for draw in fresh}


# Broken instruments.


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_instrument_fails_its_card_and_every_reading_says_so(
    signal, tmp_path, what, monkeypatch
):
    name, function, why = BROKEN[what]
    monkeypatch.setattr(cards, "MIN_ORGANISMS", 6)
    monkeypatch.setattr(cards, "MIN_NULLS", 1)
    few = {"doses": (2.0,), "organisms": 6, "nulls": 1, "fixing": 4}
    with EvidenceStore(tmp_path / "s.db") as store:
        found = rl.calibrate(signal, PAIRS, (name,), functions={name: function}, store=store, **few)
        card = found[name]
        assert not found.passed
        assert why in "; ".join(card.failures)
        e = function(signal, PAIRS)
        store.append(e)
        assert e.trust is TrustLevel.EXPLORATORY
        assert e.standing.failed
        assert f"FAILED its scorecard {card.id}" in e.receipt()
        assert e.standing.name == "exploratory, FAILED its scorecard"


def test_a_lens_in_its_right_unit_reads_what_was_planted(made):
    assert made[0]["lens"].size == pytest.approx(1.0, abs=0.25)


# How it is run.


def test_what_was_measured_before_is_not_measured_again(signal, tmp_path):
    calls = []

    def counted(signal, pairs, **options):
        calls.append(pairs.fingerprint)
        return rl.patch_grid(signal, pairs, **options)

    def stopped(done, total):
        if done == 4:
            raise KeyboardInterrupt

    options = {"functions": {"patch_grid": counted}, **FEW}
    with EvidenceStore(tmp_path / "s.db") as store:
        with pytest.raises(KeyboardInterrupt):
            rl.calibrate(signal, PAIRS, ("patch_grid",), store=store, progress=stopped, **options)
        assert len(store) == 4
        first = rl.calibrate(signal, PAIRS, ("patch_grid",), store=store, **options)
        # The first organism is run again: it tells what the others' measurements will be of.
        assert len(calls) == 4 + 1 + (ORGANISMS - 4)
        assert len(store) == ORGANISMS + 1
        again = rl.calibrate(signal, PAIRS, ("patch_grid",), store=store, **options)
        assert again.cards == first.cards
        assert len(store) == ORGANISMS + 1
        # With other options nothing of it is the same measurement.
        other = {"patch_grid": {"direction": "noise"}}
        rl.calibrate(signal, PAIRS, ("patch_grid",), store=store, options=other, **options)
        assert len(store) == 2 * (ORGANISMS + 1)


def test_the_order_in_which_it_runs_changes_nothing_on_the_card(signal):
    alone = rl.calibrate(signal, PAIRS, ("lens",), **FEW)
    both = rl.calibrate(signal, PAIRS, ("lens", "attribution"), **FEW)
    assert both["lens"] == alone["lens"]
    seeds = {Draw(k, kind, dose, fresh).seed(seed) for k in (0, 1) for kind in ("a", "b")
             for dose in (0.0, 1.0) for fresh in (False, True) for seed in (0, 1)}  # fmt: skip
    assert len(seeds) == 2**5


def test_without_a_store_the_evidence_is_at_hand(signal, tmp_path):
    names = ("attribution_heads", "patch_grid_heads", "path_effects", "attribution_patching")
    found = rl.calibrate(signal, PAIRS, names, **FEW)
    assert tuple(found) == names
    heads, paths = found["attribution_heads"], found["path_effects"]
    for name, begin in (("attribution_heads", "L"), ("patch_grid_heads", "noise L")):
        card = found[name]
        assert {t.kind for t in card.planted} == {"head write"}
        assert card.site_kinds == ("head",)
        assert all(t.place.startswith(begin) and ".H" in t.place for t in card.planted)
    assert {t.kind for t in paths.planted} == {"attention write", "head write", "two hops"}
    assert any(t.place.split()[2] != "readout" for t in paths.planted)
    with EvidenceStore(tmp_path / "s.db") as store:
        found.append_to(store)
        assert store.get(heads.id) == heads
        assert store.verify().ok


def test_organisms_are_told_and_all_of_them_are(signal):
    told = []
    rl.calibrate(signal, PAIRS, ("lens",), progress=lambda *a: told.append(a), **FEW)
    assert told == [(k, ORGANISMS) for k in range(1, ORGANISMS + 1)]


def test_an_instrument_that_refuses_is_left_out_and_says_why(signal):
    def refuses(signal, pairs, **options):
        raise NumericsError("too coarse")

    found = rl.calibrate(signal, PAIRS, ("lens", "attribution"),
                         functions={"attribution": refuses}, **FEW)  # fmt: skip
    assert set(found) == {"lens"}
    assert found.skipped == {"attribution": "too coarse"}
    assert "attribution: no card: too coarse" in str(found)
    assert "too coarse" in found._repr_html_()


def test_a_kind_of_rule_that_cannot_be_planted_is_stood_in_for(signal, monkeypatch):
    real = Planter.organism

    def without_heads(self, kind, dose, seed):
        if kind == "head write":
            raise NumericsError("it saturates")
        return real(self, kind, dose, seed)

    monkeypatch.setattr(Planter, "organism", without_heads)
    found = rl.calibrate(signal, PAIRS, ("lens",), **{**FEW, "organisms": 6})
    assert {t.kind for t in found["lens"].planted} == {"attention write", "two hops"}
    assert len(found["lens"].planted) == 6
    (note,) = found.notes
    assert note == "head write: it saturates; other kinds stand in for it"


REFUSED = {
    "an instrument": ({"instruments": ("preference",)}, CapabilityError, "'preference': what can"),
    "none": ({"instruments": ()}, CapabilityError, "no instrument: what can be calibrated is lens"),
    "a dose": ({"doses": (0.0,)}, DataError, r"doses=\(0.0,\): give a list of positive numbers"),
    "no dose": ({"doses": ()}, DataError, "doses"),
    "no nulls": ({"fixing": 1}, DataError, "two nulls to fix the threshold on"),
    "a function": ({"functions": {"x": rl.lens}}, CapabilityError, "functions names 'x'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_no_sense_is_refused(signal, what):
    options, error, why = REFUSED[what]
    with pytest.raises(error, match=why):
        rl.calibrate(signal, PAIRS, **{"instruments": ("lens",), **FEW, **options})


def test_one_kind_of_rule_is_not_enough(signal, monkeypatch):
    monkeypatch.setattr(Planter, "kinds", property(lambda self: ("mlp write",)))
    with pytest.raises(CapabilityError, match="rules of one kind only"):
        rl.calibrate(signal, PAIRS, ("lens",), **FEW)


def test_a_card_is_no_card_of_another_trial(made):
    """A verdict is computed: what was read cannot be changed without its evidence."""
    found, _ = made
    record = found["lens"].to_dict()
    record["trials"][0]["reading"] = 9.0
    with pytest.raises(EvidenceError, match="its content is"):
        Scorecard.from_dict(json.loads(json.dumps(record)))
    assert calibration.INSTRUMENTS == ("lens", "attribution", "patch_grid", "path_effects")
