"""Progress for whoever watches: bars in a terminal, lines in a notebook or a log.

No other room is needed here, so that every room can tell how far it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic
from typing import Protocol

#: Told how many items each batch finished.
Progress = Callable[[int], None]
#: Seconds between two lines of a stage where there is no terminal, at the least.
EVERY = 20.0


def expect(progress: Progress | None, items: int) -> None:
    """Announce a pass over so many items, to those who want to know how long it takes.

    They have a method ``expect``; a plain callable is told what is done, and no more.
    """
    announce = getattr(progress, "expect", None)
    if announce is not None:
        announce(items)


class Reporter(Protocol):
    """What a long run tells whoever watches."""

    def stage(self, name: str, total: int) -> AbstractContextManager[Progress]:
        """Begin a stage; the context is told how many items each batch finished.

        ``total`` is what the stage is guessed to take, until passes announce themselves to its
        ``expect``, which it need not have.
        """


class Silent:
    """Tells nobody anything."""

    def stage(self, name: str, total: int) -> AbstractContextManager[Progress]:
        """Begin a stage."""
        return nullcontext(lambda done: None)


class Bars:
    """Progress bars for whoever watches a terminal, on standard error.

    Elsewhere a line when a stage begins, and one now and then while it lasts.
    """

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Progress]:
        """Show one stage."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.progress import TimeRemainingColumn as Remaining

        console = Console(stderr=True)
        if not console.is_terminal:
            sys.stderr.write(f"{name} ...\n")
            yield _Lines(name, total)
            return
        columns = (TextColumn("{task.description:>18}"), BarColumn(), MofNCompleteColumn())
        with Bar(*columns, Remaining(), console=console) as bars:
            task = bars.add_task(name, total=total)
            yield _Count(total, lambda done, of: bars.update(task, completed=done, total=of))


class _Count:
    """How many items of a stage are done, and of how many."""

    def __init__(self, guess: int, show: Callable[[int, int], None]) -> None:
        self.done, self._guess, self._announced, self._show = 0, guess, 0, show

    @property
    def total(self) -> int:
        """What passes announced or, where none did, the guess; never less than what is done."""
        return max(self._announced or self._guess, self.done)

    def expect(self, items: int) -> None:
        """A pass over so many items begins."""
        self._announced = (self._announced or self.done) + items
        self._show(self.done, self.total)

    def __call__(self, done: int) -> None:
        self.done += done
        self._show(self.done, self.total)


class _Lines(_Count):
    """Says now and then, in a line, how far a stage is and how long it still takes."""

    def __init__(self, name: str, guess: int) -> None:
        super().__init__(guess, self._line)
        self.name = name
        self.then, self.done_then = monotonic(), 0

    def _line(self, done: int, total: int) -> None:
        now = monotonic()
        since, more = now - self.then, done - self.done_then
        if since < EVERY or not more:
            return
        self.then, self.done_then = now, done
        if done < total:
            # By the pace since the last line: what a store had at the start costs nothing.
            left = _duration((total - done) * since / more)
            sys.stderr.write(f"{self.name}: {done:,} of {total:,}, about {left} left\n")
        elif not self._announced and done > self._guess:  # more than was guessed: no end is known
            sys.stderr.write(f"{self.name}: {done:,} so far\n")


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
