"""The command line: parses, calls, prints. Exit 0 fine, 1 a check failed, 2 usage or input."""

from __future__ import annotations

import json as jsonlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reward_lens import __version__
from reward_lens.cli_options import (
    DEBUG,
    Bars,
    Base,
    BatchTokens,
    Bos,
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
    load,
    plain_errors,
)

if TYPE_CHECKING:
    from reward_lens.auditing import Audit
    from reward_lens.data import Pairs
    from reward_lens.evidence import Evidence
    from reward_lens.signals import ClassifierRM, SignalMeta

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Look inside reward models: prove the load, score pairs, audit.",
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
def score(
    ctx: typer.Context,
    model: Model,
    pairs: PairFile,
    output: Annotated[Path, typer.Option("-o", "--output", help=".parquet, .csv or .jsonl")],
    json: Json = False,
    limit: Limit = None,
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
) -> None:
    """Score both sides of every pair and write one row a pair."""
    writers = {".parquet": "to_parquet", ".csv": "to_csv", ".jsonl": "to_json"}
    if output.suffix not in writers:
        typer.echo(f"reward-lens: {output}: end it in {', '.join(writers)}", err=True)
        raise typer.Exit(2)
    _check_parent(output, pairs)
    cut = checked_truncate(truncate)
    from reward_lens.auditing import fitting_pairs
    from reward_lens.data import load_pairs
    from reward_lens.instruments import preference

    with plain_errors():
        given = load_pairs(pairs, limit=limit, allow_download=allow_download)
        signal = load(model, ctx)
        chosen = signal.readout(readout or signal.default_readout)
        fit, left_out = fitting_pairs(signal, given, cut)
        with Bars().stage("scores", 2 * len(fit)) as done:
            found = preference(
                signal,
                fit,
                readout=chosen.name,
                truncate=cut,
                batch_tokens=batch_tokens,
                progress=done,
            )
    table = found.tables["scores"]
    if output.suffix == ".parquet":
        table.to_parquet(output, index=False)
    elif output.suffix == ".csv":
        table.to_csv(output, index=False)
    else:
        table.to_json(output, orient="records", lines=True, force_ascii=False, double_precision=15)
    _say_left_out(left_out)
    i = found.interval("accuracy")
    ties = int(found.tables["accuracy"]["ties"].iloc[0])
    cut_note = _cut_note(found, signal.meta)
    if cut_note:
        typer.echo(cut_note, err=True)
    if json:
        said = {"output": str(output), "pairs": len(fit), "readout": chosen.name,
                "accuracy": i.estimate, "ties": ties}  # fmt: skip
        typer.echo(jsonlib.dumps({**said, "truncation": cut_note, "left_out": left_out}))
    else:
        accuracy = f"accuracy {i.estimate:.3f} (ties count half: {ties})"
        what = f"{chosen.name}{f' ({chosen.note})' if chosen.note else ''}"
        typer.echo(f"{len(fit)} pairs scored by {what}, {accuracy}; wrote {output}")


def _check_parent(output: Path, pairs: str | None = None) -> None:
    """Refuse an output that cannot be written, or that would replace the pairs it is made from."""
    for path in (output, output.with_suffix(".evidence.jsonl")):
        if path.is_dir() or (pairs is not None and path.resolve() == Path(pairs).resolve()):
            what = "a folder" if path.is_dir() else "the file of the pairs"
            typer.echo(f"reward-lens: {path} is {what}; name another output", err=True)
            raise typer.Exit(2)
    if not output.parent.is_dir():
        typer.echo(f"reward-lens: {output}: there is no folder {output.parent}", err=True)
        raise typer.Exit(2)


def _cut_note(scores: Evidence, meta: SignalMeta) -> str:
    """What truncation did, or nothing: it moves the read token and can make sides identical."""
    table = scores.tables["scores"]
    cut = table[["tokens_cut_chosen", "tokens_cut_rejected"]].to_numpy() > 0
    if not cut.any():
        return ""
    ties = int((cut.any(axis=1) & (table["margin"].to_numpy() == 0)).sum())
    where = "the cut part is not seen"
    if meta.reads not in ("first", "mean") and meta.eos != "overwrite":
        where = "a text cut on the right is read mid-text, without its end token"
    return (
        f"{int(cut.sum())} texts were cut to the model's length ({ties} of their pairs now tie); "
        f"{where}"
    )


def _say_left_out(left_out: dict[str, str]) -> None:
    """Name pairs that were left out: the first few, and how many in all."""
    if not left_out:
        return
    typer.echo(f"{len(left_out)} pairs left out (--truncate left or right keeps them):", err=True)
    for k, (name, why) in enumerate(left_out.items()):
        if k == 5:
            typer.echo(f"  and {len(left_out) - 5} more", err=True)
            break
        typer.echo(f"  {name}: {why}", err=True)


@app.command()
def explain(
    ctx: typer.Context,
    model: Model,
    pairs: PairFile,
    pair: Annotated[str | None, typer.Option(help="Id of the pair; the first by default.")] = None,
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
        given = load_pairs(pairs, allow_download=allow_download)
        if pair is not None and pair not in given.ids:
            raise DataError(f"{pairs} has no pair {pair!r}; its ids begin with {given.ids[:3]}")
        k = 0 if pair is None else given.ids.index(pair)
        signal = load(model, ctx)
        for side, item in (("chosen", given.chosen[k]), ("rejected", given.rejected[k])):
            typer.echo(f"pair {given.ids[k]}, {side}\n{signal.explain(item, cut)}\n")


@app.command()
def audit(
    ctx: typer.Context,
    model: Model,
    pairs: PairFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="The report, an HTML file.")],
    json: Json = False,
    limit: Limit = None,
    split: Annotated[
        Path | None, typer.Option(help="JSON file of part name -> ids; parts are reported apart.")
    ] = None,
    sample: Annotated[int, typer.Option(help="Pairs for lens and attribution.")] = 300,
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 0,
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
) -> None:
    """Prove the load, score pairs, run the instruments; write a report and its evidence."""
    _check_parent(output, pairs)
    cut = checked_truncate(truncate)
    from reward_lens.auditing import audit as run_audit
    from reward_lens.data import load_pairs

    with plain_errors():
        given = load_pairs(pairs, limit=limit, allow_download=allow_download)
        parts = _parts(split, given)
        signal = load(model, ctx)
        found = run_audit(
            signal,
            given,
            sample=sample,
            seed=seed,
            parts=parts,
            truncate=cut,
            readout=readout,
            batch_tokens=batch_tokens,
            reporter=Bars(),
        )
    _finish(signal, found, output, json, notes=())


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
    signal: ClassifierRM,
    found: Audit,
    output: Path,
    json: bool,
    notes: tuple[str, ...],
    title: str | None = None,
) -> None:
    """Write page and evidence, say where they are, exit by what was found."""
    from reward_lens.evidence import write_jsonl
    from reward_lens.report import Page, write_page

    beside = output.with_suffix(".evidence.jsonl")
    m = signal.meta
    facts = (
        f"{m.architecture}, {m.n_layers} layers of width {m.width}, {m.dtype} on {m.device}, "
        f"{m.kernel} attention; {_form(m)}; head {m.head}, read at {_place(m)}; readout "
        f"{_readout(found['preference'])}"
    )
    if found.left_out:
        notes = (*notes, f"{len(found.left_out)} over-long pairs were left out: "
                 f"{', '.join(list(found.left_out)[:5])}"
                 f"{' and more' if len(found.left_out) > 5 else ''}.")  # fmt: skip
    cut_note = _cut_note(found["preference"], m)
    if cut_note:
        typer.echo(cut_note, err=True)
        notes = (*notes, cut_note + ".")
    page = Page(
        title=title or Path(m.source).name,
        facts=facts,
        command=" ".join(["reward-lens", *sys.argv[1:]]),
        evidence_file=beside.name,
        notes=(*notes, *found.notes, *_not_offered(found), *m.notes),
        missing=found.missing,
    )
    write_jsonl(beside, found.evidence.values())
    write_page(output, page, found.evidence, found.shown)
    _say_left_out(found.left_out)
    i = found["preference"].interval("accuracy")
    if json:
        typer.echo(jsonlib.dumps({
            "report": str(output), "evidence": str(beside), "passed": found.passed,
            "failed_checks": found.conformance.failed, "missing": found.missing,
            "accuracy": i.estimate, "pairs": len(found.pairs), "left_out": found.left_out,
        }))  # fmt: skip
    else:
        if not found.conformance.passed:
            typer.echo(str(found.conformance), err=True)
        for name, why in found.missing.items():
            typer.echo(f"{name} did not run: {why}", err=True)
        typer.echo(f"accuracy {i.estimate:.3f} ({i.low:.3f} to {i.high:.3f}) on {i.n} pairs")
        typer.echo(f"report: {output}")
        typer.echo(f"evidence: {beside}")
    raise typer.Exit(0 if found.passed else 1)


def _place(meta: SignalMeta) -> str:
    """Where the head reads, in words."""
    from reward_lens.backbone.reading import RULES

    return RULES[meta.reads if meta.position == "native" else meta.position]


def _form(meta: SignalMeta) -> str:
    return "question and answer as a text pair" if meta.template == "pair" else meta.template


def _readout(evidence: Evidence) -> str:
    note = evidence.subject.notes.get("readout_note")
    return f"{evidence.subject.readout} ({note})" if note else evidence.subject.readout


def _not_offered(found: Audit) -> tuple[str, ...]:
    return tuple(f"{name} is not offered on this model: {why}" for name, why in
                 found.not_offered.items())  # fmt: skip


_DEMO_NOTES = (
    "This is the demo: a 4-layer model of 4.6 MiB, really trained on human preferences and "
    "honestly weak. Every number is a finding about this small model and about nothing else.",
    "All pairs are held out from its training by prompt. BBQ questions are made from templates, so "
    "some of them are nearly alike to training prompts, bbq-ambig among them. Content note: BBQ "
    "pairs are built from stereotypes (BBQ, Parrish and co-authors, CC-BY-4.0).",
)


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The report, an HTML file.")
    ] = Path("reward-lens-demo.html"),
    json: Json = False,
) -> None:
    """Audit the shipped demo model on its held-out pairs."""
    _check_parent(output)
    from reward_lens.assets import asset
    from reward_lens.auditing import audit as run_audit
    from reward_lens.data import load_pairs
    from reward_lens.signals import load_signal

    with plain_errors():
        signal = load_signal(asset("demo/model"))
        found = run_audit(signal, load_pairs(asset("demo/pairs.jsonl")), reporter=Bars())
    _finish(signal, found, output, json, notes=_DEMO_NOTES, title="the demo model")


if __name__ == "__main__":
    app()
