"""Concept heads and objective mixes: slopes and sums known by construction, on many trunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo
from families import make_signal
from organism_kit import make_pairs, untouched

import reward_lens as rl
from reward_lens.assets import asset
from reward_lens.data import Item
from reward_lens.errors import CapabilityError, DataError, EvidenceError, NumericsError
from reward_lens.instruments.objectives import objective_geometry
from reward_lens.organisms.mixture import objective_mix
from reward_lens.organisms.new_heads import read_states
from reward_lens.organisms.other_head import concept_head

PAIRS = make_pairs(40)
ITEMS = [*PAIRS.chosen, *PAIRS.rejected]


@pytest.fixture(scope="module")
def tiny():
    return rl.from_tiny()


@pytest.fixture(scope="module")
def states(tiny):
    return read_states(tiny, PAIRS)


def linear_feature(states, seed, noise=0.0):
    """A feature that is an affine function of the states, known by item."""
    rng = np.random.default_rng(seed)
    row = rng.standard_normal(states.values.shape[1])
    values = 5 + 3 * (states.values @ row) + noise * rng.standard_normal(len(states.items))
    known = {id(x): v for x, v in zip(states.items, values, strict=True)}
    return (lambda item: known[id(item)]), row, values


def test_a_feature_that_is_in_the_states_is_recovered(tiny, states):
    feature, row, values = linear_feature(states, 0)
    found = concept_head(tiny, states, feature, dose=2.0)
    direction = found.signal.readout("reward").direction.double().numpy()
    # Directions in which the states do not vary are nobody's to recover.
    centred = states.values - states.values.mean(0)
    read, true = centred @ direction, centred @ row
    assert np.corrcoef(read, true)[0, 1] > 1 - 1e-6
    assert found.truth["r2"] > 1 - 1e-4
    assert found.truth["slope"] == pytest.approx(2 / values.std(), rel=1e-3)
    assert found.truth["slope_held_out"] == pytest.approx(2 / values.std(), rel=1e-2)
    assert found.truth["correlation"] == pytest.approx(1, abs=1e-6)
    scores = found.signal.score(ITEMS).value.values
    assert scores.std() == pytest.approx(2, rel=1e-4)
    assert scores.mean() == pytest.approx(0, abs=1e-4)
    assert np.polyfit(values, scores, 1)[0] == pytest.approx(found.truth["slope"], rel=1e-4)
    assert not found.null
    assert found.dose == 2


def test_held_out_readings_never_saw_the_lineage(tiny, states):
    """A feature without any rule: what is fitted to it by heart is not held to be a fit."""
    noise = np.random.default_rng(3).standard_normal(len(PAIRS))
    by_row = {f"row-{k}": v for k, v in enumerate(noise)}  # both sides of a pair are alike in it

    def luck(item):
        return by_row[item.lineage]

    with pytest.raises(NumericsError, match="no head can be fitted to the feature 'luck'"):
        concept_head(tiny, states, luck)


def test_noise_and_dose(tiny, states):
    feature, *_ = linear_feature(states, 1)
    clean = concept_head(tiny, states, feature)
    noisy = concept_head(tiny, states, feature, noise=1.0, seed=1)
    # The noise is uncorrelated with the reading, so the slope stays and the correlation falls.
    assert noisy.truth["slope"] == pytest.approx(clean.truth["slope"], rel=1e-4)
    assert noisy.truth["correlation"] == pytest.approx(2**-0.5, abs=1e-3)
    assert noisy.signal.fingerprint != clean.signal.fingerprint
    again = concept_head(tiny, states, feature, noise=1.0, seed=1)
    assert again.signal.fingerprint == noisy.signal.fingerprint
    turned = concept_head(tiny, states, feature, dose=-1.0)
    assert turned.truth["slope"] == pytest.approx(-clean.truth["slope"], rel=1e-6)


def test_nulls(tiny, states):
    feature, *_ = linear_feature(states, 2)
    none = concept_head(tiny, states, feature, dose=0, noise=1, seed=4)
    assert none.null
    assert none.dose == 0
    assert "null" in none.planted
    assert abs(none.truth["correlation"]) < 1e-3
    assert none.signal.score(ITEMS).value.values.std() == pytest.approx(1, rel=1e-4)
    found = [concept_head(tiny, states, feature, shuffle=True, seed=seed) for seed in range(6)]
    assert all(f.null and f.dose == 0 and f.truth["r2"] < 0.2 for f in found)
    # Each may correlate with what the states hold; on average none does.
    correlations = np.array([f.truth["correlation"] for f in found])
    assert abs(correlations.mean()) < 4 * correlations.std() / 6**0.5
    with pytest.raises(DataError, match="the null of this kind is dose=0, noise=1"):
        concept_head(tiny, states, feature, dose=0)


def test_the_organism_says_that_it_is_one(tiny, states):
    found = concept_head(tiny, states, "words")
    ev = found.signal.score(ITEMS[:2])
    assert ev.subject.signal != tiny.fingerprint
    assert ev.subject.notes["source"] == "concept head on from_tiny(seed=0)"
    assert ev.subject.notes["head"] == "concept head"
    assert any("the head rewards 'words' by 1 SD" in n for n in found.signal.meta.notes)
    assert found.pairs is PAIRS
    assert found.truth["r2"] <= found.truth["r2_fit"]
    assert [i.name for i in found.intervals] == ["slope", "slope_held_out", "correlation"]
    with pytest.raises(EvidenceError, match="no interval 'slop'; this organism has slope"):
        found.interval("slop")


def test_the_trunk_is_shared_and_nothing_of_the_subject_changes(tiny):
    with untouched(tiny, ITEMS[:4]):
        found = concept_head(tiny, PAIRS, "tokens")
        found.signal.score(ITEMS[:4])
        rl.lens(found.signal, PAIRS[:4])
    shared = {p.data_ptr() for p in tiny.trunk.base.parameters()}
    assert {p.data_ptr() for p in found.signal.trunk.base.parameters()} == shared


TRUNKS = ("llama", "gpt2", "bert", "roberta", "deberta-v2", "modernbert", "opt")


@pytest.mark.parametrize("name", TRUNKS)
def test_on_other_trunks(name):
    """Heads with dense layers and activations are left behind; the new one is one row."""
    signal = rl.wrap_hf_model(zoo.make(name), zoo.tokenizer_for(name))
    with untouched(signal, ITEMS[:4]):
        states = read_states(signal, PAIRS)
        feature, _, values = linear_feature(states, 5)
        found = concept_head(signal, states, feature)
    assert found.signal.readout("reward").affine
    assert found.truth["correlation"] > 0.99
    assert found.signal.meta.granularity == signal.meta.granularity
    scores = found.signal.score(ITEMS).value.values
    assert np.corrcoef(scores, values)[0, 1] == pytest.approx(found.truth["correlation"], abs=1e-4)
    mixed = objective_mix(signal, states, {"f": 1.0, "words": -0.5}, features={"f": feature})
    assert mixed.signal.meta.quickcheck == "passed"


def test_on_half_precision_and_several_rows():
    model = zoo.make("llama", dtype=torch.bfloat16, num_labels=3)
    signal = rl.wrap_hf_model(model, zoo.tokenizer_for("llama"), sign=-1)
    states = read_states(signal, PAIRS)
    feature, *_ = linear_feature(states, 6)
    found = concept_head(signal, states, feature)
    assert found.signal.meta.dtype == "bfloat16"
    assert found.signal.meta.sign == 1
    assert found.signal.meta.n_rows == 1
    assert found.truth["slope"] > 0
    with pytest.raises(DataError, match="these states were read by another signal"):
        concept_head(make_signal("llama"), states, feature)


def test_on_the_demo_model():
    signal = rl.load_signal(asset("demo/model"))
    pairs = rl.load_pairs(asset("demo/pairs.jsonl")).sample(40)
    found = concept_head(signal, pairs, "tokens")
    assert found.truth["r2"] > 0.2
    assert found.interval("slope_held_out").low > 0
    # As a user would look: the instrument for length sees it.
    measured = rl.preference(found.signal, pairs)
    assert measured.interval("length.slope").low > 0


def test_refusals(tiny, states):
    with pytest.raises(DataError, match="'emoji' is 0 for every item, so no head can be fitted"):
        concept_head(tiny, states, "emoji")
    with pytest.raises(DataError, match="9 lineages are too few to fit a head"):
        concept_head(tiny, PAIRS[:9], "words")
    with pytest.raises(DataError, match="noise=-1"):
        concept_head(tiny, states, "words", noise=-1)
    with (
        tiny.intervene(rl.ablate("L1.H0")) as view,
        pytest.raises(CapabilityError, match="make the organism of the plain signal"),
    ):
        concept_head(view, PAIRS, "words")
    with pytest.raises(CapabilityError, match="needs the states of a classifier reward model"):
        read_states(object(), PAIRS)


def test_a_mix_of_two_objectives_adds_up(tiny, states):
    one, *_ = linear_feature(states, 7)
    two, *_ = linear_feature(states, 8)
    features = {"one": one, "two": two}
    parts = [concept_head(tiny, states, f) for f in features.values()]
    a, b = (p.signal.score(ITEMS).value.values for p in parts)
    mixed = objective_mix(tiny, states, {"one": 2.0, "two": -0.5}, features=features)
    scores = mixed.signal.score(ITEMS).value.values
    np.testing.assert_allclose(scores, 2 * a - 0.5 * b, atol=1e-4)
    assert mixed.truth["weight[one]"] == 2
    assert mixed.truth["correlation[one, two]"] == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-4)
    assert mixed.dose == pytest.approx(scores.std(), rel=1e-4)
    rows = objective_mix(tiny, states, {"one": 2.0, "two": -0.5}, features=features, rows=True)
    np.testing.assert_allclose(rows.signal.score(ITEMS).value.values, scores, atol=1e-4)
    first = rows.signal.score(ITEMS, readout="criterion:one").value.values
    np.testing.assert_allclose(first, 2 * 2 * a, atol=1e-3)
    # As a user would look: the geometry of the rows is that of the two heads.
    geometry = objective_geometry(rows.signal, PAIRS)
    heads = [p.signal.readout("reward").direction.double().numpy() for p in parts]
    cosine = -heads[0] @ heads[1] / np.linalg.norm(heads[0]) / np.linalg.norm(heads[1])
    assert geometry.value.values[0, 1] == pytest.approx(cosine, abs=1e-4)
    line = geometry.tables["scores"].iloc[0]
    assert line["correlation"] == pytest.approx(-mixed.truth["correlation[one, two]"], abs=1e-3)


def test_orthogonal_objectives_have_their_weights_as_shares(tiny, states):
    one, _, values = linear_feature(states, 9)
    feature, *_ = linear_feature(states, 10)
    # The second, less what it shares with the first over these items.
    second = np.array([feature(x) for x in states.items])
    slope = np.cov(second, values)[0, 1] / values.var(ddof=1)
    known = {id(x): v for x, v in zip(states.items, second - slope * values, strict=True)}
    features = {"one": one, "two": lambda item: known[id(item)]}
    mixed = objective_mix(tiny, states, {"one": 3.0, "two": 4.0}, features=features)
    assert abs(mixed.truth["correlation[one, two]"]) < 1e-3
    assert mixed.dose == pytest.approx(5, rel=1e-3)


def test_the_own_score_in_a_mix(tiny, states):
    own = objective_mix(tiny, states, {"own": 1.0})
    scores = tiny.score(ITEMS).value.values.astype(float)
    expected = (scores - scores.mean()) / scores.std()
    np.testing.assert_allclose(own.signal.score(ITEMS).value.values, expected, atol=1e-3)
    assert own.null  # nothing was planted
    assert own.dose == 0
    mixed = objective_mix(tiny, states, {"own": 1.0, "words": 0.5})
    assert mixed.dose == pytest.approx(0.5, rel=1e-6)
    found = rl.compare(tiny, mixed.signal, PAIRS)
    assert 0 < found.interval("pearson").estimate < 1
    null = objective_mix(tiny, states, {"own": 1.0, "words": 0.5}, shuffle=True)
    assert null.null
    assert "drawn at random" in null.planted


def test_mixes_that_are_refused(tiny, states):
    for parts in ({}, {"words": 0.0}, {"words": float("nan")}):
        with pytest.raises(DataError, match="give each objective a finite weight, not all of 0"):
            objective_mix(tiny, states, parts)
    with pytest.raises(DataError, match="a head of one row per objective needs at least two"):
        objective_mix(tiny, states, {"words": 1.0}, rows=True)
    with pytest.raises(DataError, match="no feature 'lenght'"):
        objective_mix(tiny, states, {"lenght": 1.0})
    encoder = rl.wrap_hf_model(zoo.make("roberta"), zoo.tokenizer_for("roberta"))
    with pytest.raises(CapabilityError, match="no single affine map .* leave 'own' out of the mix"):
        objective_mix(encoder, PAIRS, {"own": 1.0})


def test_items_of_one_kind_serve_as_well(tiny):
    rows = [
        Item(text=f"User: {k}\nAssistant: {'yes ' * (k % 7)}", lineage=str(k)) for k in range(30)
    ]
    found = concept_head(tiny, rows, "tokens")
    assert found.pairs is None
    assert found.truth["r2"] > 0
