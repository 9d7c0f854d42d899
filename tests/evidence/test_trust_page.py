"""The page on trust: its code prints what it shows, its table is the code's own."""

from __future__ import annotations

import re
from pathlib import Path

from reward_lens.evidence import TrustLevel
from reward_lens.evidence.standing import LICENCE

PAGE = (Path(__file__).parents[2] / "docs" / "trust.md").read_text()


def test_the_code_prints_what_the_page_shows(capsys):
    found = re.findall(r"```python\n(.*?)```\n(?:```text\n(.*?)```)?", PAGE, re.DOTALL)
    assert len(found) >= 3
    scope: dict[str, object] = {}
    for block, shown in found:
        exec(compile(block, "trust.md", "exec"), scope)
        assert capsys.readouterr().out.split() == shown.split(), block
    scope["store"].close()


def test_the_rungs_and_what_they_license_are_the_codes():
    rows = re.findall(r"^\| (\w+) \| [^|]* \| ([^|]*) \|$", PAGE, re.MULTILINE)
    assert rows[1:] == [(level.name.lower(), LICENCE[level]) for level in TrustLevel]


def test_the_numbers_of_the_pass_rule_are_the_codes():
    from reward_lens.evidence.scorecard import (
        MAX_FALSE_POSITIVES,
        MIN_NULLS,
        MIN_ORGANISMS,
        RECOVERY,
    )

    rule = PAGE[PAGE.index("It **passes**") : PAGE.index("It **speaks of**")]
    assert RECOVERY == 0.9
    assert f"at least {MIN_ORGANISMS} rules" in rule
    assert f"at least {MIN_NULLS} nulls" in rule
    assert f"below {100 * MAX_FALSE_POSITIVES:.0f} %" in rule
