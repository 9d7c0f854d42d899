"""The file of a store: its tables, what keeps them append-only, and how old files are brought up.

Versions
--------
0
    One table ``evidence (id, content)`` without a chain.
1
    Tables ``records`` and ``links``, append-only by triggers, chained by hash.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from reward_lens.errors import EvidenceError
from reward_lens.evidence.chain import START, add
from reward_lens.evidence.records import entry_of, parents_of, record_of

VERSION = 1
#: Marks the file as ours ("RwLs"), in the header that SQLite keeps for it.
APPLICATION = 0x52774C73
#: Seconds that a process waits for the others.
BUSY_SECONDS = 60.0

_TABLES = (
    """CREATE TABLE records (
    seq INTEGER PRIMARY KEY,
    added TEXT NOT NULL,
    kind TEXT NOT NULL,
    id TEXT NOT NULL UNIQUE,
    request_key TEXT,
    instrument TEXT,
    version TEXT,
    signal TEXT,
    data TEXT,
    readout TEXT,
    content TEXT NOT NULL,
    previous TEXT NOT NULL UNIQUE,
    hash TEXT NOT NULL UNIQUE
)""",
    """CREATE TABLE links (
    child TEXT NOT NULL REFERENCES records (id) DEFERRABLE INITIALLY DEFERRED,
    parent TEXT NOT NULL REFERENCES records (id) DEFERRABLE INITIALLY DEFERRED,
    PRIMARY KEY (child, parent)
) WITHOUT ROWID""",
    "CREATE INDEX records_by_request ON records (request_key)",
    "CREATE INDEX records_by_subject ON records (kind, instrument, signal, data, readout)",
    "CREATE INDEX links_by_parent ON links (parent)",
)

# REPLACE would delete rows without waking the triggers on DELETE, so that inserting is guarded too.
_TRIGGERS = (
    *(
        f"CREATE TRIGGER {table}_no_{what.lower()} BEFORE {what} ON {table} BEGIN "
        f"SELECT RAISE(ABORT, 'the store is append-only: {table} cannot be changed'); END"
        for table in ("records", "links")
        for what in ("UPDATE", "DELETE")
    ),
    "CREATE TRIGGER records_only_behind BEFORE INSERT ON records "
    "WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM records) "
    "OR NEW.id IN (SELECT id FROM records) "
    "OR NEW.previous IS NOT coalesce("
    f"(SELECT hash FROM records ORDER BY seq DESC LIMIT 1), '{START}') "
    "BEGIN SELECT RAISE(ABORT, 'the store is append-only: a record goes behind the last one'); END",
    "CREATE TRIGGER links_only_new BEFORE INSERT ON links "
    "WHEN EXISTS (SELECT 1 FROM links WHERE child = NEW.child AND parent = NEW.parent) "
    "BEGIN SELECT RAISE(ABORT, 'the store is append-only: the link is there'); END",
)


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open a store, make it if it is new, and bring an old one up to :data:`VERSION`.

    Raises
    ------
    EvidenceError
        If the file is missing and may not be made, is no store, is damaged, or is of a newer
        version.
    """
    mode = "rwc" if create else "rw"
    if not create and not path.is_file():
        raise EvidenceError(f"{path}: there is no such file")
    try:
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=BUSY_SECONDS,
            isolation_level=None, check_same_thread=False,
        )  # fmt: skip
    except sqlite3.Error as error:
        raise EvidenceError(f"{path}: cannot be opened ({error})") from error
    try:
        _prepare(connection, path)
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.DatabaseError):
            raise EvidenceError(f"{path}: cannot be used as an evidence store: {error}") from error
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")
    if not _settled(connection):
        connection.execute("BEGIN IMMEDIATE")
        try:
            _make_or_migrate(connection, path)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise EvidenceError(f"{path}: the file is damaged ({damage}); restore it from a copy")
    _write_ahead(connection)


def _settled(connection: sqlite3.Connection) -> bool:
    """Whether the file is ours and of this version."""
    return (_pragma(connection, "application_id"), _pragma(connection, "user_version")) == (
        APPLICATION,
        VERSION,
    )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Readers and one writer at a time. SQLite does not wait for others here, so we do."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def _make_or_migrate(connection: sqlite3.Connection, path: Path) -> None:
    tables = {n for (n,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    ours = _pragma(connection, "application_id") == APPLICATION
    version = _pragma(connection, "user_version")
    if not ours and tables and not (version == 0 and tables == {"evidence"}):
        raise EvidenceError(f"{path}: a database of something else; its tables: {sorted(tables)}")
    if version > VERSION:
        raise EvidenceError(
            f"{path}: written by a newer reward-lens (store version {version}, this one knows "
            f"{VERSION}); update reward-lens"
        )
    if tables:
        for old in range(version, VERSION):
            MIGRATIONS[old](connection)
    else:
        _create(connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _create(connection: sqlite3.Connection) -> None:
    for statement in (*_TABLES, *_TRIGGERS):
        connection.execute(statement)


def _from_0(connection: sqlite3.Connection) -> None:
    """Chain what a version 0 file held, in the order in which it was written."""
    old = connection.execute("SELECT id, content FROM evidence ORDER BY rowid").fetchall()
    _create(connection)
    for id, content in old:
        record = record_of("evidence", content)
        if record.id != id:
            raise EvidenceError(f"the row {id} of the old file holds {record.id}: it was altered")
        add(connection, entry_of(record), parents_of(record))
    connection.execute("DROP TABLE evidence")


#: Version -> what brings a file from there to the next one.
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {0: _from_0}


def schema_fault(connection: sqlite3.Connection) -> str:
    """What is missing of the tables and triggers, or was changed; empty if nothing."""
    there = {s for (s,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")}
    for statement in (*_TRIGGERS, *_TABLES):
        if statement not in there:
            name = statement.split()[2]
            return f"the store's own {name!r}, which keeps it append-only, is missing or changed"
    return ""
