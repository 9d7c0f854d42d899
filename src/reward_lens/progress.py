"""Progress for whoever watches: bars in a terminal, lines in a notebook or a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic
from typing import Protocol

#: Told how many items each batch finished.
Told = Callable[[int], None]
#: Seconds between two lines of a stage where there is no terminal, at the least.
EVERY = 20.0


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
    """Progress bars for whoever watches a terminal, on standard error.

    Elsewhere a line when a stage begins, and one now and then while it lasts.
    """

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Told]:
        """Show one stage."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        console = Console(stderr=True)
        if not console.is_terminal:
            sys.stderr.write(f"{name} ({total})\n")
            yield _Lines(name, total)
            return
        columns = (TextColumn("{task.description:>18}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, Remaining(), console=console) as bars:
            task = bars.add_task(name, total=total)

            def advance(done: int) -> None:
                bars.advance(task, done)
                # Some instruments go over the items more than once.
                bars.update(task, total=max(total, bars.tasks[task].completed))

            yield advance


class _Lines:
    """Says now and then, in a line, how far a stage is and how long it still takes."""

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total = name, total
        self.done = self.done_then = 0
        self.then = monotonic()

    def __call__(self, done: int) -> None:
        self.done += done
        now = monotonic()
        since, more = now - self.then, self.done - self.done_then
        # Some instruments go over the items more than once: then nobody knows how many are left.
        if since < EVERY or not more or self.done >= self.total:
            return
        # By the pace since the last line: what is taken from a store at the start costs nothing.
        left = _duration((self.total - self.done) * since / more)
        sys.stderr.write(f"{self.name}: {self.done} of {self.total}, about {left} left\n")
        self.then, self.done_then = now, self.done


def _duration(seconds: float) -> str:
    """Seconds, minutes or hours, as long as there are at least one and a half of them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def watched() -> Reporter:
    """:class:`Bars` where somebody watches, in a terminal or a notebook; else :class:`Silent`."""
    notebook = "ipykernel" in sys.modules
    terminal = sys.stderr is not None and sys.stderr.isatty()
    return Bars() if notebook or terminal else Silent()
