"""The recorded simulation of coverage speaks of the code as it is, and of all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from coverage_cells import BAND, CLUSTERS, cells, fingerprint, holds, simulated

RECORD = json.loads((Path(__file__).parents[1] / "slow" / "coverage.json").read_text())
MEASURED = RECORD["measured"]


def test_the_record_is_of_this_code():
    assert RECORD["code"] == fingerprint(), "run `make check-slow` and commit its record"


def test_every_cell_was_simulated_often_enough():
    assert set(MEASURED) == {name for name, _ in cells()}
    assert RECORD["replicates"] >= 1000


def test_stated_intervals_cover_or_say_that_they_do_not():
    assert [name for name, cell in MEASURED.items() if not holds(cell)] == []


def test_unclustered_intervals_fail_the_same_test():
    assert [n for n, c in MEASURED.items() if c["unclustered covers"] >= BAND[0]] == []


def test_from_thirty_lineages_the_level_holds_without_a_note_for_means_slopes_and_angles():
    kept = [
        cell
        for name, cell in MEASURED.items()
        if not name.startswith("accuracy") and f" {CLUSTERS[0]} lineages" not in name
    ]
    assert len(kept) == 30
    assert all(BAND[0] <= c["covers"] <= BAND[1] for c in kept)


@pytest.mark.parametrize(
    "name", ["bias effect, light tails, 30 lineages", "accuracy 0.8, 60 lineages"]
)
def test_a_few_replicates_come_to_what_the_record_says(name):
    found = simulated(dict(cells())[name], 200)
    assert found["covers"] == pytest.approx(MEASURED[name]["covers"], abs=0.05)
