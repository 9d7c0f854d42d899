"""The command line: parses, calls, prints. Exit 0 fine, 1 a check failed, 2 usage or input."""

from __future__ import annotations

import json as jsonlib
import os
from typing import Annotated

import typer

from reward_lens import __version__
from reward_lens.cli_audit import audit, demo
from reward_lens.cli_calibrate import calibrate
from reward_lens.cli_compare import compare
from reward_lens.cli_evidence import evidence_app
from reward_lens.cli_options import (
    DEBUG,
    Base,
    Bos,
    Columns,
    Device,
    Download,
    Dtype,
    Eos,
    Head,
    Interruptible,
    Json,
    Model,
    PairFile,
    Position,
    Revision,
    Sign,
    Template,
    Truncate,
    checked_truncate,
    columns_of,
    load,
    plain_errors,
)
from reward_lens.cli_run import run
from reward_lens.cli_score import score

app = typer.Typer(
    cls=Interruptible,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Look inside reward models: prove the load, score pairs, measure, audit.",
)


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Options before the command."""
    DEBUG.append(debug)
    # Our own bars are enough; read when the libraries that would draw theirs are imported.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def conform(
    ctx: typer.Context,
    model: Model,
    json: Json = False,
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
    allow_download: Download = False,
) -> None:
    """Check that a loaded model behaves as its checkpoint does. Exits 1 if a check fails."""
    from reward_lens.signals import run_conformance

    with plain_errors():
        # Every check runs on what was loaded, so the quick one is left out.
        report = run_conformance(load(model, ctx, quickcheck=False))
    if json:
        rows = [{"check": c.name, "passed": c.passed, "measured": c.measured,
                 "allowed": c.allowed, "meaning": c.meaning} for c in report.checks]  # fmt: skip
        typer.echo(jsonlib.dumps({"passed": report.passed, "checks": rows}, ensure_ascii=False))
    else:
        typer.echo(str(report))
    raise typer.Exit(0 if report.passed else 1)


@app.command()
def explain(
    ctx: typer.Context,
    model: Model,
    pairs: PairFile,
    pair: Annotated[str | None, typer.Option(help="Id of the pair; the first by default.")] = None,
    columns: Columns = None,
    truncate: Truncate = "error",
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
    allow_download: Download = False,
) -> None:
    """Print what the model is given for a pair: text, ids, the token that is read."""
    cut = checked_truncate(truncate)
    from reward_lens.data import load_pairs
    from reward_lens.errors import DataError

    with plain_errors():
        given = load_pairs(pairs, allow_download=allow_download, **columns_of(columns))
        if pair is not None and pair not in given.ids:
            raise DataError(f"{pairs} has no pair {pair!r}; its ids begin with {given.ids[:3]}")
        k = 0 if pair is None else given.ids.index(pair)
        signal = load(model, ctx)
        for side, item in (("chosen", given.chosen[k]), ("rejected", given.rejected[k])):
            typer.echo(f"pair {given.ids[k]}, {side}\n{signal.explain(item, cut)}\n")


for command in (score, audit, run, compare, calibrate, demo):
    app.command()(command)
app.add_typer(evidence_app, name="evidence")


if __name__ == "__main__":
    app()
