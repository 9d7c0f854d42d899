"""What is promised, and the judgement of what was measured (no torch)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: What is measured against a floor; :mod:`benchmarks.workload` has both.
CALLS = ("score", "score_prefixes", "lens", "attribution")
#: Whose peak memory is measured.
MEMORY_CALLS = (*CALLS, "patch_grid")


@dataclass(frozen=True)
class Target:
    """A promise: the value measured is at most ``limit``.

    Attributes
    ----------
    measure : str
    limit : float
    unit : str
        ``"x"``: CPU time in bare forwards over the same texts; ``"s"``: CPU seconds beside the
        imports of torch and transformers; ``"MB"``: by how much the peak memory of a call is higher
        with the larger of :data:`MEMORY_PAIRS`, beyond what it returns.
    subject : str
        The model it is promised for; empty for every one.
    """

    measure: str
    limit: float
    unit: str
    subject: str = ""


#: Numbers of pairs at which peak memory is compared.
MEMORY_PAIRS = (128, 512)
#: How far the two peaks may differ. The ids of 768 more items are 1 MB; their states at the read
#: token would be 5 MB at the sites the lens sees, on the small model, and 16 MB for attribution.
MEMORY_SLACK_MB = 4.0

TARGETS: dict[str, Target] = {
    t.measure: t
    for t in (
        Target("score", 1.05, "x"),
        Target("score_prefixes", 1.15, "x"),
        Target("lens", 1.15, "x"),
        Target("attribution", 1.15, "x"),
        *(Target(f"memory {call}", MEMORY_SLACK_MB, "MB") for call in MEMORY_CALLS),
        *(
            Target(f"grid {by}, {direction}, {n} pairs", limit, "x", "medium")
            for by, direction, limit in (
                ("component", "one direction", 1.2),
                ("component", "both directions", 1.35),
                ("head", "one direction", 1.4),
                ("head", "both directions", 1.75),
            )
            for n in (4, 32)
        ),
        # In forwards per patch.
        Target("grid at other positions, nothing shared", 0.65, "x", "medium"),
        Target("grid at other positions, half the text shared", 0.4, "x", "medium"),
        Target("path effects, a path", 1.0, "x", "medium"),
        Target("dose-response, last layer", 1.2, "x", "medium"),
        Target("import reward_lens", 0.3, "s"),
        Target("from_tiny", 1.0, "s"),
    )
}


@dataclass(frozen=True)
class Result:
    """One measured value.

    Attributes
    ----------
    measure : str
        A key of :data:`TARGETS`, or anything else for what is reported without a target.
    subject : str
        Which model; empty where there is none.
    value, low, high : float
        Median and range over repeats.
    unit : str
        As in :class:`Target`.
    detail : str
        What the value was computed from.
    """

    measure: str
    subject: str
    value: float
    low: float
    high: float
    unit: str
    detail: str


def is_met(result: Result) -> bool | None:
    """Whether a result meets its target; ``None`` if it has none. NaN meets nothing."""
    target = target_of(result)
    return None if target is None else result.value <= target.limit


def target_of(result: Result) -> Target | None:
    """The target that a result has to meet, if any."""
    target = TARGETS.get(result.measure)
    promised = target is not None and target.subject in ("", result.subject)
    return target if promised else None


def judge(results: Iterable[Result], left_out: Iterable[str] = ()) -> list[str]:
    """Name every target that was missed, or not measured at all; empty if all were met.

    Parameters
    ----------
    left_out : iterable of str
        Models that were not measured because nobody asked for them.
    """
    found = list(results)
    misses = []
    for target in TARGETS.values():
        if target.subject in left_out and target.subject:
            continue
        own = [r for r in found if r.measure == target.measure and target_of(r)]
        if not own:
            misses.append(f"{target.measure}: was not measured")
        misses += [
            f"{r.measure}{f' ({r.subject})' if r.subject else ''}: {r.value:.3f} {target.unit} is "
            f"over the target of {target.limit:g} {target.unit}"
            for r in own
            if not is_met(r)
        ]
    return misses


def table(results: Iterable[Result]) -> str:
    """Results beside their targets, one a line."""
    lines = [("measure", "model", "value", "range", "target", "", "measured")]
    words = {True: "met", False: "OVER", None: ""}
    for r in results:
        target = target_of(r)
        limit = f"≤ {target.limit:g}" if target else ""
        spread = f"{r.low:.3f} to {r.high:.3f}" if r.low < r.high else ""
        lines.append(
            (
                r.measure,
                r.subject,
                f"{r.value:.3f} {r.unit}",
                spread,
                limit,
                words[is_met(r)],
                r.detail,
            )
        )
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
