"""Who is told of progress when nobody was named."""

from __future__ import annotations

import sys
import types

import pytest

import reward_lens as rl
from reward_lens import progress
from reward_lens.progress import Bars, Silent, expect, watched


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
    assert capsys.readouterr() == ("", "lens ...\n")


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
    assert first == "calibration ..."
    # Every 20 s; the second line knows that what came at once tells nothing of the pace.
    assert lines[:2] == [
        "calibration: 105 of 158, about 10 s left",
        "calibration: 110 of 158, about 3 min left",
    ]
    assert len(lines) == 11
    assert lines[-1] == "calibration: 155 of 158, about 12 s left"


def test_beyond_a_guess_no_time_is_guessed(clock, capsys):
    with Bars().stage("lens", 4) as done:
        for _ in range(6):
            clock[0] += 30.0
            done(1)
    assert capsys.readouterr().err.splitlines() == [
        "lens ...",
        "lens: 1 of 4, about 2 min left",
        "lens: 2 of 4, about 60 s left",
        "lens: 3 of 4, about 30 s left",
        "lens: 5 so far",
        "lens: 6 so far",
    ]


def test_passes_that_announce_themselves_replace_the_guess(clock, capsys):
    with Bars().stage("bias_battery", 64) as done:
        expect(done, 4480)
        clock[0] += 30.0
        done(1120)
        clock[0] += 10.0
        done(3360)
        expect(done, 10)  # a second pass, which nobody knew of
        clock[0] += 15.0
        done(5)
    assert capsys.readouterr().err.splitlines() == [
        "bias_battery ...",
        "bias_battery: 1,120 of 4,480, about 2 min left",
        "bias_battery: 4,485 of 4,490, about 0 s left",
    ]


def test_a_plain_callable_is_told_what_is_done_and_no_more():
    told: list[int] = []
    expect(told.append, 7)
    expect(None, 7)
    assert told == []


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("preference", {}),
        ("lens", {}),
        ("attribution", {}),
        ("patch_grid", {}),
        ("path_effects", {}),
        ("attribution_patching", {"sample": 2}),
        ("bias_battery", {}),
        ("style_accuracy", {}),
        ("source_attribution", {}),
        ("token_map", {"methods": ["leave_one_out", "gradient"]}),
    ],
)
def test_every_instrument_does_as_many_items_as_it_announces(name, options):
    """A stage that says how long it takes has to know how much there is to do."""

    class Counted:
        done = announced = 0

        def expect(self, items):
            self.announced += items

        def __call__(self, items):
            assert self.announced >= self.done + items
            self.done += items

    counted = Counted()
    signal = rl.from_tiny()
    pairs = [{"prompt": f"Say {k}", "chosen": f"Yes, {k} it is.", "rejected": f"No {k}."}
             for k in range(4)]  # fmt: skip
    getattr(rl, name)(signal, pairs, progress=counted, **options)
    assert counted.done == counted.announced > 0


def test_hours_are_said_as_hours(clock, capsys):
    with Bars().stage("audit", 1000) as done:
        clock[0] = 36.0
        done(2)
    assert capsys.readouterr().err.endswith("audit: 2 of 1,000, about 5.0 h left\n")


def test_a_bar_grows_where_items_are_gone_over_twice(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with Bars().stage("lens", 4) as done:
        done(4)
        done(4)
    assert "8/8" in capsys.readouterr().err
