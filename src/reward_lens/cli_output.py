"""What the commands say beside their result: outputs refused, texts cut, pairs left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from reward_lens.evidence import Evidence
    from reward_lens.signals import SignalMeta


#: Endings of a page.
PAGES = (".html", ".htm")
#: Rows of a table that are printed.
MOST_ROWS = 20


def counted(n: int, what: str) -> str:
    """A count and its noun: ``1 pair``, ``2 pairs``."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def check_page(output: Path) -> None:
    """Refuse a page under a name that no browser would open as one."""
    if output.suffix.lower() not in PAGES:
        typer.echo(f"reward-lens: {output}: a report is a page; end it in .html", err=True)
        raise typer.Exit(2)


def check_parent(output: Path, pairs: str | None = None) -> None:
    """Refuse an output that cannot be written, or that would replace the pairs it is made from."""
    for path in (output, output.with_suffix(".evidence.jsonl")):
        if path.is_dir() or (pairs is not None and path.resolve() == Path(pairs).resolve()):
            what = "a folder" if path.is_dir() else "the file of the pairs"
            typer.echo(f"reward-lens: {path} is {what}; name another output", err=True)
            raise typer.Exit(2)
    if not output.parent.is_dir():
        typer.echo(f"reward-lens: {output}: there is no folder {output.parent}", err=True)
        raise typer.Exit(2)


def cut_note(scores: Evidence, meta: SignalMeta) -> str:
    """What truncation did, or nothing: it moves the read token and can make sides identical."""
    table = scores.tables["scores"]
    cut = table[["tokens_cut_chosen", "tokens_cut_rejected"]].to_numpy() > 0
    if not cut.any():
        return ""
    n = int(cut.sum())
    ties = int((cut.any(axis=1) & (table["margin"].to_numpy() == 0)).sum())
    where = "the cut part is not seen"
    if meta.reads not in ("first", "mean") and meta.eos != "overwrite":
        where = "a text cut on the right is read mid-text, without its end token"
    were = "was" if n == 1 else "were"
    return (
        f"{counted(n, 'text')} {were} cut to the model's length ({ties} of their pairs now tie); "
        f"{where}"
    )


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
