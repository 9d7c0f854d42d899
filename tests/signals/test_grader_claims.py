"""What a grader's capabilities claim is tried: kept claims pass, each broken one is named."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import xarray as xr
from graders import Delegate, Toy, remade, text

import reward_lens as rl
from reward_lens.data import as_items
from reward_lens.signals import Capability


@pytest.fixture(scope="module")
def tiny():
    return rl.from_tiny()


def test_a_classifier_keeps_the_protocol_and_all_its_claims(tiny):
    report = rl.run_conformance(Delegate(tiny))
    assert report.passed, str(report)
    claimed = "PREFIX_SCORES, ACTIVATIONS, GRADIENTS, HVP, LINEAR_READOUT"
    assert report["claims"].measured == claimed
    assert report["capabilities"].measured == f"SCORES|{claimed.replace(', ', '|')}"


class Prefixes(Toy):
    """One position a character of the response."""

    caps = Capability.SCORES | Capability.PREFIX_SCORES

    def score_prefixes(self, items):
        given = as_items(items)
        curves = np.full((len(given), max(len(text(x)) for x in given)), np.nan)
        for k, x in enumerate(given):
            n = len(text(x))
            curves[k, :n] = [self.worth(text(x)[: t + 1]) for t in range(n)]
        return remade(
            super().score(given),
            value=xr.DataArray(self.bent(curves), dims=self.dims(), name="prefix_score"),
        )

    def bent(self, curves):
        return curves

    def dims(self):
        return ("item", "position")


def test_prefix_scores_of_an_own_grader():
    report = rl.run_conformance(Prefixes())
    assert report.passed, str(report)
    assert report["claims"].measured == "PREFIX_SCORES"


class Ahead(Prefixes):
    def bent(self, curves):
        return np.roll(curves, 1, axis=1)


class Empty(Prefixes):
    def bent(self, curves):
        curves[1] = np.nan
        return curves


class Turned(Prefixes):
    def dims(self):
        return ("position", "item")


@pytest.mark.parametrize(("grader", "said"), [
    (Ahead, "PREFIX_SCORES: the whole prefix misses the score by"),
    (Empty, "PREFIX_SCORES: item 1 has no finite prefix score"),
    (Turned, r"PREFIX_SCORES: score_prefixes\(\) gave \{'position': 5, 'item': 67\}, not \[item"),
])  # fmt: skip
def test_prefix_scores_that_are_not(grader, said):
    report = rl.run_conformance(grader())
    assert report.failed == ["claims"]
    assert re.match(said, report["claims"].measured), report["claims"].measured


class Broken(Delegate):
    """A classifier one of whose methods gives something else."""

    def __init__(self, signal, method, change):
        super().__init__(signal)
        honest = getattr(signal, method)
        setattr(self, method, lambda *given: change(honest(*given)))


def shifted(readout):
    return dataclasses.replace(readout, bias=readout.bias + 0.1)


def flat(readout):
    return dataclasses.replace(readout, bias=float("nan"))


@pytest.mark.parametrize(("method", "change", "said"), [
    ("capture", lambda found: {s: x[1:] for s, x in found.items()},
     r"ACTIVATIONS: capture\(\) gave states of shape \(4, 32\), not \[item, width\]; "
     r"LINEAR_READOUT: ValueError"),
    ("capture", lambda found: {s: x.flip(0) for s, x in found.items()},
     "LINEAR_READOUT: the readout of the captured states misses the score"),
    ("gradient", lambda found: [x.sum(0) for x in found],
     r"GRADIENTS: gradient\(\) gave shapes \[\(32,\).*; HVP: "),
    ("hvp", lambda found: found[1:], r"HVP: hvp\(\) gave shapes \[.*\] for \[.*\]$"),
    ("readout", shifted, "LINEAR_READOUT: the readout of the captured states misses the score"),
    ("readout", flat, "LINEAR_READOUT: the readout's direction is no vector, or its bias no num"),
])  # fmt: skip
def test_claims_about_the_inside_that_are_not_kept(tiny, method, change, said):
    report = rl.run_conformance(Broken(tiny, method, change))
    assert report.failed == ["claims"], str(report)
    assert re.match(said, report["claims"].measured), report["claims"].measured
