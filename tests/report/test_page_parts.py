"""What a page does with paths of its user, empty columns, and ids that begin with their subset."""

from __future__ import annotations

import dataclasses

import pytest
import xarray as xr
from pair_kit import known

from reward_lens.evidence import Subject
from reward_lens.report import Page
from reward_lens.report.folders import by_folder, short_command
from reward_lens.report.page import compose, told, with_content
from reward_lens.report.parts import Section, Table


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("reward-lens audit /home/me/demo/model /data/x/p.jsonl -o /o/a/page.html",
         "reward-lens audit model p.jsonl -o page.html"),
        ("source /home/me/model; template chat", "source model; template chat"),
        ("/home/o'brien/m/x.jsonl, /home/me,you/x", "x.jsonl, x"),
        ("file:///home/me/secret/x and ~/models/secret", "x and secret"),
        ("'/a/b/c' /d/e,/f/g", "'c' e,g"),
        ("org/name, https://a.b/c/d, 3/4 of a/b/c", "org/name, https://a.b/c/d, 3/4 of a/b/c"),
    ],
)  # fmt: skip
def test_local_paths_are_named_by_what_they_end_in(text, shown):
    assert by_folder(text) == shown


def test_a_command_can_be_typed_again_and_does_not_say_where_files_are():
    said = short_command(["reward-lens", "audit", "/home/a user/my model", "p q.jsonl",
                          "--store=/x y/e.db", "-o", "~/out.html", "--fail-under", "accuracy=0.7",
                          "org/name"])  # fmt: skip
    assert said == (
        "reward-lens audit 'my model' 'p q.jsonl' --store=e.db -o out.html --fail-under "
        "accuracy=0.7 org/name"
    )


def test_the_page_does_not_say_where_a_user_keeps_a_model():
    folder = "/home/a user/models/mine"
    e = known("i", xr.DataArray(1.0, name="v"))
    e = dataclasses.replace(e, subject=Subject("s", "d", "reward", notes={"source": folder}))
    page = Page("m", f"from {folder}", f"reward-lens audit '{folder}' p", "e.jsonl")
    text = compose(page, {"i": e}, [], [])
    assert "a user" not in text
    assert "source mine" in text
    assert "from mine" in text


def test_columns_without_content_are_left_out():
    assert with_content(["a", "b", "c"], [["", "x", "0"], ["", "", "1"]]) == (
        ["b", "c"],
        [["x", "0"], ["", "1"]],
    )
    assert with_content(["a"], []) == (["a"], [])
    table = Table("t", ["edit", "verdict"], [["x", ""]])
    text = compose(Page("m", "f", "c", "e"), {}, [], [Section("s", "S", tables=[table])])
    assert ">edit</th>" in text
    assert "verdict" not in text


@pytest.mark.parametrize(
    ("pair", "subset", "known_from_id"),
    [("math/3", "math", True), ("s12-3", "s1", False), ("x", "", False), ("math", "math", True)],
)
def test_a_subset_is_not_said_twice(pair, subset, known_from_id):
    assert told(pair, subset) == known_from_id
