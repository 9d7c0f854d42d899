"""``docs/support.md`` speaks of the code as it is, and says what is expected of every type."""

from __future__ import annotations

import math
import re
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest
import zoo
from code_fingerprint import code_fingerprint
from zoo_expected import ALONE, EXPECTED, FAILING

TABLE = Path(__file__).resolve().parent.parent / "docs" / "support.md"
RERUN = "run `make support` and commit docs/support.md"
COMPLETE = 1e-6  # of the sum of the sizes of the writes


@cache
def rows() -> dict[str, dict[str, str]]:
    """The cells of every row, by the entry's name and the column's title."""
    found: dict[str, dict[str, str]] = {}
    titles: list[str] = []
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0] == "type":
            titles = cells
        elif titles and cells and not cells[0].startswith("---"):
            found[cells[0]] = dict(zip(titles, cells, strict=True))
    return found


def number(cell: str) -> float:
    return math.inf if cell == "-" else float(cell)


def test_the_table_is_of_this_code():
    head = TABLE.read_text()
    assert f"<!-- backbone {code_fingerprint(['backbone'])} -->" in head, RERUN
    assert f"<!-- transformers {version('transformers')} -->" in head, RERUN


def test_the_table_holds_every_entry():
    assert list(rows()) == list(zoo.ALL), RERUN


@pytest.mark.parametrize("name", zoo.ALL)
def test_a_type_reaches_what_is_expected_of_it(name):
    row = rows()[name]
    why = row["what is missing, and why"]
    assert row["finest split"] == EXPECTED[name], why
    assert row["conforms"] == ("**no**" if name in FAILING else "yes"), why
    assert FAILING.get(name, "") in why
    if name not in FAILING and EXPECTED[name] in ("sublayer", "head"):
        assert number(row["completeness"]) <= COMPLETE


@pytest.mark.parametrize("gap", ["native gap", "batch gap", "padding gap"])
def test_no_gap_of_the_table_is_over_its_bound(gap):
    judged = {name: number(row[gap]) for name, row in rows().items() if name not in FAILING}
    assert {name: value for name, value in judged.items() if value > zoo.EXACT} == {}


def test_the_table_says_what_is_scored_alone():
    said = {name for name, row in rows().items() if "alone" in row["what is missing, and why"]}
    assert said == set(ALONE)


def test_nearly_every_decoder_and_every_encoder_conforms():
    conforming = {name for name, row in rows().items() if row["conforms"] == "yes"}
    assert len(conforming & set(zoo.DECODERS)) >= 61
    assert set(zoo.ENCODERS) <= conforming


def test_what_is_coarser_than_the_split_by_head_has_a_reason():
    for name, row in rows().items():
        assert row["finest split"] == "head" or row["what is missing, and why"], name
