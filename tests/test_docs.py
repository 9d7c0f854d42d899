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
