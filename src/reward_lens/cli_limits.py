"""Limits on the command line: ``--fail-under accuracy=0.7 --fail-over bias.length=0.2``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reward_lens.cli_config import configured_limits

if TYPE_CHECKING:
    from reward_lens.evidence import Evidence
    from reward_lens.thresholds import Judged, Threshold

FailUnder = Annotated[
    list[str] | None,
    typer.Option(help="NAME=X: exit 1 if an interval's estimate is below; repeat for more."),
]
FailOver = Annotated[
    list[str] | None,
    typer.Option(help="NAME=X: exit 1 if it is above, such as bias.length=0.2; repeat for more."),
]


def asked_limits(
    ctx: typer.Context, under: Sequence[str] | None, over: Sequence[str] | None
) -> tuple[Threshold, ...]:
    """The limits of the command line, and those of the config file that it does not name.

    Raises
    ------
    DataError
        Naming the one that cannot be read, or cannot name what an audit measures.
    """
    from reward_lens.thresholds import check_names, parse_thresholds

    given = parse_thresholds(under or (), over or ())
    named = {(t.metric, t.over) for t in given}
    file = configured_limits(ctx)
    more = parse_thresholds(*([f"{k}={v!r}" for k, v in file[t].items()] for t in file))
    asked = (*given, *(t for t in more if (t.metric, t.over) not in named))
    check_names(asked, biases=ctx.params.get("biases") != 0)
    return asked


def judged(limits: Sequence[Threshold], evidence: Mapping[str, Evidence]) -> list[Judged]:
    """Hold an audit to its limits and say on standard error what became of each.

    Raises
    ------
    DataError
        If one names nothing that was measured.
    """
    from reward_lens.thresholds import judge

    found = judge(limits, evidence)
    for one in found:
        typer.echo(str(one), err=True)
    return found


def as_json(found: Sequence[Judged]) -> list[dict[str, Any]]:
    """Every limit and what became of it; a value that is none is null."""
    return [
        {
            "metric": j.threshold.metric,
            "fail": "over" if j.threshold.over else "under",
            "limit": j.threshold.limit,
            "value": None if math.isnan(j.value) else j.value,
            "evidence": j.source,
            "passed": j.passed,
            "certain": j.certain,
            "doubt": j.doubt or None,
        }
        for j in found
    ]
