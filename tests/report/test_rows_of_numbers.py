"""What the numbers of a row have in common is said once, and nothing is lost by it."""

from __future__ import annotations

from markupsafe import Markup, escape

from reward_lens.report.numbers import by_row


def traced(path, text="1"):
    return Markup('<data value="{}">{}</data>').format(path, text)


def test_numbers_of_one_row_of_a_table_share_their_path():
    cells = ["all", traced("lens|table/curve/3/low|.3g"), traced("lens|table/curve/3/high|.3g")]
    base, found = by_row(cells)
    assert base == "lens|table/curve/3/"
    assert found == ["all", traced("low|.3g"), traced("high|.3g")]


def test_a_number_from_elsewhere_keeps_its_path():
    other = traced("lens|table/curve/4/low|.3g")
    cells = [traced("lens|table/curve/3/low|d"), traced("lens|table/curve/3/high|d"), other,
             traced("lens|interval/x/low|.3g")]  # fmt: skip
    base, found = by_row(cells)
    assert base == "lens|table/curve/3/"
    assert found[2:] == cells[2:]


def test_one_number_keeps_its_path():
    cells = [traced("lens|table/curve/3/low|d"), "text"]
    assert by_row(cells) == ("", cells)
    assert by_row([]) == ("", [])


def test_names_are_given_as_they_are_and_texts_of_users_stay():
    name = "a&b"
    numbers = [traced(f"{name}|table/t/0/{c}|d") for c in "xy"]
    user = '<data value="a&amp;b|table/t/0/'
    base, found = by_row([user, escape(user), *numbers])
    assert base == "a&b|table/t/0/"
    assert found == [user, escape(user), traced("x|d"), traced("y|d")]
