"""Every code block of the documentation runs and prints what the page shows below it."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs_kit import LOOSE, Session, blocks_of, commands_of, differs

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))
#: Pages that a test elsewhere runs.
ELSEWHERE = {"trust.md": "evidence/test_trust_page.py"}


def read(page):
    return blocks_of((DOCS / page).read_text(encoding="utf-8"), page)


CODE = [p for p in PAGES if any(b.language in ("python", "console") for b in read(p))]


@pytest.mark.parametrize("page", sorted(set(CODE) - set(ELSEWHERE)))
def test_the_code_of_a_page_prints_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session = Session(tmp_path)
    for block in read(page):
        for printed, shown in session.run(block):
            assert not (why := differs(printed, shown, block.loose)), f"{block.place}\n{why}"
        assert session.code == 0, f"{block.place}: the last command failed and nothing says so"


def test_pages_that_are_run_elsewhere_are():
    for page, test in ELSEWHERE.items():
        assert page in CODE
        assert page in (DOCS.parent / "tests" / test).read_text(encoding="utf-8")


def test_a_block_knows_its_output_and_its_place():
    text = (
        "# Title\n\n```python\nprint(1)\n```\n```text\n1\n```\n\n"
        f"{LOOSE}\n```console\n$ ls\na\n```\n"
    )
    python, console = blocks_of(text, "page.md")
    assert (python.language, python.body, python.shown) == ("python", "print(1)\n", "1\n")
    assert (python.place, python.loose) == ("page.md:3", False)
    assert (console.loose, console.shown) == (True, None)


def test_a_command_over_two_lines_is_one():
    found = list(commands_of("$ ls \\\n    -l\nout\n$ pwd\n"))
    assert found == [("ls -l", "out\n"), ("pwd", "")]


@pytest.mark.parametrize(
    ("printed", "shown", "loose", "same"),
    [
        ("a  b\n", "a b\n", False, True),
        ("a c\n", "a b\n", False, False),
        ("0.12\n", "0.13\n", False, False),
        ("0.12\n", "0.13\n", True, True),
        ("0.12\n", "0.16\n", True, False),
        ("3 pairs\n", "4 pairs\n", True, False),
        ("2.1e-08 of\n", "4.7e-08 of\n", True, True),
        ("2.1e-03 of\n", "4.7e-08 of\n", True, False),
        ("a\nb\nc\n", "a\n...\nc\n", False, True),
        ("a\nb\nd\n", "a\n...\nc\n", False, False),
        ("head 1f3 ok\n", "head ... ok\n", False, True),
        ("a\nmore\n", "a\n", False, False),
        ("", "a\n", False, False),
    ],
)
def test_what_counts_as_the_same(printed, shown, loose, same):
    assert (differs(printed, shown, loose) == "") is same


def test_a_command_that_fails_has_to_be_said(tmp_path):
    session = Session(tmp_path)
    assert session.shell("false") == ""
    with pytest.raises(AssertionError, match="nothing says so"):
        session.shell("true")
    assert session.shell("echo $?") == "1\n"
    assert session.shell("true") == ""
