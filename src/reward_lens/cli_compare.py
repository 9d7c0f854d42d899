"""The command ``compare``: two models on the same pairs."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reward_lens.cli_options import (
    Bars,
    Device,
    Download,
    Dtype,
    Json,
    Limit,
    PairFile,
    Truncate,
    checked_truncate,
    plain_errors,
)
from reward_lens.cli_output import check_parent, print_table, say_left_out

if TYPE_CHECKING:
    from reward_lens.evidence import Evidence, Interval

#: Longest text of an example that is printed, in characters.
_TEXT = 60
#: Examples that are printed; the evidence has all that were asked for.
_PRINTED = 5

First = Annotated[str, typer.Argument(help="Folder of a checkpoint, or a hub id in the cache.")]
ReadoutOf = Annotated[
    str | None, typer.Option(help="reward, criterion:K, composite; its own score by default.")
]
HeadOf = Annotated[str | None, typer.Option(help="Head convention of that model.")]


def compare(
    a: First,
    b: First,
    pairs: PairFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="Evidence as JSON lines.")] = Path(
        "compare.evidence.jsonl"
    ),
    json: Json = False,
    limit: Limit = None,
    truncate: Truncate = "error",
    readout_a: ReadoutOf = None,
    readout_b: ReadoutOf = None,
    head_a: HeadOf = None,
    head_b: HeadOf = None,
    examples: Annotated[int, typer.Option(help="Flips whose texts are kept.")] = 10,
    depth: Annotated[bool, typer.Option(help="Depth profiles side by side.")] = True,
    keep_clones: Annotated[
        bool, typer.Option("--keep-clones", help="Lineages that share a text stay apart.")
    ] = False,
    dtype: Dtype = None,
    device: Device = None,
    batch_tokens: Annotated[int, typer.Option(help="Padded tokens of one forward.")] = 4096,
    allow_download: Download = False,
) -> None:
    """Compare what two models prefer; print it and keep the evidence it is made of."""
    if output.suffix != ".jsonl":
        typer.echo(f"reward-lens: {output}: end it in .jsonl", err=True)
        raise typer.Exit(2)
    check_parent(output, pairs)
    cut = checked_truncate(truncate)
    from reward_lens.auditing import fitting_pairs
    from reward_lens.data import load_pairs
    from reward_lens.evidence import write_jsonl
    from reward_lens.instruments.comparison import compare as compare_signals
    from reward_lens.instruments.comparison import comparison_parts
    from reward_lens.signals import load_signal

    with plain_errors():
        fit = load_pairs(pairs, limit=limit, allow_download=allow_download)
        loading: dict[str, Any] = {
            "dtype": dtype, "device": device, "allow_download": allow_download,
        }  # fmt: skip
        signals = (load_signal(a, head=head_a, **loading), load_signal(b, head=head_b, **loading))
        left_out: dict[str, str] = {}
        for signal in signals:
            fit, more = fitting_pairs(signal, fit, cut)
            left_out |= more
        readouts = (
            signals[0].readout(readout_a or signals[0].default_readout).name,
            signals[1].readout(readout_b or signals[1].default_readout).name,
        )
        with Bars().stage("compare", (8 if depth else 4) * len(fit)) as done:
            parts = comparison_parts(
                *signals, fit, readout=readouts, truncate=cut, depth=depth,
                clones="keep" if keep_clones else "join", batch_tokens=batch_tokens, progress=done,
            )  # fmt: skip
        found = compare_signals(
            *signals, fit, readout=readouts, truncate=cut, examples=examples,
            batch_tokens=batch_tokens, parts=parts,
        )  # fmt: skip
        write_jsonl(output, [*parts.evidence, found])
    say_left_out(left_out)
    if json:
        typer.echo(_as_json(found, output, len(fit), left_out))
    else:
        _say(found, (a, b), output)


def _as_json(found: Evidence, output: Path, pairs: int, left_out: dict[str, str]) -> str:
    """What was found, as strict JSON: NaN and infinities are strings, as in the evidence file."""
    record = found.to_dict()
    kept = ("id", "instrument", "gauge", "units", "uncertainty", "tables")
    said = {"output": str(output), "pairs": pairs, "left_out": left_out}
    return jsonlib.dumps({**said, **{k: record[k] for k in kept}}, allow_nan=False)


def _say(found: Evidence, names: tuple[str, str], output: Path) -> None:
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
    typer.echo(f"\nwrote {output}")


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
