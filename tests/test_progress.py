"""Who is told of progress when nobody was named."""

from __future__ import annotations

import sys
import types

import pytest

from reward_lens import progress
from reward_lens.progress import Bars, Silent, watched


def test_nobody_is_told_where_nobody_watches():
    reporter = watched()
    assert isinstance(reporter, Silent)
    with reporter.stage("lens", 3) as done:
        done(3)


@pytest.mark.parametrize("where", ["terminal", "notebook"])
def test_whoever_watches_is_told(where, monkeypatch):
    if where == "terminal":
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    else:
        monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    assert isinstance(watched(), Bars)


def test_outside_a_terminal_every_stage_is_a_line(capsys):
    with Bars().stage("lens", 8) as done:
        done(8)
    assert capsys.readouterr() == ("", "lens (8)\n")


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def test_outside_a_terminal_a_long_stage_says_how_far_it_is_now_and_then(clock, capsys):
    with Bars().stage("calibration", 158) as done:
        done(100)  # from a store, at once
        for _ in range(57):
            clock[0] += 4.0
            done(1)
        clock[0] += 40.0
        done(1)  # the last one: nothing is left to wait for
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "calibration (158)"
    # Every 20 s; the second line knows that what came at once tells nothing of the pace.
    assert lines[:2] == [
        "calibration: 105 of 158, about 10 s left",
        "calibration: 110 of 158, about 3 min left",
    ]
    assert len(lines) == 11
    assert lines[-1] == "calibration: 155 of 158, about 12 s left"


def test_where_items_are_gone_over_twice_no_time_is_guessed(clock, capsys):
    with Bars().stage("lens", 4) as done:
        for _ in range(8):
            clock[0] += 30.0
            done(1)
    assert capsys.readouterr().err.splitlines() == [
        "lens (4)",
        "lens: 1 of 4, about 2 min left",
        "lens: 2 of 4, about 60 s left",
        "lens: 3 of 4, about 30 s left",
    ]


def test_hours_are_said_as_hours(clock, capsys):
    with Bars().stage("audit", 1000) as done:
        clock[0] = 36.0
        done(2)
    assert capsys.readouterr().err.endswith("audit: 2 of 1000, about 5.0 h left\n")


def test_a_bar_grows_where_items_are_gone_over_twice(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with Bars().stage("lens", 4) as done:
        done(4)
        done(4)
    assert "8/8" in capsys.readouterr().err
