"""What the documentation says is so: its tables are the code's, nothing public is left out."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from docs_kit import NOT_RUN, SHELL_LANGUAGES, blocks_of

import reward_lens
from reward_lens.signals.head_table import HEADS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {p.relative_to(DOCS).as_posix(): p.read_text(encoding="utf-8") for p in DOCS.rglob("*.md")}
INSTRUMENTS = PAGES["instruments.md"]
REFERENCE = [
    name
    for page, text in sorted(PAGES.items())
    if page.startswith("reference/")
    for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
]


def test_every_head_convention_is_in_the_table_and_no_other():
    named = re.findall(r"^\| `([^`]+)`", PAGES["loading.md"], re.MULTILINE)
    assert set(named) - {"head=", "score", "vocab:K"} == {row.name for row in HEADS}


def test_the_table_of_answer_keys_is_the_tests_own(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent / "answer_keys")
    from keys import as_markdown

    between = INSTRUMENTS.split("<!-- table: tests/answer_keys/keys.py -->\n")[1]
    assert between.split("<!-- end of table -->")[0].strip() == as_markdown().strip()


def test_the_targets_are_those_of_the_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    between = PAGES["benchmarks.md"].split("<!-- table: benchmarks/targets.py -->\n")[1]
    assert between.split("<!-- end of table -->")[0].strip() == targets_as_markdown()


def targets_as_markdown() -> str:
    from benchmarks.targets import TARGETS

    units = {"x": "forwards", "s": "CPU seconds", "MB": "MB"}
    rows = [f"| {t.measure} | {t.subject or 'every'} | ≤ {t.limit:g} {units[t.unit]} |"
            for t in TARGETS.values()]  # fmt: skip
    return "\n".join(["| what | model | target |", "|---|---|---|", *rows])


def test_every_public_instrument_has_a_page_and_a_row():
    from reward_lens import instruments

    pages = " ".join(
        re.search(r"^# .*$", text, re.MULTILINE)[0] + text.split("\n\n", 2)[1]
        for page, text in PAGES.items()
        if page.startswith("instruments/")
    )
    parts_of_others = {"Concept", "fit_concept"}
    for name in set(instruments.__all__) - parts_of_others:
        assert f"`{name}`" in pages, f"no page of {name} in docs/instruments/"
    for page in PAGES:
        if page.startswith("instruments/"):
            assert f"]({page})" in INSTRUMENTS, f"{page} is not in the table of instruments.md"


@pytest.mark.parametrize("page", sorted(p for p in PAGES if p.startswith("instruments/")))
def test_a_page_of_an_instrument_says_what_a_reader_needs(page):
    text = " ".join(PAGES[page].split())
    for part in ("**Formula", "**Claims**", "**Does not claim**", "| cost |", "## Example"):
        assert part in text, part


@pytest.mark.parametrize("name", sorted(set(reward_lens.__all__) - {"__version__"}))
def test_every_public_name_is_in_the_reference(name):
    assert f"reward_lens.{name}" in REFERENCE


@pytest.mark.parametrize("path", REFERENCE)
def test_what_the_reference_names_exists(path):
    module, _, name = path.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


def test_nothing_is_in_the_reference_twice():
    assert len(REFERENCE) == len(set(REFERENCE))


def test_every_command_is_on_the_page_of_the_command_line():
    from typer.main import get_command

    from reward_lens.cli import app

    page = PAGES["reference/cli.md"]
    for name, command in get_command(app).commands.items():
        for inner in getattr(command, "commands", {"": None}):
            assert re.search(rf"`{name}[ `]", page), name
            assert f"`{inner}`" in page or f"`{name} {inner}".rstrip() in page, (name, inner)


def test_what_is_not_run_says_why():
    for page, text in PAGES.items():
        for block in blocks_of(text, page):
            assert block.language not in SHELL_LANGUAGES[1:], f"{block.place}: write console"
            if block.title.startswith(NOT_RUN):
                assert len(block.title) > len(NOT_RUN) + 10, block.place
