"""The record of the slow calibrations speaks of the code as it is, and says what it must."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from broken_instruments import BROKEN
from calibration_code import calibration_fingerprint

from reward_lens.evidence.scorecard import MAX_FALSE_POSITIVES, MIN_NULLS, MIN_ORGANISMS

RECORD = Path(__file__).parents[1] / "slow" / "calibration.json"
MODELS = ("the demo model", "a random Llama")
INSTRUMENTS = ["lens", "attribution", "patch_grid", "path_effects"]


@cache
def record():
    return json.loads(RECORD.read_text())


def test_the_record_is_of_this_code():
    said = "run `make check-slow` and commit its record"
    assert record()["code"] == calibration_fingerprint(), said


@pytest.mark.parametrize("model", MODELS)
def test_every_instrument_passes_and_in_time(model):
    measured = record()["measured"][model]
    assert min(measured["seconds"], measured["processor seconds"]) < 600
    assert [card["instrument"] for card in measured["cards"]] == INSTRUMENTS
    for card in measured["cards"]:
        assert card["passed"]
        assert card["organisms"] >= 3 * MIN_ORGANISMS - 3
        assert card["nulls"] >= MIN_NULLS
        assert card["at_most"] <= MAX_FALSE_POSITIVES


@pytest.mark.parametrize("model", MODELS)
def test_strong_plants_are_calibrated_and_weak_ones_under_the_limit(model):
    rungs = record()["measured"][model]["rungs"]
    assert {(instrument, dose) for instrument, _, dose, _ in rungs} == {
        (instrument, dose) for instrument in INSTRUMENTS for dose in (2.5, 0.1)
    }
    for _, _, dose, rung in rungs:
        assert rung == ("CALIBRATED" if dose > 1 else "EXPLORATORY")


@pytest.mark.parametrize("model", MODELS)
def test_new_nulls_do_not_speak_against_the_bounds(model):
    rows = record()["measured"][model]["fresh nulls"]
    assert [row["instrument"] for row in rows] == INSTRUMENTS
    for row in rows:
        assert row["nulls"] >= MIN_NULLS
        assert row["p_value"] > 0.01


def test_broken_instruments_fail():
    broken = record()["measured"]["broken"]
    for what, (_, _, why) in BROKEN.items():
        assert why in "; ".join(broken[what])
