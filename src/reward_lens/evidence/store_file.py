"""The open file of a store: one connection, one thread at a time, whole transactions."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from reward_lens.errors import EvidenceError
from reward_lens.evidence.schema import connect, connect_to_read


class StoreFile:
    """A SQLite file of the store's schema, opened; closes when it is left or let go of."""

    def __init__(
        self, path: str | os.PathLike[str], *, create: bool, read_only: bool = False
    ) -> None:
        self.path = Path(path)
        self.read_only = read_only
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._open: sqlite3.Connection | None = (
            connect_to_read(self.path) if read_only else connect(self.path, create=create)
        )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            # A process that was forked off must not close its parent's connection.
            if self._open is not None and os.getpid() == self._pid:
                self._open.close()
            self._open = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.close()

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time; SQLite's errors as ours."""
        if os.getpid() != self._pid:
            raise EvidenceError(
                f"{self.path}: opened by another process; open it again in this one"
            )
        with self._lock:
            if self._open is None:
                raise EvidenceError(f"{self.path}: the store was closed; open it again")
            try:
                yield self._open
            except sqlite3.Error as error:
                raise EvidenceError(f"{self.path}: {error}") from error

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        """All or nothing; ``IMMEDIATE``, to write, keeps other writers out from the start."""
        if self.read_only and kind == "IMMEDIATE":
            raise EvidenceError(
                f"{self.path}: was opened to read only; to write, open it by EvidenceStore(path)"
            )
        with self._using() as connection:
            connection.execute(f"BEGIN {kind}")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _column(self, select: str, *values: Any) -> list[Any]:
        with self._using() as connection:
            return [row[0] for row in connection.execute(f"SELECT {select}", values).fetchall()]
