"""What an object prints of itself fits a screen: no module tree, no texts, no rows."""

from __future__ import annotations

import dataclasses

import pytest
from families import PAIRS, make_signal

import reward_lens as rl
from reward_lens.data import as_pairs
from reward_lens.instruments import fit_concept
from reward_lens.organisms import Planter
from reward_lens.organisms.gauge_twin import Rescaled
from reward_lens.organisms.new_heads import read_states
from reward_lens.signals import run_conformance


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


def test_the_parts_of_a_signal(signal):
    anatomy = signal.trunk.anatomy
    assert repr(anatomy).startswith("<Anatomy: ")
    assert repr(anatomy).endswith("verified by head>")
    lacking = dataclasses.replace(anatomy, missing={"L0.head": "no split verified"})
    assert repr(lacking).endswith("missing: L0.head>")
    assert repr(anatomy.normed) == "Tap(LlamaRMSNorm, call 0, ('out',))"
    assert "tensor" not in repr(signal.readout())
    assert "Linear" not in repr(anatomy.head)


def test_a_conformance_report_is_its_table(signal):
    report = run_conformance(signal)
    assert repr(report) == str(report)
    assert repr(report).startswith("conformance of ")


def test_what_is_made_of_a_signal(signal):
    assert "array" not in repr(fit_concept(signal, PAIRS, "L0.resid_post"))
    assert PAIRS[0][1] not in repr(read_states(signal, as_pairs(PAIRS)))
    assert repr(Rescaled(signal, 2.0, 0.5)).startswith("<Rescaled 2 times ClassifierRM(Llama")


def test_an_organism_and_a_calibration():
    signal = rl.from_tiny()
    colours = ["red", "blue", "green", "grey", "white", "black", "brown", "pink"]
    pairs = [
        (f"Name a colour, not {c}.", f"I say {a}.", f"Then {b} it is, and {c}.")
        for a, b, c in zip(colours, colours[3:] + colours, colours[5:] + colours, strict=False)
    ]
    with Planter(signal, pairs) as planter:
        organism = planter.organism("mlp write", dose=1.0, seed=0)
    assert repr(organism).startswith(f"<Organism {organism.id}: mlp write, dose 1 SD (cause L")
    assert repr(organism).endswith("8 pairs, read by reward>")
    found = rl.calibrate(signal, pairs, ["patch_grid"], doses=[1.0], organisms=3, nulls=3, fixing=4)
    assert repr(found) == (
        "<Calibration of 1 instruments\n  patch_grid: FAILED, detects no dose reliably>"
    )
    card = found["patch_grid"]
    assert repr(card) == f"<{card.summary()}>"
    assert "nan" not in repr(card)
