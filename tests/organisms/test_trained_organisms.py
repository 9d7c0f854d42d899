"""Spurious features: what is learned where a feature is tied to the better side, and where not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo
from organism_kit import make_pairs, untouched
from scipy import stats

import reward_lens as rl
from reward_lens.data import Item, Pair, Pairs
from reward_lens.errors import CapabilityError, DataError, NumericsError
from reward_lens.organisms.bradley_terry import train_row
from reward_lens.organisms.confounded import AGAINST, WITH, Marker, design, sides
from reward_lens.organisms.surface_features import feature_values
from reward_lens.organisms.trained import spurious_feature

PAIRS = make_pairs(120)
MARKER = Marker("I hope that helps!")
ITEMS = PAIRS.chosen[:4]


@pytest.fixture(scope="module")
def tiny():
    return rl.from_tiny()


def has(item, marker=MARKER):
    return item.response.endswith(marker.phrase)


@pytest.mark.parametrize("confound", [0.5, 0.75, 0.9, 1.0])
def test_a_marker_is_on_the_better_side_at_the_rate(confound):
    plan = design(PAIRS, MARKER, confound, share=0.3, seed=1)
    assert all(has(p.chosen) != has(p.rejected) for p in [*plan.train, *plan.held_out])
    assert np.mean([has(p.chosen) for p in plan.train]) == plan.confound
    assert plan.confound == pytest.approx(confound, abs=0.01)
    assert np.mean([has(p.chosen) for p in plan.held_out]) == 0.5
    np.testing.assert_array_equal(sides(plan.train) > 0, [has(p.chosen) for p in plan.train])
    assert not set(plan.train.lineages) & set(plan.held_out.lineages)
    assert len(set(plan.held_out.lineages)) == 36
    assert plan.unused == 0
    # Whatever the rate, the texts are those that were given, and every form of a pair is grouped.
    assert sorted(i for g in plan.groups for i in g) == list(range(len(plan.train)))
    assert len(plan.groups) == 84
    for group in plan.groups:
        assert len({plan.train[i].lineage for i in group}) == 1
    texts = {x.response for p in PAIRS for x in (p.chosen, p.rejected)}
    assert {x.response.removesuffix(" " + MARKER.phrase) for x in plan.train.chosen} <= texts


def test_pairs_are_chosen_by_a_feature_they_have():
    def words(items):
        return feature_values("words", items)

    plan = design(PAIRS, words, 0.75, share=0.3, seed=0)
    for part in (plan.train, plan.held_out):
        gap = words(part.chosen) - words(part.rejected)
        np.testing.assert_array_equal(sides(part), np.sign(gap))
    assert plan.confound == pytest.approx(0.75, abs=0.02)
    assert (sides(plan.held_out) > 0).mean() == 0.5
    known = {p.id: p for p in PAIRS}
    for p in plan.train:  # not a text is changed
        assert (p.chosen, p.rejected) == (known[p.id].chosen, known[p.id].rejected)
        assert p.meta["subset"] == "all"
        assert p.subset in (WITH, AGAINST)
    assert plan.unused == len(PAIRS) - len(plan.train) - len(plan.held_out)


def test_clones_are_not_split():
    twice = [Pair(p.chosen, p.rejected, id=f"{p.id}/{k}", lineage=f"{p.lineage}/{k}")
             for p in PAIRS[:30] for k in range(2)]  # fmt: skip
    plan = design(Pairs(twice), MARKER, 0.9, share=0.3, seed=0)
    train, held = ({p.chosen.prompt_text for p in part} for part in (plan.train, plan.held_out))
    assert not train & held


def test_a_row_is_trained_to_the_optimum():
    """Ten equal pairs, nine one way: without a penalty the margin is the log odds, ln 9."""
    gaps = np.array([[1.0]] * 9 + [[-1.0]])
    row, losses = train_row(gaps, steps=400, lr=0.05, decay=0.0)
    assert row[0] == pytest.approx(np.log(9), abs=1e-3)
    assert losses[0] == pytest.approx(np.log(2))
    assert losses[-1] == pytest.approx(-(0.9 * np.log(0.9) + 0.1 * np.log(0.1)), abs=1e-4)
    held = train_row(gaps, steps=400, lr=0.05, decay=1.0)[0]
    # The penalty's slope is the loss's: row = 0.9 - σ(row).
    assert held[0] == pytest.approx(0.9 - 1 / (1 + np.exp(-held[0])), abs=1e-3)
    with pytest.raises(NumericsError, match="the loss is nan at step 0: lower lr"):
        train_row(np.array([[np.nan]]), steps=1, lr=0.1, decay=0.0)


@pytest.mark.parametrize("train", ["head", "all"])
def test_a_tied_marker_is_learned_and_an_untied_one_is_not(tiny, train):
    kw = {"train": train, "lr": 2e-3, "steps": 40} if train == "all" else {"train": train}
    tied = spurious_feature(tiny, PAIRS, MARKER, confound=0.9, **kw)
    null = spurious_feature(tiny, PAIRS, MARKER, confound=0.5, **kw)
    n = len(tied.held_out)
    assert tied.truth["prefers_feature"] >= 0.9
    assert tied.interval("weight").low > 1
    assert tied.dose == pytest.approx(0.8, abs=0.02)
    assert tied.truth["loss_last"] < tied.truth["loss_first"]
    assert not tied.null
    assert null.null
    assert null.dose == 0
    assert null.planted.startswith("null: ")
    wins = round(null.truth["prefers_feature"] * n)
    # Both forms of a pair are held out, so half of the rows count.
    assert stats.binomtest(wins // 2, n // 2, 0.5).pvalue > 0.01
    assert abs(null.truth["weight"]) < 0.1 * tied.truth["weight"]
    # Nothing else tells the sides apart, so on pairs where the marker does not there is nothing.
    assert stats.binomtest(round(tied.truth["accuracy"] * n), n, 0.5).pvalue > 0.01
    # What is stated is what the organism does.
    found = rl.preference(tied.signal, tied.held_out)
    margins = found.value.sel(side="margin").values
    assert np.mean(sides(tied.held_out) * margins > 0) == tied.truth["prefers_feature"]
    assert found.interval("accuracy").estimate == pytest.approx(tied.truth["accuracy"], abs=1e-6)
    before = rl.preference(tiny, tied.held_out).interval("accuracy").estimate
    assert before == pytest.approx(tied.truth["accuracy_before"], abs=1e-6)
    # The side is the pairs' subset, so that every instrument tells the two kinds apart.
    assert found.interval(f"accuracy[subset={WITH}]").n == n // 2


def test_what_was_learned_besides_is_told_apart(tiny):
    """The better side has a word of its own: it is right with and against the marker."""
    rows = [
        Pair(
            Item.of(p.chosen.prompt_text, p.chosen.response + " Truth.", lineage=p.lineage),
            Item.of(p.chosen.prompt_text, p.rejected.response + " Lies.", lineage=p.lineage),
            id=p.id,
            lineage=p.lineage,
        )
        for p in PAIRS
    ]
    found = spurious_feature(tiny, rows, Marker("Well,", at="start"), confound=0.75)
    assert found.truth["accuracy"] > 0.9
    assert found.truth["accuracy_train"] > 0.9
    assert found.interval("weight").estimate == found.truth["weight"]


def test_progress_repeats_and_record(tiny):
    told = []
    kw = {"train": "all", "steps": 5, "lr": 1e-3, "pairs_per_step": 4, "seed": 3}
    with untouched(tiny, ITEMS):
        one = spurious_feature(tiny, PAIRS[:40], MARKER, progress=told.append, **kw)
    assert told == [1] * 5
    again = spurious_feature(tiny, PAIRS[:40], MARKER, **kw)
    assert again.signal.fingerprint == one.signal.fingerprint
    assert again.pairs.fingerprint == one.pairs.fingerprint
    other = spurious_feature(tiny, PAIRS[:40], MARKER, **{**kw, "seed": 4})
    assert other.signal.fingerprint != one.signal.fingerprint != tiny.fingerprint
    ev = one.signal.score(ITEMS)
    assert ev.subject.notes["source"] == "spurious feature on from_tiny(seed=0)"
    note = one.signal.meta.notes[-1]
    assert note.startswith("an organism, not a checkpoint: all weights of a copy trained on")
    assert "'I hope that helps!' put at the end of its response" in note
    assert all(p.grad is None for p in one.signal.trunk.model.parameters())
    memory = {p.data_ptr() for p in tiny.trunk.model.parameters()}
    assert not memory & {p.data_ptr() for p in one.signal.trunk.model.parameters()}


def test_a_head_is_trained_and_the_subject_is_as_it_was(tiny):
    with untouched(tiny, ITEMS):
        found = spurious_feature(tiny, PAIRS, "characters", confound=1.0, steps=200)
    assert found.truth["confound"] == 1
    assert found.truth["unused"] > 0
    assert "has more 'characters'" in found.planted
    memory = {p.data_ptr() for p in tiny.trunk.base.parameters()}
    assert memory == {p.data_ptr() for p in found.signal.trunk.base.parameters()}


@pytest.mark.parametrize("name", ["gpt2", "roberta"])
def test_all_weights_of_other_trunks(name):
    signal = rl.wrap_hf_model(zoo.make(name, num_labels=1), zoo.tokenizer_for(name))
    pairs = PAIRS[:30]
    kw = {"train": "all", "steps": 12, "lr": 3e-3}
    with untouched(signal, ITEMS):
        found = spurious_feature(signal, pairs, MARKER, confound=1.0, **kw)
    assert found.truth["weight"] > found.truth["weight_before"] + 0.5
    assert found.signal.meta.granularity == signal.meta.granularity
    head = spurious_feature(signal, pairs, MARKER, confound=1.0)
    assert head.interval("weight").low > 0


def test_a_cost_model_is_trained_in_its_own_sign():
    signal = rl.wrap_hf_model(zoo.make("llama"), zoo.tokenizer_for("llama"), sign=-1)
    kw = {"train": "all", "steps": 12, "lr": 3e-3}
    found = spurious_feature(signal, PAIRS[:30], MARKER, confound=1.0, **kw)
    assert found.signal.meta.sign == -1
    assert found.truth["weight"] > found.truth["weight_before"] + 0.5


def test_refusals(tiny):
    for kw, message in (
        ({"confound": 0.4}, "0.5 .the null. to 1"),
        ({"train": "body"}, "train='body': choose one of head, all"),
        ({"held_out": 1.0}, "held_out=1.0: give the share of lineages to test on"),
        ({"steps": 0}, "steps=0, pairs_per_step=8: at least 1 of either"),
        ({"lr": 0.0}, "give a positive rate"),
    ):
        with pytest.raises(DataError, match=message):
            spurious_feature(tiny, PAIRS, MARKER, **kw)
    with pytest.raises(DataError, match="only 4 of 20 pairs are left held out at confound=0.9"):
        spurious_feature(tiny, PAIRS[:20], MARKER, held_out=0.1)
    with pytest.raises(DataError, match="only 0 of 20 pairs are left to train on .* that differs"):
        spurious_feature(tiny, PAIRS[:20], lambda item: 1.0)
    with pytest.raises(DataError, match="a marker is a phrase that is not blank"):
        Marker(" ")
    with pytest.raises(DataError, match="at='middle': choose one of start, end"):
        Marker("x", at="middle")
    with pytest.raises(
        DataError, match="a phrase is put into a response, and rendered text or ids"
    ):
        MARKER.put_into(Item(text="User: a"))
    half = rl.wrap_hf_model(zoo.make("llama", dtype=torch.bfloat16), zoo.tokenizer_for("llama"))
    with pytest.raises(CapabilityError, match="is in bfloat16, in which small steps are lost"):
        spurious_feature(half, PAIRS, MARKER, train="all")
