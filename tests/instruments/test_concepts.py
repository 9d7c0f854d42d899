"""Concept directions, on states that are known by construction."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from families import FAMILIES, PAIRS, make_signal
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_lens.data import Item, as_pairs
from reward_lens.errors import AnatomyError, CapabilityError, DataError, NumericsError
from reward_lens.instruments.concepts import Concept, fit_concept, logistic, mean_difference
from reward_lens.instruments.labelled import as_labelled

LAST = "L2.resid_post"
TEXTS = [f"word {k} and {k * k}" for k in range(12)]
POSITIVE = [(f"Question {k}", f"{t}!") for k, t in enumerate(TEXTS)]
NEGATIVE = [(f"Question {k}", f"{t}?") for k, t in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


def states_at(signal, items, site=LAST):
    return signal.capture(items, [site])[site].double().numpy()


def test_the_mean_difference_is_the_difference_of_the_means(signal):
    found = fit_concept(signal, (POSITIVE, NEGATIVE), LAST)
    expected = states_at(signal, POSITIVE).mean(0) - states_at(signal, NEGATIVE).mean(0)
    np.testing.assert_allclose(found.vector, expected, atol=1e-6)
    assert np.linalg.norm(found.direction) == pytest.approx(1, abs=1e-12)
    assert found.step == pytest.approx(np.linalg.norm(expected), rel=1e-6)
    assert (found.n_positive, found.n_negative, found.site) == (12, 12, LAST)


@pytest.mark.parametrize(
    "form",
    [
        {"positive": POSITIVE, "negative": NEGATIVE},
        [*((x, True) for x in POSITIVE), *((x, 0) for x in NEGATIVE)],
        [{"prompt": p, "response": r, "label": 1} for p, r in POSITIVE]
        + [{"prompt": p, "response": r, "label": 0} for p, r in NEGATIVE],
        pd.DataFrame(
            [(p, r, 1) for p, r in POSITIVE] + [(p, r, 0) for p, r in NEGATIVE],
            columns=["prompt", "response", "label"],
        ),
        [(p, a, b) for (p, a), (_, b) in zip(POSITIVE, NEGATIVE, strict=True)],
        as_pairs([(p, a, b) for (p, a), (_, b) in zip(POSITIVE, NEGATIVE, strict=True)]),
    ],
    ids=["mapping", "labelled", "rows", "table", "triples", "pairs"],
)
def test_every_form_of_the_same_labels_gives_the_same_direction(signal, form):
    one, other = fit_concept(signal, (POSITIVE, NEGATIVE), LAST), fit_concept(signal, form, LAST)
    np.testing.assert_allclose(other.direction, one.direction, atol=1e-9)
    assert other.step == pytest.approx(one.step)
    assert other.accuracy.estimate == one.accuracy.estimate


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(3, 40))
def test_logistic_finds_the_channel_that_tells_sets_apart(seed, n):
    """One channel separates the sets whatever scale it has; the others are noise or constant."""
    rng = np.random.default_rng(seed)
    positive = np.arange(2 * n) < n
    states = 0.01 * rng.standard_normal((2 * n, 5))
    states[:, 3] = 7.0  # says nothing
    states[:, 1] += np.where(positive, 1.0, -1.0)
    unit, threshold = logistic(states, positive)
    assert np.linalg.norm(unit) == pytest.approx(1)
    assert abs(unit[3]) < 1e-12
    assert ((states @ unit > threshold) == positive).all()
    swapped, opposite = logistic(states, ~positive)
    np.testing.assert_allclose(swapped, -unit, atol=1e-3)
    assert opposite == pytest.approx(-threshold, abs=1e-2)


def test_logistic_looks_past_a_loud_channel_and_the_mean_difference_does_not():
    """Channel 0 is a hundred times as loud and differs by chance; channel 1 tells them apart."""
    rng = np.random.default_rng(0)
    positive = np.arange(60) < 30
    states = np.column_stack([100 * rng.standard_normal(60), np.where(positive, 1.0, -1.0)])
    assert abs(mean_difference(states, positive)[0][0]) > 0.9
    assert abs(logistic(states, positive)[0][0]) < 0.1


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_a_shift_of_the_states_moves_the_threshold_and_nothing_else(seed):
    rng = np.random.default_rng(seed)
    states, shift = rng.standard_normal((20, 4)), 10 * rng.standard_normal(4)
    positive = rng.permutation(20) < 8
    for fit in (mean_difference, logistic):
        unit, threshold = fit(states, positive)
        moved, further = fit(states + shift, positive)
        np.testing.assert_allclose(moved, unit, atol=1e-4)
        assert further == pytest.approx(threshold + unit @ shift, abs=1e-2)


@pytest.mark.parametrize("method", ["mean_difference", "logistic"])
def test_labels_that_the_states_carry_are_recovered(signal, method):
    """The texts end in ! or ?, and the read token is that character: every fold is right."""
    found = fit_concept(signal, (POSITIVE, NEGATIVE), "L0.resid_pre", method=method)
    assert found.accuracy.estimate == 1
    assert found.auc == 1
    assert found.accuracy.clusters == 12
    assert found.step_held_out == pytest.approx(found.step, rel=1e-4)
    assert found.spread == pytest.approx(0, abs=1e-5)


def test_shuffled_labels_are_not_recovered(signal):
    """Accuracy over many shufflings is a half, and the step is nothing on items held out."""
    items, rng = [*POSITIVE, *NEGATIVE], np.random.default_rng(0)
    found = []
    for _ in range(20):
        labels = rng.permutation(24) < 12
        found.append(fit_concept(signal, list(zip(items, labels, strict=True)), "L0.resid_post"))
    assert np.mean([f.accuracy.estimate for f in found]) == pytest.approx(0.5, abs=0.12)
    assert np.mean([f.auc for f in found]) == pytest.approx(0.5, abs=0.12)
    held_out = np.mean([f.step_held_out for f in found])
    assert abs(held_out) < 0.25 * np.mean([f.step for f in found])


def test_the_read_token_follows_the_position(signal):
    items = [Item(ids=(65 + k, 100 - k)) for k in range(4)]
    labels = np.array([True, True, False, False])
    for position, token in (("first", 0), ("last", 1), (None, 1)):
        found = fit_concept(signal, list(zip(items, labels, strict=True)), LAST, position=position)
        every = signal.capture(items, [LAST], position="all")[LAST]
        states = torch.stack([s[token] for s in every]).double().numpy()
        expected = states[labels].mean(0) - states[~labels].mean(0)
        np.testing.assert_allclose(found.vector, expected, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_directions_of_every_family(family):
    signal = make_signal(family)
    found = fit_concept(signal, PAIRS, f"L{signal.meta.n_layers - 1}.resid_post")
    assert np.isfinite(found.vector).all()
    assert found.accuracy.clusters == 3


def test_a_direction_that_is_handed_over_is_taken_as_it_is(signal):
    vector = np.arange(32.0)
    one = fit_concept(signal, vector, LAST)
    other = fit_concept(signal, torch.arange(32.0, dtype=torch.float64), LAST)
    np.testing.assert_allclose(one.vector, vector)
    assert one.fingerprint == other.fingerprint
    assert (one.method, one.n_positive, one.accuracy) == ("given", 0, None)
    assert np.isnan(one.auc)
    one.vector[0] = 5  # a copy
    assert vector[0] == 0


def test_lineages_that_cannot_be_held_out_are_said(signal):
    same = [("one prompt", f"answer {k}") for k in range(6)]
    found = fit_concept(signal, (same[:3], same[3:]), LAST)
    assert found.accuracy is None
    assert np.isnan(found.auc)
    assert "all of one lineage" in found.note
    assert np.isfinite(found.vector).all()


def test_few_lineages_make_few_folds(signal):
    items = [("a", f"{k}") for k in range(6)] + [("b", "x"), ("b", "y")]
    labels = [1, 1, 1, 0, 0, 0, 1, 0]
    found = fit_concept(signal, list(zip(items, labels, strict=True)), LAST)
    assert found.accuracy.n == 8
    assert found.accuracy.clusters == 2


@pytest.mark.parametrize(
    ("concept", "error", "words"),
    [
        ((POSITIVE, []), DataError, "negative items: there are no items"),
        ((POSITIVE, NEGATIVE[:1]), DataError, "1 negative items and needs 2"),
        ([(x, 1) for x in POSITIVE], DataError, "0 negative items"),
        ([(x, "yes") for x in POSITIVE], DataError, "label 'yes'; labels are 1 and 0"),
        ([(POSITIVE[0], 1), ("a", "b", "c")], DataError, "labelled item 1 has no label"),
        ([("text alone", 1)], DataError, "bare string"),
        ({"good": POSITIVE, "bad": NEGATIVE}, DataError, r"keys \['bad', 'good'\]"),
        (POSITIVE[0], DataError, "one tuple of 2 texts"),
        ("happy", DataError, "got one str"),
        ([0.5, 1.0], DataError, "chosen sides are the positive items"),
        (np.ones(31), DataError, r"shape \[31\].*has 32 channels"),
        (np.ones((2, 32)), DataError, r"shape \[2, 32\]"),
        (np.zeros(32), NumericsError, "points nowhere"),
        (np.full(32, np.nan), NumericsError, "points nowhere"),
        ((POSITIVE, POSITIVE), NumericsError, "same mean state at L2.resid_post"),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_what_is_no_concept_is_refused(signal, concept, error, words):
    with pytest.raises(error, match=words):
        fit_concept(signal, concept, LAST)


def test_wrong_options_are_refused(signal):
    with pytest.raises(CapabilityError, match="choose one of mean_difference, logistic"):
        fit_concept(signal, PAIRS, LAST, method="pca")
    with pytest.raises(AnatomyError, match="layers 0 to 2"):
        fit_concept(signal, PAIRS, "L3.resid_post")


def test_the_fingerprint_is_that_of_labels_and_texts():
    base = as_labelled((POSITIVE, NEGATIVE))
    assert base.fingerprint == as_labelled({"positive": POSITIVE, "negative": NEGATIVE}).fingerprint
    assert base.fingerprint != as_labelled((NEGATIVE, POSITIVE)).fingerprint
    assert base.fingerprint != as_labelled((POSITIVE[:-1], NEGATIVE)).fingerprint
    assert as_labelled(base) is base


def test_folds_follow_the_seed(signal):
    def fitted(seed):
        return fit_concept(signal, PAIRS, LAST, seed=seed)

    a, b = fitted(0), fitted(0)
    assert isinstance(a, Concept)
    assert a.auc == b.auc
    assert a.step_held_out == b.step_held_out
    np.testing.assert_array_equal(a.direction, fitted(1).direction)
