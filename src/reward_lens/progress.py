"""Progress for whoever watches: bars in a terminal, lines in a notebook or a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

#: Told how many items each batch finished.
Told = Callable[[int], None]


class Reporter(Protocol):
    """What a long run tells whoever watches."""

    def stage(self, name: str, total: int) -> AbstractContextManager[Told]:
        """Begin a stage of ``total`` forwards; the context is told how many each batch finished."""


class Silent:
    """Tells nobody anything."""

    def stage(self, name: str, total: int) -> AbstractContextManager[Told]:
        """Begin a stage."""
        return nullcontext(lambda done: None)


class Bars:
    """Progress bars for whoever watches a terminal, on standard error; lines elsewhere."""

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Told]:
        """Show one stage."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        console = Console(stderr=True)
        if not console.is_terminal:
            sys.stderr.write(f"{name} ({total})\n")
            yield lambda done: None
            return
        columns = (TextColumn("{task.description:>18}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, Remaining(), console=console) as bars:
            task = bars.add_task(name, total=total)

            def advance(done: int) -> None:
                bars.advance(task, done)
                # Some instruments go over the items more than once.
                bars.update(task, total=max(total, bars.tasks[task].completed))

            yield advance


def watched() -> Reporter:
    """:class:`Bars` where somebody watches, in a terminal or a notebook; else :class:`Silent`."""
    notebook = "ipykernel" in sys.modules
    terminal = sys.stderr is not None and sys.stderr.isatty()
    return Bars() if notebook or terminal else Silent()
