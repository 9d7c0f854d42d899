"""The answers on paper, judged by brute force; and what the organisms promise."""

from __future__ import annotations

import numpy as np
import pytest
from brute_force import EVERYWHERE, BruteForce
from keys import FORMS, made, mistakes

from reward_lens import errors, run_conformance
from reward_lens.organisms import (
    ANSWER_KEYS,
    READINGS,
    planted_head,
    planted_neuron,
    self_repair,
    spread_rule,
    two_hop,
)

CLOSE = 5e-6  # values are of size 1 to 5; float32 rounds sums of a few of them
FEW = ("attribution", "noise", "denoise everywhere", "zero", "denoise path")


def names_of(brute, key, reading):
    """All components; of paths, those from what matters into what could listen, and bystanders."""
    if "path" not in reading:
        return brute.components
    senders = dict.fromkeys(["embed", *key.planted[:4], "L0.mlp_out"])
    heads = {*[n for n in key.planted if ".H" in n][:4], "L1.H0"}
    paths = [p for sender in (["embed"] if EVERYWHERE in reading else senders)
             for p in brute.receivers_after(sender)]  # fmt: skip
    return [p for p in paths if ".H" not in (r := p.split(" -> ")[1]) or r[:5] in heads]


def sides_of(key):
    return key.pairs.chosen, key.pairs.rejected


def margins_of(key):
    chosen, rejected = (key.signal.score(side).value.values for side in sides_of(key))
    return chosen - rejected


def wrong_values(key, readings):
    brute, wrong = BruteForce(key), {}
    for reading in readings:
        names = names_of(brute, key, reading)
        found = brute.values(reading, names)
        said = mistakes(found, key.expected(reading, names), names, CLOSE)
        wrong.update({f"{reading}, {name}": w for name, w in said.items()})
    return wrong


@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_brute_force_gives_the_values_on_paper(name):
    assert not wrong_values(made(name), READINGS)


@pytest.mark.parametrize("form", ["null", "not tied"])
@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_brute_force_finds_nothing_in_a_null(name, form):
    key = made(name, form)
    assert not wrong_values(key, FEW)
    parts = [n for n in key.planted if n != "embed"]
    assert np.abs(key.expected("attribution", parts)).max() == 0
    assert np.abs(key.expected("noise", parts)).max() == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_margins_are_those_on_paper_and_none_is_zero(name, form):
    key = made(name, form)
    np.testing.assert_allclose(margins_of(key), key.margin, atol=CLOSE)
    assert np.abs(key.margin).min() > 0.05
    if form != "rule":
        np.testing.assert_array_equal(key.margin, key.truth["attribution"]["embed"])


@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_sides_of_different_lengths(name):
    key = ANSWER_KEYS[name](n=4, lengths="different")
    lengths = [[len(item.ids) for item in side] for side in sides_of(key)]
    assert lengths == [[8, 8, 8, 8], [8, 11, 8, 11]]
    np.testing.assert_allclose(margins_of(key), key.margin, atol=CLOSE)
    brute = BruteForce(key, pairs=[1, 3])
    for reading in ("attribution", "noise", "denoise", "zero"):
        found = brute.values(reading, brute.components)
        expected = key.expected(reading, brute.components)[1::2]
        assert not mistakes(found, expected, brute.components, CLOSE)
    with pytest.raises(errors.DataError, match="no reading 'noise everywhere'; it has attribution"):
        key.expected("noise everywhere", ["embed"])


@pytest.mark.parametrize(("layer", "dose"), [(0, 0.25), (1, -2.0), (2, 5.0)])
def test_a_neuron_or_head_of_any_layer_and_dose(layer, dose):
    neuron = planted_neuron(dose, layer=layer, n=2)
    head = planted_head(dose, layer=layer, head=3 - layer, n=2)
    for key, name in ((neuron, f"L{layer}.mlp_out"), (head, f"L{layer}.H{3 - layer}")):
        assert not wrong_values(key, ("attribution", "noise", "denoise"))
        np.testing.assert_array_equal(key.expected("noise", [name]), dose)


def test_values_written_out():
    """Numbers that anybody can check by reading the docstrings, for a dose of 2."""
    repair = self_repair(2.0, n=3)
    of = lambda reading, name: repair.expected(reading, [name])[0, 0]  # noqa: E731
    assert of("attribution", "L0.H1") == 2
    assert of("attribution", "L2.mlp_out") == -1.5
    assert of("noise", "L0.H1") == of("zero", "L0.attn_out") == 0.5
    assert of("gradient denoise", "L0.H1") == 2 - 2 * 1.5
    assert of("noise path", "L0.H1 -> readout") == 2
    assert of("noise path", "L0.H1 -> L2.mlp_in") == -1.5
    hops = two_hop(2.0, n=3)
    assert hops.expected("attribution", ["L0.H1", "L2.mlp_out"]).tolist() == [[0, 2]] * 3
    assert hops.expected("noise", ["L0.H1", "L2.mlp_out"]).tolist() == [[2, 2]] * 3
    paths = ["L0.H1 -> L2.mlp_in", "L0.H1 -> readout", "L2.mlp_out -> readout"]
    assert hops.expected("noise path", paths).tolist() == [[2, 0, 2]] * 3
    spread = spread_rule(2.0, n=3, heads=("L0.H0", "L0.H1", "L2.H3", "L1.H1"))
    names = ["L0.H0", "L2.H3", "L0.attn_out", "L1.H2"]
    assert spread.expected("denoise", names).tolist() == [[0.5, 0.5, 1.0, 0]] * 3


@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_an_organism_is_a_signal_like_any_other(name):
    key = made(name)
    assert key.signal.meta.quickcheck == "passed"
    assert key.signal.meta.granularity == "head"
    assert key.signal.meta.source == f"organism {key.name}"
    run_conformance(key.signal).raise_if_failed()
    assert len(set(key.pairs.lineages)) == len(key.pairs)
    assert "truth" not in repr(key)


def test_the_same_arguments_make_the_same_organism():
    one, two, other = (two_hop(n=2, seed=s) for s in (0, 0, 1))
    assert one.signal.fingerprint == two.signal.fingerprint != other.signal.fingerprint
    assert one.pairs.fingerprint == two.pairs.fingerprint != other.pairs.fingerprint


def test_a_shifted_truth_is_a_mistake():
    """The judge itself: an answer that is off by a hundredth, or at another place, is told."""
    key = made("two hops")
    names = ["L0.H1", "L2.mlp_out", "L1.H1"]
    found = key.expected("attribution", names)
    assert not mistakes(found, key.expected("attribution", names), names, CLOSE)
    assert set(mistakes(found + np.array([0, 0.01, 0]), found, names, CLOSE)) == {"L2.mlp_out"}
    assert set(mistakes(found[:, [2, 0, 1]], found, names, CLOSE)) == {"L2.mlp_out", "L1.H1"}
    lost = np.where(found == 1, np.nan, found)
    assert set(mistakes(lost, found, names, CLOSE)) == {"L2.mlp_out"}


def test_brute_force_sees_a_weight_that_was_changed():
    key = two_hop(n=2)
    key.signal.trunk.model.model.layers[2].mlp.down_proj.weight.data[2, 0] += 0.01
    assert "noise, L2.mlp_out" in wrong_values(key, ["noise"])


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: planted_neuron(layer=3), errors.AnatomyError, "layers 0 to 2; there is no such"),
        (lambda: planted_neuron(layer=-1), errors.AnatomyError, "layer -1: this model has layers"),
        (lambda: planted_head(head=4), errors.AnatomyError, "'L1.H4' is no head: write L<layer>"),
        (lambda: spread_rule(heads=("L3.H0",)), errors.AnatomyError, "layer 3: this model has"),
        (lambda: spread_rule(heads=("L0.mlp_out",)), errors.AnatomyError, "is no head"),
        (lambda: spread_rule(heads=()), errors.AnatomyError, "name one or more heads"),
        (lambda: spread_rule(heads=("L0.H1", "L0.H1")), errors.AnatomyError, "each of them once"),
        (lambda: two_hop(n=0), errors.DataError, "0 pairs are none"),
        (lambda: two_hop(lengths="odd"), errors.DataError, "choose one of equal, different"),
        (lambda: made("head").expected("noise", ["L1.resid_post"]), errors.DataError,
         "is no component, as 'L0.H1': this key says nothing of it"),
        (lambda: made("head").expected("noise path", ["L0.H1"]), errors.DataError, "is no path"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_or_answered_is_refused(call, error, said):
    with pytest.raises(error, match=said):
        call()
