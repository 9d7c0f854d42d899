"""What the commands say beside their result: outputs refused, pairs left out, tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from reward_lens.cli_options import plain_errors
from reward_lens.wording import counted

#: Rows of a table that are printed.
MOST_ROWS = 20


def check_page(output: Path, pairs: str | None = None, *others: Path | None) -> None:
    """Refuse a page that cannot be written, or that would replace what it is made from."""
    from reward_lens.page_files import PageFiles

    with plain_errors():
        files = PageFiles.beside(output)
    for path in vars(files).values():
        _check_input(path, pairs)
        for other in others:
            if other is not None and path.resolve() == other.resolve():
                typer.echo(f"reward-lens: {path} is read here; name another output", err=True)
                raise typer.Exit(2)
    with plain_errors():
        PageFiles.of(output)


def check_parent(output: Path, pairs: str | None = None) -> None:
    """Refuse an output that cannot be written, or that would replace the pairs it is made from."""
    beside = [] if output.is_dir() else [output.with_suffix(".evidence.jsonl")]  # "." has no suffix
    for path in (output, *beside):
        if path.is_dir():
            typer.echo(f"reward-lens: {path} is a folder; name another output", err=True)
            raise typer.Exit(2)
        _check_input(path, pairs)
    if not output.parent.is_dir():
        typer.echo(f"reward-lens: {output}: there is no folder {output.parent}", err=True)
        raise typer.Exit(2)


def _check_input(path: Path, pairs: str | None) -> None:
    if pairs is not None and path.resolve() == Path(pairs).resolve():
        typer.echo(f"reward-lens: {path} is the file of the pairs; name another output", err=True)
        raise typer.Exit(2)


def say_left_out(left_out: dict[str, str]) -> None:
    """Name pairs that were left out: the first few, and how many in all."""
    if not left_out:
        return
    typer.echo(
        f"{counted(len(left_out), 'pair')} left out (--truncate left or right keeps them):",
        err=True,
    )
    for k, (name, why) in enumerate(left_out.items()):
        if k == 5:
            typer.echo(f"  and {len(left_out) - 5} more", err=True)
            break
        typer.echo(f"  {name}: {why}", err=True)


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with rich, its first :data:`MOST_ROWS` rows; what is left off is said."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    left = len(rows) - MOST_ROWS
    more = f", the first {MOST_ROWS} of {len(rows)} rows" if left > 0 else ""
    table = Table(title=f"{title}{more}", title_justify="left", box=None, pad_edge=False)
    for name in head:
        table.add_column(Text(name))
    for row in rows[:MOST_ROWS]:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
