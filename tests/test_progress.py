"""Who is told of progress when nobody was named."""

from __future__ import annotations

import sys
import types

import pytest

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


def test_a_bar_grows_where_items_are_gone_over_twice(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with Bars().stage("lens", 4) as done:
        done(4)
        done(4)
    assert "8/8" in capsys.readouterr().err
