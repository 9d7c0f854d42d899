"""What the numbers of a table have in common is said once, and nothing is lost by it."""

from __future__ import annotations

from markupsafe import Markup, escape

from reward_lens.report.numbers import TracedTable


def traced(path, text="1"):
    return Markup('<data value="{}">{}</data>').format(path, text)


def bare(text="1"):
    return Markup("<data>{}</data>").format(text)


def test_numbers_of_a_table_share_table_row_and_column():
    rows = [
        ["all", traced(f"lens|table/curve/{k}/low|.3g"), traced(f"lens|table/curve/{k}/high|d", k)]
        for k in (3, 7)
    ]
    found = TracedTable.of(rows)
    assert found.table == "lens|table/curve/"
    assert found.columns == ["", "low|.3g", "high|d"]
    assert found.rows == [("3/", ["all", bare(), bare("3")]), ("7/", ["all", bare(), bare("7")])]


def test_what_stands_alone_in_its_column_says_it_itself():
    low, high = (traced(f"lens|table/curve/3/{c}|d") for c in ("low", "high"))
    found = TracedTable.of([[low, high], ["-", "-"]])
    assert found.columns == ["", ""]
    assert found.rows == [("3/", [traced("low|d"), traced("high|d")]), ("", ["-", "-"])]


def test_a_number_from_elsewhere_keeps_its_path():
    other = traced("lens|table/curve/4/low|.3g")
    cells = [traced("lens|table/curve/3/low|d"), traced("lens|table/curve/3/high|d"), other,
             traced("lens|interval/x/low|.3g")]  # fmt: skip
    ((base, found),) = TracedTable.of([cells]).rows
    assert base == "3/"
    assert found[2:] == cells[2:]


def test_rows_of_two_tables_say_which():
    rows = [[traced(f"lens|table/{t}/0/low|d"), traced(f"lens|table/{t}/0/high|d")] for t in "ab"]
    found = TracedTable.of(rows)
    assert (found.table, found.columns) == ("", ["low|d", "high|d"])
    assert [base for base, _ in found.rows] == ["lens|table/a/0/", "lens|table/b/0/"]


def test_one_number_keeps_its_path():
    cells = [traced("lens|table/curve/3/low|d"), "text"]
    assert TracedTable.of([cells]) == TracedTable("", ["", ""], [("", cells)])
    assert TracedTable.of([]) == TracedTable("", [], [])
    assert TracedTable.of([[]]) == TracedTable("", [], [("", [])])


def test_numbers_without_a_row_do_not_borrow_a_column():
    """A number that keeps its whole path is not taken for one that says only its column."""
    shared = [traced("lens|table/t/0/low|d"), traced("lens|table/t/0/high|d")]
    alone = ["text", traced("lens|table/other/5/high|d")]
    found = TracedTable.of([shared, shared, alone])
    assert found.columns == ["low|d", "high|d"]
    assert found.rows[2] == ("", alone)


def test_names_are_given_as_they_are_and_texts_of_users_stay():
    name = "a&b"
    numbers = [traced(f"{name}|table/t/0/{c}|d") for c in ("x<", "y")]
    user = '<data value="a&amp;b|table/t/0/'
    found = TracedTable.of([[user, escape(user), *numbers], [user, escape(user), *numbers]])
    assert found.table == "a&b|table/t/"
    assert found.columns == ["", "", "x<|d", "y|d"]
    assert found.rows[0] == ("0/", [user, escape(user), bare(), bare()])
