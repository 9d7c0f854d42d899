"""The record of the slow tests speaks of the code as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from code_fingerprint import code_fingerprint

SLOW = Path(__file__).parent / "slow"


def measured_in(name):
    return json.loads((SLOW / name).read_text())["measured"]


@pytest.mark.parametrize("name", ["thirty_layers.json", "big_checkpoint.json"])
def test_the_record_is_of_this_code(name):
    record = json.loads((SLOW / name).read_text())
    assert record["code"] == code_fingerprint(), "run `make check-slow` and commit its record"


def test_a_gigabyte_in_shards_loads_within_its_bound():
    measured = measured_in("big_checkpoint.json")
    assert measured["peak memory of a load over the weights"] <= 1.1
    assert measured["shards"] >= 3
    assert measured["weights in GB"] >= 1.0


def test_the_recorded_figures_hold():
    measured = measured_in("thirty_layers.json")
    assert measured["largest gap to the reference scores"] <= 1e-3
    assert measured["completeness by component"] <= 1e-6
    assert measured["completeness by head"] <= 1e-6
