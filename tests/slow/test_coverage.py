"""Do intervals cover what they state? Simulated, with the table that the fast tests look at.

The table is written to ``coverage.json`` when all of it held, with a hash of the code it speaks of.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from coverage_cells import BAND, cells, fingerprint, holds, simulated

pytestmark = pytest.mark.slow

RECORD = Path(__file__).with_name("coverage.json")
REPLICATES = 2000
CELLS = dict(cells())


@pytest.fixture(scope="module")
def record(request):
    """Collects the cells; written at the end if none failed."""
    measured = {}
    failed, code = request.session.testsfailed, fingerprint()  # of the code that runs now
    yield measured
    if request.session.testsfailed == failed and len(measured) == len(CELLS):
        body = {"code": code, "replicates": REPLICATES, "measured": measured}
        RECORD.write_text(json.dumps(body, indent=1, sort_keys=True) + "\n")


@pytest.mark.parametrize("name", CELLS)
def test_a_stated_interval_covers_or_says_that_it_does_not(name, record):
    record[name] = simulated(CELLS[name], REPLICATES)
    assert holds(record[name]), record[name]
    assert record[name]["unclustered covers"] < BAND[0], record[name]
