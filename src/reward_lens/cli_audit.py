"""The commands ``audit`` and ``demo``: one page and its evidence."""

from __future__ import annotations

import json as jsonlib
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reward_lens.cli_calibrate import interruptible, not_calibrated, say
from reward_lens.cli_config import Config
from reward_lens.cli_limits import FailOver, FailUnder, as_json, asked_limits, judged
from reward_lens.cli_options import (
    Bars,
    Base,
    BatchTokens,
    Bos,
    Columns,
    Device,
    Download,
    Dtype,
    Eos,
    Head,
    Json,
    Limit,
    Model,
    PairFile,
    Position,
    Readout,
    Revision,
    Sign,
    Template,
    Truncate,
    checked_truncate,
    columns_of,
    load,
    open_store,
    plain_errors,
)
from reward_lens.cli_output import check_page, say_left_out
from reward_lens.cli_values import read_concept
from reward_lens.wording import counted, cut_note

if TYPE_CHECKING:
    from reward_lens.auditing import Audit
    from reward_lens.data import Pairs
    from reward_lens.thresholds import Threshold

#: How an audit's note begins that says why a calibration could not begin.
_NO_CARDS = "no scorecards were made: "


def audit(
    ctx: typer.Context,
    model: Model,
    pairs: PairFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="The report, an HTML file.")],
    json: Json = False,
    limit: Limit = None,
    columns: Columns = None,
    split: Annotated[
        Path | None, typer.Option(help="JSON file of part name -> ids; parts are reported apart.")
    ] = None,
    sample: Annotated[int, typer.Option(help="Pairs for lens and attribution.")] = 300,
    causal_sample: Annotated[
        int | None, typer.Option(help="Pairs of it that are patched; 64, or what is affordable.")
    ] = None,
    biases: Annotated[
        int, typer.Option(help="Pairs of it whose responses are edited to find biases; 0: none.")
    ] = 32,
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
    concept: Annotated[
        Path | None,
        typer.Option(help="Labelled rows or pairs: how the reward answers to that concept."),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Evidence store to append to; its records say how far to trust, and what is there "
            "is not measured again."
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="First plant rules in the model and see which instruments find them: minutes.",
        ),
    ] = False,
    truncate: Truncate = "error",
    readout: Readout = None,
    dtype: Dtype = None,
    device: Device = None,
    head: Head = None,
    position: Position = "native",
    template: Template = None,
    bos: Bos = None,
    eos: Eos = None,
    sign: Sign = None,
    base: Base = None,
    revision: Revision = None,
    batch_tokens: BatchTokens = 4096,
    allow_download: Download = False,
    fail_under: FailUnder = None,
    fail_over: FailOver = None,
    config: Config = None,
) -> None:
    """Prove the load, score pairs, run the instruments; write a report and its evidence.

    OUTPUT.evidence.jsonl beside the report has every number, OUTPUT.pairs.jsonl every scored pair.
    Exits 1 if a check or an instrument fails, or a limit is broken (--fail-under, --fail-over).
    With --calibrate the store is OUTPUT.evidence.db unless it is named.
    """
    check_page(output, pairs, concept, split, config, store)
    cut = checked_truncate(truncate)
    if calibrate and store is None:
        store = output.with_suffix(".evidence.db")
    from reward_lens.auditing import audit as run_audit
    from reward_lens.data import load_pairs

    with ExitStack() as stack, plain_errors():
        limits = asked_limits(ctx, fail_under, fail_over)
        opened = None if store is None else stack.enter_context(open_store(store))
        given = load_pairs(pairs, limit=limit, allow_download=allow_download, **columns_of(columns))
        parts = _parts(split, given)
        labelled = None if concept is None else read_concept(concept)
        signal = load(model, ctx)
        beside = output.with_suffix(".evidence.db")
        without = f"nothing is kept; with --store {beside} an audit goes on where it stopped"
        with interruptible(opened, "no report was written", without):
            found = run_audit(
                signal,
                given,
                sample=sample,
                causal_sample=causal_sample,
                biases=biases,
                seed=seed,
                parts=parts,
                concept=labelled,
                truncate=cut,
                readout=readout,
                store=opened,
                calibrate=calibrate,
                batch_tokens=batch_tokens,
                reporter=Bars(),
            )
        # Trust is asked of the store, so that the page is written while it is open.
        _finish(found, output, json, store=store, limits=limits, calibrate=calibrate)


def _parts(split: Path | None, pairs: Pairs) -> dict[str, list[str]] | None:
    from reward_lens.errors import DataError

    if split is None:
        return None
    try:
        parts = jsonlib.loads(split.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{split}: not a JSON file of part name -> ids ({error})") from error
    if not isinstance(parts, dict):
        raise DataError(f"{split}: expected an object of part name -> ids")
    # With --limit, and for pairs left out, the file names ids that are not here.
    return {name: part.ids for name, part in pairs.split(parts, partial=True).items()}


def _finish(
    found: Audit,
    output: Path,
    json: bool,
    notes: tuple[str, ...] = (),
    title: str | None = None,
    store: Path | None = None,
    limits: Sequence[Threshold] = (),
    calibrate: bool = False,
) -> None:
    """Write the page and what lies beside it, say where they are, exit by what was found."""
    from reward_lens.errors import DataError
    from reward_lens.page_files import write_audit
    from reward_lens.report.folders import short_command

    said_cut = cut_note(found["preference"], found.meta)
    if said_cut:
        typer.echo(said_cut, err=True)
    command = short_command(["reward-lens", *sys.argv[1:]])
    files = write_audit(found, output, title=title, command=command, notes=notes)
    say_left_out(found.left_out)
    i = found["preference"].interval("accuracy")
    cards = _cards(found) if calibrate else None
    if cards is not None and not cards["cards"]:
        why = "; ".join([*cards["notes"], *cards["skipped"].values()])
        typer.echo(f"reward-lens: {not_calibrated(why.removeprefix(_NO_CARDS))}", err=True)
    try:
        held = judged(limits, found.evidence)
    except DataError as error:
        raise DataError(f"{error} (the report is written all the same: {output})") from error
    if json:
        typer.echo(jsonlib.dumps({
            **{name: str(path) for name, path in vars(files).items()},
            "passed": found.passed,
            "failed_checks": found.conformance.failed, "missing": found.missing,
            "accuracy": i.estimate, **_headline(found),
            "pairs": len(found.pairs), "left_out": found.left_out,
            "forwards": found.forwards, "not_offered": found.not_offered,
            "store": None if store is None else str(store),
            "trust": {name: e.trust.name.lower() for name, e in found.evidence.items()},
            "because": {name: list(e.standing.because) for name, e in found.evidence.items()},
            "calibration": cards, "notes": list(found.notes),
            "resumed": list(found.resumed), "limits": as_json(held),
        }))  # fmt: skip
    else:
        if not found.conformance.passed:
            typer.echo(str(found.conformance), err=True)
        for name, why in found.missing.items():
            typer.echo(f"{name} did not run: {why}", err=True)
        typer.echo(
            f"accuracy {i.estimate:.3f} ({i.low:.3f} to {i.high:.3f}) on {counted(i.n, 'pair')}"
        )
        typer.echo(f"cost: {found.forwards:.0f} forwards of one item")
        if found.resumed:
            typer.echo(f"of them from the store: {', '.join(found.resumed)}")
        typer.echo(f"report: {files.report}")
        typer.echo(f"evidence: {files.evidence}")
        typer.echo(f"pairs: {files.scored_pairs}")
        if found.calibration is not None:
            say(found.calibration)
        if store is not None:
            _say_trust(found, store)
    raise typer.Exit(0 if found.passed and all(one.passed for one in held) else 1)


def _headline(found: Audit) -> dict[str, Any]:
    """How sure the accuracy is, whether length pays, and which biases are named; null: unknown."""
    scores, battery = found["preference"], found.evidence.get("bias_battery")
    accuracy, slope = scores.interval("accuracy"), scores.interval("length.slope")
    named = None
    if battery is not None:
        table = battery.tables["effects"]
        columns = ["edit", "mean", "low", "high", "direction"]
        named = table.loc[table["named"], columns].to_dict("records")
    return {
        "accuracy_low": _number(accuracy.low), "accuracy_high": _number(accuracy.high),
        "accuracy_n": accuracy.n, "length_slope": _number(slope.estimate),
        "length_slope_low": _number(slope.low), "length_slope_high": _number(slope.high),
        "named_biases": named,
    }  # fmt: skip


def _number(value: float) -> float | None:
    """A number of JSON, which has no NaN."""
    return value if math.isfinite(value) else None


def _cards(found: Audit) -> dict[str, Any]:
    """What a calibration that was asked for made, and why not more."""
    made = found.calibration
    if made is None:
        why = [note for note in found.notes if note.startswith(_NO_CARDS)]
        return {"cards": {}, "skipped": {}, "notes": why}
    passed = {name: card.passed for name, card in made.cards.items()}
    return {"cards": passed, "skipped": dict(made.skipped), "notes": list(made.notes)}


def _say_trust(found: Audit, store: Path) -> None:
    """Print which measurements a scorecard speaks of, and what it says of them."""
    from reward_lens.report.parts import only_below, rung
    from reward_lens.report.standings import under_the_limit

    for name, e in found.evidence.items():
        standing = e.standing
        if only_below(standing):
            typer.echo(f"{name}: {rung(standing)}: it {under_the_limit(standing)}")
        elif standing.above or standing.failed:
            typer.echo(f"{name}: {rung(standing)}")
    typer.echo(f"store: {store}")


_DEMO_NOTES = (
    "This is the demo: a 4-layer model of 4.6 MiB, really trained on human preferences and "
    "honestly weak. Every number is a finding about this small model and about nothing else.",
    "All pairs are held out from its training by prompt. BBQ questions are made from templates, so "
    "some of them are nearly alike to training prompts, bbq-ambig among them. Content note: BBQ "
    "pairs are built from stereotypes (BBQ, Parrish and co-authors, CC-BY-4.0).",
)


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The report, an HTML file.")
    ] = Path("reward-lens-demo.html"),
    json: Json = False,
) -> None:
    """Audit the shipped demo model on its held-out pairs."""
    check_page(output)
    from reward_lens.assets import asset
    from reward_lens.auditing import audit as run_audit
    from reward_lens.data import load_pairs
    from reward_lens.signals import load_signal

    with plain_errors():
        signal = load_signal(asset("demo/model"))
        found = run_audit(signal, load_pairs(asset("demo/pairs.jsonl")), reporter=Bars())
    _finish(found, output, json, notes=_DEMO_NOTES, title="the demo model")
