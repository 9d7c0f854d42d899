"""The benchmarks' promises and their judgement; the measuring itself is `make bench`."""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.targets")


@pytest.fixture
def met(targets: Any) -> list[Any]:
    """One result for every target, each exactly at its limit."""
    return [
        targets.Result(t.measure, t.subject or "small", t.limit, t.limit, t.limit, t.unit, "")
        for t in targets.TARGETS.values()
    ]


def test_the_targets_are_the_promised_ones(targets: Any) -> None:
    found = {t.measure: (t.limit, t.unit) for t in targets.TARGETS.values()}
    memory = {m: found.pop(m) for m in list(found) if m.startswith("memory ")}
    assert found == {
        "score": (1.05, "x"),
        "score_prefixes": (1.15, "x"),
        "lens": (1.15, "x"),
        "attribution": (1.15, "x"),
        **{f"grid component, one direction, {n} pairs": (1.2, "x") for n in (4, 32)},
        **{f"grid component, both directions, {n} pairs": (1.35, "x") for n in (4, 32)},
        **{f"grid head, one direction, {n} pairs": (1.4, "x") for n in (4, 32)},
        **{f"grid head, both directions, {n} pairs": (1.75, "x") for n in (4, 32)},
        "grid at other positions, nothing shared": (0.65, "x"),
        "grid at other positions, half the text shared": (0.4, "x"),
        "path effects, a path": (1.0, "x"),
        "dose-response, last layer": (1.2, "x"),
        "import reward_lens": (0.3, "s"),
        "from_tiny": (1.0, "s"),
    }
    assert set(memory) == {f"memory {call}" for call in targets.MEMORY_CALLS}
    assert targets.MEMORY_PAIRS == (128, 512)


def test_memory_slack_would_show_read_states_kept_for_all_pairs(targets: Any) -> None:
    few, many = targets.MEMORY_PAIRS
    sites, width, float32 = 7, 256, 4  # of the lens on the small model
    kept = 2 * (many - few) * sites * width * float32 / 1e6
    assert kept > targets.MEMORY_SLACK_MB


def test_results_at_their_limits_meet_them(targets: Any, met: list[Any]) -> None:
    assert targets.judge(met) == []


@pytest.mark.parametrize("measure", ["score", "lens", "memory score", "from_tiny"])
@pytest.mark.parametrize("value", [None, float("nan")])
def test_one_result_over_its_target_is_named(
    targets: Any, met: list[Any], measure: str, value: float | None
) -> None:
    over = 1.01 * targets.TARGETS[measure].limit if value is None else value
    worse = [replace(r, value=over) if r.measure == measure else r for r in met]
    (miss,) = targets.judge(worse)
    assert miss.startswith(f"{measure} (small): {over:.3f}")
    assert f"over the target of {targets.TARGETS[measure].limit:g}" in miss
    assert "OVER" in targets.table(worse)
    assert "OVER" not in targets.table(met)


def test_a_miss_on_one_of_two_models_is_a_miss(targets: Any, met: list[Any]) -> None:
    medium = [replace(r, subject="medium", value=2 * r.value) for r in met if r.measure == "score"]
    assert targets.judge([*met, *medium]) == [
        "score (medium): 2.100 x is over the target of 1.05 x"
    ]


def test_a_target_without_a_result_is_a_miss(targets: Any, met: list[Any]) -> None:
    assert targets.judge(met[1:]) == ["score: was not measured"]


def test_a_target_of_a_model_that_was_not_asked_for_is_not_missed(
    targets: Any, met: list[Any]
) -> None:
    small = [r for r in met if r.subject == "small"]
    assert targets.judge(small, ("medium",)) == []
    assert len(targets.judge(small)) == len(met) - len(small) == 12
    slow = targets.Result("dose-response, last layer", "small", 9.0, 9.0, 9.0, "x", "")
    assert targets.judge([*met, slow]) == []


def test_what_has_no_target_is_shown_and_not_judged(targets: Any, met: list[Any]) -> None:
    extra = targets.Result("hash of weights", "small", 99.0, 99.0, 99.0, "s", "once a signal")
    assert targets.judge([*met, extra]) == []
    assert "99.000 s" in targets.table([*met, extra])


@pytest.mark.parametrize(("value", "code", "said"), [(0.1, 0, "all targets met"), (99, 1, "lens")])
def test_the_exit_code_says_whether_targets_were_met(
    targets: Any,
    met: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    value: float,
    code: int,
    said: str,
) -> None:
    command = importlib.import_module("benchmarks.__main__")
    found = [replace(r, value=value) if r.measure == "lens" else r for r in met]
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(command, "measure", lambda shapes: asked.append(shapes) or found)
    assert command.main(["--quick"]) == code
    assert command.main([]) == code
    assert asked == [("small",), ("small", "medium")]
    assert said in capsys.readouterr().out.splitlines()[-1]


def test_the_command_itself_loads_no_torch() -> None:
    # Its own memory would otherwise be the floor of what its children report.
    code = "import sys, benchmarks.__main__; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
