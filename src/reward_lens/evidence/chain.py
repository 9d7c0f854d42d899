"""Rows chained by hash: each covers the one before it, its place, and all that it holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from reward_lens.errors import EvidenceError
from reward_lens.evidence.hashing import fingerprint
from reward_lens.evidence.records import Entry, entry_of, parents_of, record_of

#: What the first row follows.
START = "0" * 32


class Row(NamedTuple):
    """One row of the table ``records``: sequence number, clock, entry, chain."""

    seq: int
    added: str
    kind: str
    id: str
    request_key: str | None
    instrument: str | None
    version: str | None
    signal: str | None
    data: str | None
    readout: str | None
    content: str
    previous: str
    hash: str

    @property
    def entry(self) -> Entry:
        """The row without its place."""
        return Entry(*self[2:11])

    def computed(self) -> str:
        """What the hash of this row should be."""
        # An absent field and an empty one are told apart.
        held = ("-" if v is None else f"+{v}" for v in self.entry)
        return fingerprint(self.previous, str(self.seq), self.added, *held)


COLUMNS = ", ".join(Row._fields)


def now() -> str:
    """The clock of this machine, UTC, ISO 8601. It is recorded; nothing is decided by it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def rows(connection: sqlite3.Connection) -> Iterator[Row]:
    """All rows in order."""
    for found in connection.execute(f"SELECT {COLUMNS} FROM records ORDER BY seq"):
        yield Row(*found)


def head(connection: sqlite3.Connection) -> tuple[int, str]:
    """Sequence number and hash of the last row; 0 and :data:`START` if there is none."""
    found = connection.execute("SELECT seq, hash FROM records ORDER BY seq DESC LIMIT 1").fetchone()
    return (0, START) if found is None else (int(found[0]), str(found[1]))


def add(connection: sqlite3.Connection, entry: Entry, parents: tuple[str, ...]) -> Row:
    """Write a row behind the last one; the caller holds the write lock and checked the parents."""
    seq, previous = head(connection)
    row = Row(seq + 1, now(), *entry, previous, "")
    row = row._replace(hash=row.computed())
    write(connection, row, parents)
    return row


def write(connection: sqlite3.Connection, row: Row, parents: tuple[str, ...]) -> None:
    """Write a row as it is, with its links to its parents."""
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO records ({COLUMNS}) VALUES ({marks})", row)
    connection.executemany(
        "INSERT INTO links (child, parent) VALUES (?, ?)", [(row.id, p) for p in parents]
    )


def has(connection: sqlite3.Connection, id: str) -> bool:
    """Whether a record is there."""
    found = connection.execute("SELECT 1 FROM records WHERE id = ?", (id,)).fetchone()
    return found is not None


def parents_first(
    connection: sqlite3.Connection, new: dict[str, tuple[Entry, tuple[str, ...]]]
) -> Iterator[tuple[Entry, tuple[str, ...]]]:
    """New records in an order in which each stands behind its parents.

    Raises
    ------
    EvidenceError
        Naming a parent that is neither stored nor among them.
    """
    done: set[str] = set()
    for first in new:
        waiting = [first]
        while waiting:
            entry, parents = new[waiting[-1]]
            missing = [p for p in parents if p not in done and not has(connection, p)]
            for parent in missing:
                if parent not in new:
                    raise EvidenceError(
                        f"{entry.id} was computed from {parent}, which is not in the store: append "
                        "that first, or both by append_all"
                    )
            waiting += missing
            if not missing:
                waiting.pop()
                if entry.id not in done:
                    done.add(entry.id)
                    yield entry, parents


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a store.

    Attributes
    ----------
    seq : int
        Sequence number of the record; 0 for the store as a whole.
    id : str
    what : str
    """

    seq: int
    id: str
    what: str

    def __str__(self) -> str:
        return f"record {self.seq}, {self.id}: {self.what}" if self.seq else self.what


@dataclass(frozen=True)
class Verification:
    """What a check of a whole store found.

    Attributes
    ----------
    records : int
    head : str
        Hash of the last record. Kept outside of the store, it shows later whether records were cut
        off its end or the chain was written anew.
    faults : tuple of Fault
    """

    records: int
    head: str
    faults: tuple[Fault, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults

    def __str__(self) -> str:
        said = f"{self.records} records, head {self.head}"
        if self.ok:
            return f"{said}: every record and the chain verify"
        return "\n".join([f"{said}: {len(self.faults)} faults", *(f"  {f}" for f in self.faults)])


def first_fault(connection: sqlite3.Connection) -> Fault | None:
    """The first broken link, or nothing; hashes only, contents are covered by them."""
    return next(_link_faults(connection), None)


def check_records(connection: sqlite3.Connection, wanted: str | None) -> Verification:
    """Check the links of all rows, their contents against their ids, and whether a head is there.

    Parameters
    ----------
    wanted : str, optional
        Hash of a record that must be in the chain.
    """
    faults = list(_link_faults(connection))
    broken = {f.seq for f in faults}
    links: dict[str, list[str]] = {}
    for child, parent in connection.execute("SELECT child, parent FROM links"):
        links.setdefault(child, []).append(parent)
    n, hashes = 0, {START}
    for row in rows(connection):
        n += 1
        hashes.add(row.hash)
        what = _content_fault(row, sorted(links.get(row.id, [])))
        if what and row.seq not in broken:
            faults.append(Fault(row.seq, row.id, what))
    last = head(connection)[1]
    if wanted is not None and wanted not in hashes:
        what = (
            f"no record has the hash {wanted}: records were cut off the end since it was noted, or "
            "the chain was written anew"
        )
        faults.append(Fault(0, "", what))
    faults.sort(key=lambda f: f.seq or n + 1)
    return Verification(n, last, tuple(faults))


def _link_faults(connection: sqlite3.Connection) -> Iterator[Fault]:
    expected, before, last = 1, START, "which there is none of"
    for row in rows(connection):
        if row.seq != expected:
            gone = f"{expected}" if row.seq == expected + 1 else f"{expected} to {row.seq - 1}"
            yield Fault(row.seq, row.id, f"the records before it are missing: {gone}")
        if row.computed() != row.hash:
            yield Fault(row.seq, row.id, "altered: it does not match its hash")
        elif row.previous != before and row.seq == expected:
            yield Fault(
                row.seq,
                row.id,
                f"does not follow the record before it, {last}, as that stands there now: that one "
                "was altered, or they were put in another order",
            )
        expected, before, last = row.seq + 1, row.hash, row.id


def _content_fault(row: Row, links: list[str]) -> str:
    """What is wrong inside a row whose hash is right: its author wrote it so."""
    try:
        record = record_of(row.kind, row.content)
        entry = entry_of(record)
    except EvidenceError as error:
        return str(error)
    if entry[:-1] != row.entry[:-1]:
        return "its columns do not say what its content says"
    if sorted(parents_of(record)) != links:
        return "its links are not those to the parents that its content names"
    return ""
