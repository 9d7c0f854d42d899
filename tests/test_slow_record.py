"""The record of the slow tests speaks of the code as it is."""

from __future__ import annotations

import json
from pathlib import Path

from code_fingerprint import code_fingerprint

RECORD = Path(__file__).parent / "slow" / "thirty_layers.json"


def test_the_record_of_the_thirty_layer_model_is_of_this_code():
    record = json.loads(RECORD.read_text())
    assert record["code"] == code_fingerprint(), "run `make check-slow` and commit its record"


def test_the_recorded_figures_hold():
    measured = json.loads(RECORD.read_text())["measured"]
    assert measured["largest gap to the reference scores"] <= 1e-3
    assert measured["completeness by component"] <= 1e-6
    assert measured["completeness by head"] <= 1e-6
