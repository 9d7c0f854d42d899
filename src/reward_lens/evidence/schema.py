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
        If the file is missing and may not be made, is no store, is damaged, is of a newer
        version, or cannot be written.
    """
    if not create and not path.is_file():
        raise EvidenceError(f"{path}: there is no such file")
    try:
        return _opened(path, "mode=rwc" if create else "mode=rw", _prepare)
    except sqlite3.Error as error:
        said = _unusable(path, error)
        if _is(error, sqlite3.SQLITE_READONLY):
            said += "; to read it only, open it by EvidenceStore(path, read_only=True)"
        raise EvidenceError(said) from error


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a store without writing to it, also where nothing can be written.

    Raises
    ------
    EvidenceError
        If the file is missing, is no store, is damaged, is of another version, or has records
        beside it in a write-ahead log that cannot be read where it lies.
    """
    if not path.is_file():
        raise EvidenceError(f"{path}: there is no such file")
    try:
        return _opened(path, "mode=ro", _prepare_to_read)
    except sqlite3.Error as error:
        # SQLite asks for a file of its own beside the store, for the sake of writers. Where it
        # cannot make one there are none, and the store holds still.
        if not _is(error, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise EvidenceError(_unusable(path, error)) from error
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise EvidenceError(
            f"{path}: {log.name} beside it may hold its last records, and cannot be read in a "
            "folder that cannot be written; copy both files to one that can"
        )
    try:
        return _opened(path, "mode=ro&immutable=1", _prepare_to_read)
    except sqlite3.Error as error:
        raise EvidenceError(_unusable(path, error)) from error


def _opened(
    path: Path, options: str, prepare: Callable[[sqlite3.Connection, Path], None]
) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?{options}", uri=True, timeout=BUSY_SECONDS,
        isolation_level=None, check_same_thread=False,
    )  # fmt: skip
    try:
        prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _unusable(path: Path, error: sqlite3.Error) -> str:
    if _is(error, sqlite3.SQLITE_CANTOPEN):
        return f"{path}: cannot be opened ({error})"
    return f"{path}: cannot be used as an evidence store: {error}"


def _is(error: sqlite3.Error, *codes: int) -> bool:
    """Whether SQLite's code is one of these, whatever it says in detail (the higher bits)."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in codes


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
    _refuse_damage(connection, path)
    _write_ahead(connection)


def _prepare_to_read(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA query_only = ON")
    if not _settled(connection):
        if not _tables_of_ours(connection, path):
            raise EvidenceError(f"{path}: is empty, no evidence store")
        raise EvidenceError(
            f"{path}: written by an old reward-lens (store version "
            f"{_pragma(connection, 'user_version')}, this one reads {VERSION}), and reading does "
            "not bring it up; open it once by EvidenceStore(path), where it can be written"
        )
    _refuse_damage(connection, path)


def _refuse_damage(connection: sqlite3.Connection, path: Path) -> None:
    damage = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise EvidenceError(f"{path}: the file is damaged ({damage}); restore it from a copy")


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


def _tables_of_ours(connection: sqlite3.Connection, path: Path) -> set[str]:
    """Names of the tables; refuses a database of something else, and one of a later version."""
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
    return tables


def _make_or_migrate(connection: sqlite3.Connection, path: Path) -> None:
    if _tables_of_ours(connection, path):
        for old in range(_pragma(connection, "user_version"), VERSION):
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
    """All that is missing of the tables and triggers, or was changed; empty if nothing."""
    there = {s for (s,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")}
    named = [repr(s.split()[2]) for s in (*_TRIGGERS, *_TABLES) if s not in there]
    if not named:
        return ""
    keep, are = ("keeps", "is") if len(named) == 1 else ("keep", "are")
    return (
        f"the store's own {', '.join(named)}, which {keep} it append-only, {are} missing or changed"
    )
