"""Every public fault is held by a test that exists, or has a reason why it cannot happen here."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from fault_table import FAULTS

TESTS = Path(__file__).resolve().parents[1]
#: The rows of the list; its gaps are its own.
NUMBERS = (
    1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 18, 19, 20, 21, 23, 24, 25, 26, 27, 28, 29, 30,
    31, 32, 33, 35, 37, 38, 39, 41, 42, 43, 44, 45, 47, 48, 49, 50, 52, 53, 54, 55, 56, 57, 58, 59,
    60, 61, 62, 63, 64, 65, 66, 68, 69, 70, 72, 73, 74, 76, 78,
)  # fmt: skip
#: Rows that may have no test: what they speak of is not offered.
MAY_HAVE_A_REASON = {25, 26, 37, 47, 56, 65}


@cache
def functions(path: Path) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(path.read_text())
    return {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}


def test_every_row_is_in_the_table_and_nothing_else():
    assert list(FAULTS) == list(NUMBERS)


def test_the_numbers_are_those_of_the_list(shared):
    listed = re.findall(r"^\| (\d+) \|", (shared / "FAULTS.md").read_text(), re.MULTILINE)
    assert [int(n) for n in listed] == list(NUMBERS)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_row_names_tests_that_exist_or_gives_its_reason(number):
    row = FAULTS[number]
    if isinstance(row, str):
        assert number in MAY_HAVE_A_REASON
        assert len(row.split()) > 8  # a reason, not a shrug
        return
    assert row
    assert len(set(row)) == len(row)
    for name in row:
        path, function = name.split("::")
        found = functions(TESTS / path)
        assert function.startswith("test_")
        assert function in found, f"{name} does not exist"
        holds = [n for n in ast.walk(found[function]) if isinstance(n, ast.Assert | ast.Call)]
        assert holds, f"{name} checks nothing"


def test_no_named_test_is_skipped_outright():
    for row in FAULTS.values():
        for name in () if isinstance(row, str) else row:
            path, function = name.split("::")
            marks = [ast.unparse(d) for d in functions(TESTS / path)[function].decorator_list]
            assert not any("skip" in m or "xfail" in m for m in marks), name
