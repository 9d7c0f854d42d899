"""``reward-lens score``: pairs, or single items, to one row each."""

from __future__ import annotations

import itertools
import json as jsonlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    Position,
    Readout,
    Revision,
    Sign,
    Template,
    Truncate,
    checked_truncate,
    columns_of,
    load,
    plain_errors,
)
from reward_lens.cli_output import check_parent, say_left_out
from reward_lens.wording import counted, cut_note

if TYPE_CHECKING:
    import pandas as pd

    from reward_lens.data import Item
    from reward_lens.signals import ClassifierRM

_STDIN = "-"
_WRITERS = (".parquet", ".csv", ".jsonl")
#: Fields that a row of a single item has and a pair does not.
_ITEM = ("response", "text", "ids", "input_ids")

Rows = Annotated[
    str,
    typer.Argument(
        help="Pairs, or single items (prompt and response; messages; text): .jsonl, .json, .csv, "
        ".parquet; - for JSON lines from standard input."
    ),
]


def score(
    ctx: typer.Context,
    model: Model,
    rows: Rows,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help=".parquet, .csv or .jsonl; standard output without."),
    ] = None,
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
    batch_tokens: BatchTokens = 4096,
    allow_download: Download = False,
) -> None:
    """Score both sides of every pair, or every single item, and write one row for each.

    Without -o the rows go to standard output as JSON lines, and what is said beside them to
    standard error.
    """
    if output is not None:
        if output.suffix not in _WRITERS:
            typer.echo(f"reward-lens: {output}: end it in {', '.join(_WRITERS)}", err=True)
            raise typer.Exit(2)
        check_parent(output, None if rows == _STDIN else rows)
    cut = checked_truncate(truncate)
    options = {"truncate": cut, "batch_tokens": batch_tokens}
    with plain_errors():
        named = columns_of(columns)
        given = _rows(rows)
        first = next(given, None)
        whole = () if first is None else (first,)
        if first is not None and not named and _is_item(first[1]):
            items = _items(itertools.islice(itertools.chain(whole, given), limit))
            signal = load(model, ctx)
            table, said = _score_items(signal, items, readout, options)
        else:
            # A folder or a name of the hub is no file whose rows could be looked at.
            source = [row for _, row in itertools.chain(whole, given)] if rows == _STDIN else rows
            signal_of = lambda: load(model, ctx)  # noqa: E731 - read after the pairs are
            table, said = _score_pairs(signal_of, source, limit, readout, options,
                                       {"allow_download": allow_download, **named})  # fmt: skip
    _write(table, output)
    said = {"output": None if output is None else str(output), **said}
    say_left_out(said["left_out"])
    beside = output is None  # the rows have standard output to themselves
    if said["truncation"]:
        typer.echo(said["truncation"], err=True)
    if json:
        typer.echo(jsonlib.dumps(said), err=beside)
    else:
        where = "" if output is None else f"; wrote {output}"
        typer.echo(f"{_sentence(said)}{where}", err=beside)


def _rows(source: str) -> Iterator[tuple[str, Any]]:
    """Rows of a file or of standard input; none of what is no file."""
    from reward_lens.data.formats import SUFFIXES, file_rows, jsonl_rows

    if source == _STDIN:
        return jsonl_rows(sys.stdin.buffer, "standard input")
    path = Path(source).expanduser()
    if path.is_file() and path.name.lower().endswith(SUFFIXES):
        return file_rows(path)
    return iter(())


def _is_item(row: Mapping[str, Any]) -> bool:
    if any(name in row for name in ("chosen", "rejected")):
        return False
    return any(row.get(name) is not None for name in (*_ITEM, "messages"))


def _items(rows: Iterator[tuple[str, Any]]) -> list[Item]:
    from reward_lens.data import as_item

    return [as_item(row, where) for where, row in rows]


def _score_items(
    signal: ClassifierRM, items: list[Item], readout: str | None, options: dict[str, Any]
) -> tuple[pd.DataFrame, dict[str, Any]]:
    from reward_lens.errors import DataError
    from reward_lens.signals.lengths import too_long

    chosen = signal.readout(readout or signal.default_readout)
    limit, long = signal.meta.max_length, too_long(signal, items, options["truncate"])
    names = [x.id if x.id is not None else str(k) for k, x in enumerate(items)]
    left_out = {names[k]: f"has {n} tokens, the model reads {limit}" for k, n in long.items()}
    items = [x for k, x in enumerate(items) if k not in long]
    if long and not items:
        raise DataError(f"all items are longer than the model reads ({limit} tokens)")
    with Bars().stage("scores", len(items)) as done:
        found = signal.score(items, readout=chosen.name, progress=done, **options)
    table = found.value.to_dataframe().reset_index()
    cut = int((table["tokens_cut"] > 0).sum())
    were = "was" if cut == 1 else "were"
    said = f"{counted(cut, 'text')} {were} cut to the model's length" if cut else ""
    return table, {"items": len(items), "readout": chosen.name, "note": chosen.note,
                   "truncation": said, "left_out": left_out}  # fmt: skip


def _score_pairs(
    signal_of: Any,
    source: Any,
    limit: int | None,
    readout: str | None,
    options: dict[str, Any],
    loading: dict[str, Any],
) -> tuple[pd.DataFrame, dict[str, Any]]:
    from reward_lens.auditing import fitting_pairs
    from reward_lens.data import load_pairs
    from reward_lens.instruments import preference

    given = load_pairs(source, limit=limit, **loading)
    signal: ClassifierRM = signal_of()
    chosen = signal.readout(readout or signal.default_readout)
    fit, left_out = fitting_pairs(signal, given, options["truncate"])
    with Bars().stage("scores", 2 * len(fit)) as done:
        found = preference(signal, fit, readout=chosen.name, progress=done, **options)
    return found.tables["scores"], {
        "pairs": len(fit), "readout": chosen.name, "note": chosen.note,
        "accuracy": found.interval("accuracy").estimate,
        "ties": int(found.tables["accuracy"]["ties"].iloc[0]),
        "truncation": cut_note(found, signal.meta), "left_out": left_out,
    }  # fmt: skip


def _sentence(said: dict[str, Any]) -> str:
    by = f"{said['readout']} ({said['note']})" if said["note"] else said["readout"]
    if "items" in said:
        return f"{counted(said['items'], 'item')} scored by {by}"
    accuracy = f"accuracy {said['accuracy']:.3f} (ties count half: {said['ties']})"
    return f"{counted(said['pairs'], 'pair')} scored by {by}, {accuracy}"


def _write(table: pd.DataFrame, output: Path | None) -> None:
    if output is not None and output.suffix == ".parquet":
        table.to_parquet(output, index=False)
    elif output is not None and output.suffix == ".csv":
        table.to_csv(output, index=False)
    else:
        where: Any = sys.stdout if output is None else output
        table.to_json(where, orient="records", lines=True, force_ascii=False, double_precision=15)
