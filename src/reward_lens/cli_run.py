"""The command ``run``: any one instrument on a model and pairs."""

from __future__ import annotations

import inspect
import json as jsonlib
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reward_lens.cli_calibrate import interruptible
from reward_lens.cli_options import (
    Bars,
    Base,
    Bos,
    Columns,
    Device,
    Download,
    Dtype,
    Eos,
    Head,
    Json,
    Limit,
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
from reward_lens.cli_output import MOST_ROWS, check_parent, print_table, say_left_out
from reward_lens.cli_values import option_rows, parse_settings

if TYPE_CHECKING:
    import pandas as pd

    from reward_lens.evidence import Evidence, EvidenceStore
    from reward_lens.signals import ClassifierRM

#: The same for those that are read off the scores of ``preference`` and run no forward.
REPORTS: dict[str, tuple[str, ...]] = {
    "margin_distribution": ("summary",),
    "reliability_curve": ("ece", "curve"),
    "section_accuracy": ("sections", "subsets"),
    "worst_errors": ("errors",),
}
#: Instrument -> the tables that are printed.
INSTRUMENTS: dict[str, tuple[str, ...]] = {
    "preference": ("accuracy", "margins", "positions", "head_ties"),
    "lens": ("crystallization", "curve"),
    "attribution": ("writes", "completeness"),
    "source_attribution": ("writes",),
    "token_curves": ("tokens",),
    "token_map": ("methods", "agreement", "sentences", "tokens"),
    "patch_grid": ("components", "engine"),
    "attribution_patching": ("agreement", "missed", "screened", "components"),
    "path_effects": ("nodes", "paths", "engine"),
    "concept_dose_response": ("slope", "curve", "concept", "band", "engine"),
    "compare_views": ("agreement", "components"),
    "objective_geometry": ("rows", "scores"),
    "bias_battery": ("null", "unit", "effects", "against_neutral"),
    "style_accuracy": ("levels", "observed"),
    "prompt_snr": ("variants", "left_out"),
    "best_of_n": ("accuracy", "ties"),
    **REPORTS,
}
#: What is measured on prompts with several responses each, not on pairs.
_ON_CHOICES = ("best_of_n",)
#: Characters of a cell that are printed; the evidence has all.
_MOST_CHARACTERS = 72
#: Intervals that are printed in a receipt.
_MOST_INTERVALS = 8
SUFFIXES = (".jsonl", ".csv", ".parquet")


def run(
    ctx: typer.Context,
    instrument: Annotated[
        str | None, typer.Argument(help="One of those that --list shows.")
    ] = None,
    model: Annotated[
        str | None, typer.Argument(help="Folder of a checkpoint, or a hub id in the cache.")
    ] = None,
    pairs: Annotated[
        str | None, typer.Argument(help="Preference pairs: .jsonl, .json, .csv, .parquet.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help=".jsonl: the evidence (INSTRUMENT.evidence.jsonl by default). .csv or .parquet: "
            "its value as a table, with the evidence beside it.",
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Evidence store to append to; its records say how far to trust, and what is there "
            "is not measured again."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value: an option of the instrument; repeat for more."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="Show the instruments, or the options of the one named.")
    ] = False,
    json: Json = False,
    limit: Limit = None,
    columns: Columns = None,
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
    batch_tokens: Annotated[
        int | None, typer.Option(help="Padded tokens of one forward; the instrument's default.")
    ] = None,
    allow_download: Download = False,
) -> None:
    """Run one instrument; print its receipt and main tables, and keep its evidence."""
    if instrument is not None and instrument not in INSTRUMENTS:
        _refuse(f"there is no instrument {instrument!r}; there are {', '.join(INSTRUMENTS)}")
    if show:
        _show(instrument)
        return
    if instrument is None or model is None or pairs is None:
        _refuse("name an instrument, a model and pairs; --list shows the instruments")
    assert instrument is not None
    assert model is not None
    assert pairs is not None
    # What a store keeps need not lie beside it as well.
    target = output if output or store else Path(f"{instrument}.evidence.jsonl")
    if target is not None:
        if target.suffix not in SUFFIXES:
            _refuse(f"{target}: end it in {', '.join(SUFFIXES)}")
        check_parent(target, pairs)
    options: dict[str, Any] = {"truncate": checked_truncate(truncate)}
    if batch_tokens is not None:
        options["batch_tokens"] = batch_tokens
    from reward_lens.auditing import fitting_pairs
    from reward_lens.data import load_choices, load_pairs
    from reward_lens.errors import DataError

    function = _function(instrument)
    with ExitStack() as stack, plain_errors():
        options |= parse_settings(function, settings or [])
        opened = None if store is None else stack.enter_context(open_store(store))
        fit: Any
        left_out: dict[str, str] = {}
        if instrument in _ON_CHOICES:
            if columns:
                raise DataError(f"{instrument} takes no --columns: it reads choices, not pairs")
            fit = load_choices(pairs, limit=limit)
        else:
            fit = load_pairs(
                pairs, limit=limit, allow_download=allow_download, **columns_of(columns)
            )
        signal = load(model, ctx)
        scorer = _function("preference") if instrument in REPORTS else function
        options |= _readout(signal, instrument, scorer, readout)
        if instrument not in _ON_CHOICES:
            fit, left_out = fitting_pairs(signal, fit, options["truncate"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            with interruptible(opened, "nothing was written", "nothing is kept without --store"):
                found, known = _measured(signal, fit, instrument, options, opened)
        written = [] if target is None else _write(found, target)
        say_left_out(left_out)
        for warning in caught:
            typer.echo(f"note: {warning.message}", err=True)
        # Trust is asked of the store, so that it is said while it is open.
        if json:
            said = _as_json(found, written, len(fit), left_out)
            said["store"], said["from_store"] = (None if store is None else str(store)), known
            typer.echo(jsonlib.dumps(said, allow_nan=False))
        else:
            kept = [] if store is None else [f"{'was already in' if known else 'kept in'} {store}"]
            _say(found, [*kept, *([f"wrote {' and '.join(map(str, written))}"] if written else [])])


def _measured(
    signal: ClassifierRM,
    items: Any,
    instrument: str,
    options: dict[str, Any],
    store: EvidenceStore | None,
) -> tuple[Evidence, bool]:
    """The evidence, and whether the store had what it takes from an earlier run."""
    from reward_lens.instrument_calls import call_of, data_of

    function, own = _function(instrument), dict(options)
    mine: dict[str, Any] = {}
    if instrument in REPORTS:  # the pairs are scored, and it is read off the scores
        known_options = inspect.signature(function).parameters
        mine = {k: own.pop(k) for k in list(own) if k in known_options}
        mine |= {"pairs": items} if "pairs" in known_options else {}
        function = _function("preference")
    call = call_of(signal, function, own)
    found = None if store is None else call.in_store(store, signal, data_of(call, items))
    known = found is not None
    if found is None:
        with Bars().stage(instrument, 2 * len(items)) as done:
            found = function(signal, items, progress=done, **own)
    if instrument in REPORTS:
        found = _function(instrument)(found, **mine)
    if store is not None:
        store.append(found)
    return found, known


def _refuse(why: str) -> None:
    typer.echo(f"reward-lens: {why}", err=True)
    raise typer.Exit(2)


def _function(instrument: str) -> Callable[..., Evidence]:
    import reward_lens.instruments

    found: Callable[..., Evidence] = getattr(reward_lens.instruments, instrument)
    return found


def _show(instrument: str | None) -> None:
    """Print the instruments with a line each, or the options of one."""
    names = INSTRUMENTS if instrument is None else [instrument]
    for name in names:
        first = (_function(name).__doc__ or "").partition("\n")[0]
        typer.echo(f"{name:<22} {first}")
    if instrument is None:
        typer.echo("\nreward-lens run INSTRUMENT --list shows the options of one.")
        return
    rows = [list(row) for row in option_rows(_function(instrument))]
    typer.echo("")
    print_table("options, to be given as --set key=value", ["key", "default", "what"], rows)


def _readout(
    signal: ClassifierRM, instrument: str, measure: Callable[..., Evidence], asked: str | None
) -> dict[str, Any]:
    """The readout to run on: the one asked for, or the checkpoint's own."""
    from reward_lens.errors import CapabilityError

    if "readout" in inspect.signature(measure).parameters:
        return {"readout": signal.readout(asked or signal.default_readout).name}
    if asked is not None:
        raise CapabilityError(f"{instrument} takes no --readout: it reads all of them")
    return {}


def _write(found: Evidence, target: Path) -> list[Path]:
    """Write the evidence, and its value as a table where the name asks for one."""
    from reward_lens.evidence import with_all_parents, write_jsonl

    if target.suffix == ".jsonl":
        write_jsonl(target, with_all_parents([found]))
        return [target]
    table, beside = found.to_dataframe(), target.with_suffix(".evidence.jsonl")
    if target.suffix == ".csv":
        table.to_csv(target, index=False)
    else:
        table.to_parquet(target, index=False)
    write_jsonl(beside, with_all_parents([found]))
    return [target, beside]


def _as_json(
    found: Evidence, written: list[Path], pairs: int, left_out: dict[str, str]
) -> dict[str, Any]:
    """What was found, as strict JSON: NaN and infinities are strings, as in the evidence file."""
    record = found.to_dict()
    kept = ("id", "instrument", "tier", "gauge", "units", "uncertainty")
    return {"output": [str(p) for p in written], "pairs": pairs, "left_out": left_out,
            **{k: record[k] for k in kept}, "forwards": found.provenance.cost_forwards,
            "trust": found.trust.name.lower(), "because": list(found.standing.because),
            "tables": {k: record["tables"][k] for k in INSTRUMENTS[found.instrument]
                       if k in found.tables}}  # fmt: skip


def _say(found: Evidence, kept: list[str]) -> None:
    """Print main tables and receipt, of many intervals the first, and where the evidence is."""
    from reward_lens.evidence.receipt import lines

    for name in INSTRUMENTS[found.instrument]:
        if name in found.tables:
            _print(name, found.tables[name])
            typer.echo("")
    left = len(found.uncertainty) - _MOST_INTERVALS
    results = 0
    for name, text in lines(found):
        results += name.startswith("result")
        if name.startswith("result") and results > _MOST_INTERVALS:
            if results == _MOST_INTERVALS + 1:
                typer.echo(f"results: {left} more in the evidence")
            continue
        typer.echo(f"{name}: {text}")
    typer.echo("")
    for line in kept:
        typer.echo(line)


def _print(name: str, table: pd.DataFrame) -> None:
    """Print a table of the evidence: of many effects the largest, and one note for all once.

    Long texts are shortened.
    """
    from reward_lens.report.numbers import shown

    title, note = name, ""
    if len(table) > MOST_ROWS and "mean_size" in table:
        title = f"{name}, largest mean_size first"
        table = table.sort_values("mean_size", ascending=False, kind="stable")
    if len(table) > MOST_ROWS and "threshold" in table:
        title = f"{name}, largest for their threshold first"
        size = table["mean"].abs() / table["threshold"]
        table = table.loc[size.sort_values(ascending=False, kind="stable").index]
    if "note" in table and table["note"].nunique() == 1:
        note = str(table["note"].iloc[0])
        table = table.drop(columns="note")
    rows = [
        [shown(v, ".4g") if isinstance(v, float) else _short(str(v)) for v in row]
        for row in table.itertuples(index=False)
    ]
    print_table(title, [str(c) for c in table], rows)
    if note:
        typer.echo(f"note: {note}")


def _short(text: str) -> str:
    """The beginning of a long text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}…"
