"""What the commands share: option types, loading, progress, plain errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from reward_lens.progress import Bars as Bars

if TYPE_CHECKING:
    from pathlib import Path

    from reward_lens.evidence import EvidenceStore
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
Columns = Annotated[
    list[str] | None,
    typer.Option(
        help="FIELD=COLUMN where a column has another name than its field: "
        "prompt=question,chosen=good,rejected=bad; also subset, id, lineage. Repeat, or use commas."
    ),
]
Download = Annotated[bool, typer.Option("--allow-download", help="Let files be fetched.")]

#: Names of the options that choose how a checkpoint is loaded and read.
LOADING = (
    "dtype", "device", "head", "position", "template", "bos", "eos", "sign", "base", "revision",
    "allow_download",
)  # fmt: skip
#: Fields of a pair whose columns can be named.
FIELDS = ("prompt", "chosen", "rejected", "subset", "id", "lineage")
#: As a shell says that a command ended by an interrupt.
INTERRUPTED = 130
DEBUG: list[bool] = []
_FIELD = re.compile(rf"(?<![\w-])({'|'.join(FIELDS)})=\.\.\.")


class Interruptible(TyperGroup):
    """Commands that an interrupt ends with a line, whatever they were at; exits 130."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("\nreward-lens: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None


@contextmanager
def plain_errors() -> Iterator[None]:
    """Show deliberate errors as a line and exit 2; the rest keeps its traceback."""
    from reward_lens.errors import RewardLensError

    try:
        yield
    except RewardLensError as error:
        if DEBUG and DEBUG[-1]:
            raise
        typer.echo(f"reward-lens: {_for_shell(str(error))}", err=True)
        raise typer.Exit(2) from error


def open_store(path: Path) -> EvidenceStore:
    """The evidence store that a command appends to."""
    from reward_lens.evidence import EvidenceStore

    return EvidenceStore(path)


def _for_shell(message: str) -> str:
    """A message whose arguments are spelt as the options of a command are."""
    said = message.replace("allow_download=True", "--allow-download")
    return _FIELD.sub(r"--columns \1=...", said)


def columns_of(texts: Sequence[str] | None) -> dict[str, Any]:
    """Field -> column, as :func:`~reward_lens.load_pairs` takes them.

    Raises
    ------
    DataError
        If one has no ``=`` or no column, names no field, or one that was named before.
    """
    from reward_lens.errors import DataError

    found: dict[str, str] = {}
    for text in texts or ():
        # A comma in a column's name is no end of it unless a field follows.
        for part in re.split(r",(?=\s*\w+\s*=)", text):
            field, equals, column = (x.strip() for x in part.partition("="))
            if not equals or not column or field not in FIELDS:
                raise DataError(
                    f"--columns {part.strip()}: write FIELD=COLUMN with a field of "
                    f"{', '.join(FIELDS)}, such as prompt=question,chosen=good,rejected=bad"
                )
            if field in found:
                raise DataError(f"--columns names {field} twice; give it once")
            found[field] = column
    return found


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
