"""What the commands share: option types, loading, progress, plain errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reward_lens.progress import Bars as Bars

if TYPE_CHECKING:
    from reward_lens.signals import ClassifierRM

Model = Annotated[str, typer.Argument(help="Folder of a checkpoint, or a hub id in the cache.")]
PairFile = Annotated[str, typer.Argument(help="Preference pairs: .jsonl, .json, .csv, .parquet.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Dtype = Annotated[str | None, typer.Option(help="Of the trunk: float32, bfloat16 or float16.")]
Position = Annotated[
    str, typer.Option(help="Token the head reads: native (the checkpoint's), last, first, mean.")
]
Readout = Annotated[
    str | None,
    typer.Option(help="reward, criterion:K, composite; the checkpoint's own score by default."),
]
Head = Annotated[
    str | None,
    typer.Option(help="Head convention, where the checkpoint leaves it open; vocab:K, vocab:A-B."),
]
Template = Annotated[str | None, typer.Option(help="chat, plain, pair, or a template's text.")]
Bos = Annotated[str | None, typer.Option(help="First token: keep, none or add.")]
Eos = Annotated[str | None, typer.Option(help="Last token: keep, append or overwrite.")]
Sign = Annotated[float | None, typer.Option(help="-1 where a lower number is better.")]
Base = Annotated[str | None, typer.Option(help="Base model of an adapter.")]
Revision = Annotated[str | None, typer.Option(help="Of a hub id.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")]
Limit = Annotated[int | None, typer.Option(help="Only the first rows.")]
Truncate = Annotated[
    str, typer.Option(help="Over-long texts: error (leave the pair out), left or right.")
]
BatchTokens = Annotated[int, typer.Option(help="Padded tokens of one forward.")]
Download = Annotated[bool, typer.Option("--allow-download", help="Let files be fetched.")]

#: Names of the options that choose how a checkpoint is loaded and read.
LOADING = (
    "dtype", "device", "head", "position", "template", "bos", "eos", "sign", "base", "revision",
    "allow_download",
)  # fmt: skip
DEBUG: list[bool] = []


@contextmanager
def plain_errors() -> Iterator[None]:
    """Show deliberate errors as a line and exit 2; the rest keeps its traceback."""
    from reward_lens.errors import RewardLensError

    try:
        yield
    except RewardLensError as error:
        if DEBUG and DEBUG[-1]:
            raise
        typer.echo(f"reward-lens: {error}", err=True)
        raise typer.Exit(2) from error


def load(model: str, ctx: typer.Context, *, quickcheck: bool = True) -> ClassifierRM:
    """Load a signal by the loading options of a command, by their names."""
    from reward_lens.signals import load_signal

    options: dict[str, Any] = {k: v for k, v in ctx.params.items() if k in LOADING}
    return load_signal(model, conformance_quickcheck=quickcheck, **options)


def checked_truncate(value: str) -> str:
    """The value, or a line that names the choices and exit 2."""
    from reward_lens.backbone import TRUNCATE

    if value not in TRUNCATE:
        typer.echo(
            f"reward-lens: --truncate {value}: choose one of {', '.join(TRUNCATE)}", err=True
        )
        raise typer.Exit(2)
    return value
