"""What the documentation says is so: its code runs, its tables are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reward_lens.signals.head_table import HEADS

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["loading.md"])
def test_the_code_of_a_page_runs(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert blocks
    scope: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), scope)
    assert "native read" in capsys.readouterr().out


def test_every_head_convention_is_in_the_table_and_no_other():
    text = (DOCS / "loading.md").read_text()
    named = re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)
    assert set(named) - {"head=", "score", "vocab:K"} == {row.name for row in HEADS}


INSTRUMENTS = DOCS / "instruments.md"


def test_the_code_of_the_instruments_page_prints_what_it_shows(
    capsys, recwarn, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    page = INSTRUMENTS.read_text()
    found = re.findall(r"```python\n(.*?)```\n(?:```text\n(.*?)```)?", page, re.DOTALL)
    assert len(found) >= 8
    scope: dict[str, object] = {}
    for block, shown in found:
        exec(compile(block, "instruments.md", "exec"), scope)
        printed = capsys.readouterr().out
        assert [line.split() for line in printed.splitlines()] == [
            line.split() for line in shown.splitlines()
        ], block


def test_the_table_of_answer_keys_is_the_tests_own(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent / "answer_keys")
    from keys import as_markdown

    between = INSTRUMENTS.read_text().split("<!-- table: tests/answer_keys/keys.py -->\n")[1]
    assert between.split("<!-- end of table -->")[0].strip() == as_markdown().strip()


def test_every_public_instrument_has_a_section():
    from reward_lens import instruments

    headings = " ".join(re.findall(r"^## .*$", INSTRUMENTS.read_text(), re.MULTILINE))
    others = {"Concept", "fit_concept", "objective_geometry", "preference"}
    for name in set(instruments.__all__) - others:
        assert f"`{name}`" in headings, name
