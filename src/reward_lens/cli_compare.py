"""The command ``compare``: two models on the same pairs."""

from __future__ import annotations

import json as jsonlib
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reward_lens.cli_calibrate import interruptible
from reward_lens.cli_options import (
    Bars,
    BatchTokens,
    Columns,
    Device,
    Download,
    Dtype,
    Json,
    Limit,
    PairFile,
    Truncate,
    checked_truncate,
    columns_of,
    open_store,
    plain_errors,
)
from reward_lens.cli_output import check_page, check_parent, print_table, say_left_out

if TYPE_CHECKING:
    from reward_lens.comparing import Comparison
    from reward_lens.evidence import Evidence, Interval

#: Longest text of an example that is printed, in characters.
_TEXT = 60
#: Examples that are printed; the evidence has all that were asked for.
_PRINTED = 5
#: Pairs whose responses are edited where a page is made and nothing else is asked for.
BIASES = 32

First = Annotated[str, typer.Argument(help="Folder of a checkpoint, or a hub id in the cache.")]
ReadoutOf = Annotated[
    str | None, typer.Option(help="reward, criterion:K, composite; its own score by default.")
]
HeadOf = Annotated[str | None, typer.Option(help="Head convention of that model.")]


def compare(
    a: First,
    b: First,
    pairs: PairFile,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A page, X.html, or only evidence, X.jsonl.")
    ] = Path("compare.evidence.jsonl"),
    json: Json = False,
    limit: Limit = None,
    columns: Columns = None,
    biases: Annotated[
        int | None,
        typer.Option(help="Pairs whose responses are edited; 32 for a page. 0: none."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the samples and edits.")] = 0,
    store: Annotated[
        Path | None,
        typer.Option(help="Evidence store to append to; its records say how far to trust."),
    ] = None,
    truncate: Truncate = "error",
    readout_a: ReadoutOf = None,
    readout_b: ReadoutOf = None,
    head_a: HeadOf = None,
    head_b: HeadOf = None,
    examples: Annotated[int, typer.Option(help="Flips whose texts the evidence keeps.")] = 10,
    depth: Annotated[bool, typer.Option(help="Depth profiles side by side.")] = True,
    keep_clones: Annotated[
        bool, typer.Option("--keep-clones", help="Lineages that share a text stay apart.")
    ] = False,
    dtype: Dtype = None,
    device: Device = None,
    batch_tokens: BatchTokens = 4096,
    allow_download: Download = False,
) -> None:
    """Compare what two models prefer: print it, and write a page or the evidence alone.

    With -o X.html one page to open in a browser, X.evidence.jsonl beside it with every number, and
    X.pairs.jsonl with every pair; with -o X.jsonl only the evidence. Exits 1 if an instrument
    fails, or, where a page is made, a conformance check.
    """
    from reward_lens.page_files import PAGES

    paged = output.suffix.lower() in PAGES
    if not paged and output.suffix != ".jsonl":
        typer.echo(
            f"reward-lens: {output}: end it in .html for a page, in .jsonl for evidence alone",
            err=True,
        )
        raise typer.Exit(2)
    if paged:
        check_page(output, pairs, store)
    else:
        check_parent(output, pairs)
    cut = checked_truncate(truncate)
    from reward_lens.comparing import compare_models
    from reward_lens.data import load_pairs
    from reward_lens.signals import load_signal

    with ExitStack() as stack, plain_errors():
        opened = None if store is None else stack.enter_context(open_store(store))
        given = load_pairs(pairs, limit=limit, allow_download=allow_download, **columns_of(columns))
        loading: dict[str, Any] = {
            "dtype": dtype, "device": device, "allow_download": allow_download,
        }  # fmt: skip
        signals = (load_signal(a, head=head_a, **loading), load_signal(b, head=head_b, **loading))
        with interruptible(opened, "nothing was written", "nothing is kept without --store"):
            found = compare_models(
                *signals, given, readout=(readout_a, readout_b), conformance=paged,
                biases=(BIASES if paged else 0) if biases is None else biases, seed=seed,
                depth=depth, clones="keep" if keep_clones else "join", examples=examples,
                truncate=cut, store=opened, batch_tokens=batch_tokens, reporter=Bars(),
            )  # fmt: skip
        # Trust is asked of the store, so that the page is written while it is open.
        files = _write(found, output, paged)
        trust = {name: e.trust.name.lower() for name, e in found.evidence.items()}
    say_left_out(found.left_out)
    for name, why in {**found.missing, **found.not_offered}.items():
        typer.echo(f"{name} was not measured: {why}", err=True)
    if json:
        typer.echo(_as_json(found, files, trust, store))
    else:
        _say(found["compare"], (a, b), files)
    raise typer.Exit(0 if found.passed else 1)


def _write(found: Comparison, output: Path, paged: bool) -> dict[str, str | None]:
    """Write the evidence, and the page with the pairs beside it where one is asked for."""
    from reward_lens.evidence import with_all_parents, write_jsonl

    if not paged:
        write_jsonl(output, with_all_parents(found.evidence.values()))
        return {"report": None, "evidence": str(output), "scored_pairs": None}
    from reward_lens.report.folders import short_command

    files = found.write(output, command=short_command(["reward-lens", *sys.argv[1:]]))
    return {name: str(path) for name, path in vars(files).items()}


def _as_json(
    found: Comparison, files: dict[str, str | None], trust: dict[str, str], store: Path | None
) -> str:
    """What was found, as strict JSON: NaN and infinities are strings, as in the evidence file."""
    record = found["compare"].to_dict()
    kept = ("id", "instrument", "gauge", "units", "uncertainty", "tables")
    said = {
        **files, "store": None if store is None else str(store),
        "pairs": len(found.pairs), "left_out": found.left_out, "missing": found.missing,
        "not_offered": found.not_offered,
        "passed": found.passed, "failed_checks": found.failed_checks, "trust": trust,
        "notes": list(found.notes), "resumed": list(found.resumed),
    }  # fmt: skip
    return jsonlib.dumps({**said, **{k: record[k] for k in kept}}, allow_nan=False)


def _say(found: Evidence, names: tuple[str, str], files: dict[str, str | None]) -> None:
    """Print the measures, the subsets, the depths side by side, and a few flips."""
    from reward_lens.evidence.receipt import interval_text

    typer.echo(f"a: {names[0]}\nb: {names[1]}\n")
    plain: list[Interval] = [i for i in found.uncertainty if "[" not in i.name]
    for i in plain:
        typer.echo(f"{i.name}: {interval_text(i)}")
    table = found.tables["agreement"]
    columns = ["group", "pairs", "agreement", "low", "high", "accuracy_a", "accuracy_b",
               "difference", "p_adjusted"]  # fmt: skip
    typer.echo("")
    _print("agreement and accuracy", table[columns])
    if "depth" in found.tables:
        typer.echo("")
        shares = ["signal", "depth", "fraction", "lower_quartile", "median_share", "upper_quartile"]
        _print("share of the final margin by depth (norm frozen)", found.tables["depth"][shares])
    flips = found.tables["flips"].head(_PRINTED)
    for flip in flips.itertuples():
        other = "rejected" if flip.a_prefers == "chosen" else "chosen"
        typer.echo(
            f"\nflip {flip.pair}: a prefers the {flip.a_prefers}, b the {other} "
            f"({flip.margin_a:.2f} and {flip.margin_b:.2f} within-prompt SDs)\n"
            f"  prompt:   {_short(str(flip.prompt))}\n"
            f"  chosen:   {_short(str(flip.chosen))}\n"
            f"  rejected: {_short(str(flip.rejected))}"
        )
    typer.echo("")
    for row in found.tables["conditions"].itertuples():
        typer.echo(f"{row.condition}: {row.value}")
    typer.echo("")
    for path in files.values():
        if path is not None:
            typer.echo(f"wrote {path}")


def _print(title: str, table: Any) -> None:
    from reward_lens.report.numbers import shown

    rows = [
        [shown(v, ".4g") if isinstance(v, float) else str(v) for v in row]
        for row in table.itertuples(index=False)
    ]
    print_table(title, [str(c) for c in table], rows)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT else f"{line[: _TEXT - 1]}…"
