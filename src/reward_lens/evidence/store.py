"""The evidence store: one SQLite file that only grows, each record chained to the one before."""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Iterable
from typing import Any

import pandas as pd

from reward_lens.errors import EvidenceError
from reward_lens.evidence import chain
from reward_lens.evidence.kinds import TrustLevel
from reward_lens.evidence.queries import Queries
from reward_lens.evidence.record import Evidence
from reward_lens.evidence.records import (
    entry_of,
    parents_of,
    record_of,
)
from reward_lens.evidence.registration import Outcome, Prediction, Registration
from reward_lens.evidence.schema import schema_fault
from reward_lens.evidence.scorecard import Scorecard
from reward_lens.evidence.standing import Standing
from reward_lens.evidence.trust import Ladder


class EvidenceStore(Queries):
    """Measurements, scorecards, registrations and outcomes in one append-only file.

    Parameters
    ----------
    path : str or path
        A file on a local disk (SQLite's write-ahead log does not work over a network).
    create : bool
        Make the file if it is missing.
    read_only : bool
        Write nothing to the file, which has to be there. It may lie where nothing can be written;
        where something can, SQLite keeps two files beside it (``-wal``, ``-shm``), which may stay.

    Raises
    ------
    EvidenceError
        If the file is no store, is damaged, or is of a newer version (to read only: of an older
        one as well); or if it cannot be written and is not opened to read only.

    Notes
    -----
    Several processes and threads may write to one file, each process with a store of its own.
    Evidence that is appended or read is attached to the store, so that ``evidence.trust`` and
    ``evidence.receipt()`` speak by its records as long as it is open.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, create: bool = True, read_only: bool = False
    ) -> None:
        super().__init__(path, create=create, read_only=read_only)
        # Weakly, so that a store that nobody holds is closed at once.
        me: EvidenceStore = weakref.proxy(self)
        self._teller = _Teller(me)
        self._ladder = Ladder(me)
        self._sound: tuple[tuple[int, int], str] | None = None

    def close(self) -> None:
        """Close the file; what was attached to the store is exploratory from then on."""
        super().close()
        self._teller = None

    def __repr__(self) -> str:
        if self._open is None:
            return f"<EvidenceStore {self.path}, closed>"
        return f"<EvidenceStore {self.path}: {len(self)} records, head {self.head}>"

    # Writing.

    def append(self, record: Evidence | Scorecard) -> str:
        """Add a record behind the last one; the same record again is no second one.

        Evidence that it was computed from and has at hand goes in before it.

        Returns
        -------
        str
            Its id.

        Raises
        ------
        EvidenceError
            If a parent is not in the store (named), or the content does not match the id.
        """
        return self.append_all([record])[0]

    def append_all(self, records: Iterable[Evidence | Scorecard]) -> list[str]:
        """Add records in one transaction, all or none; parents may stand behind their children.

        Returns
        -------
        list of str
            Their ids, in the order given.
        """
        given = list(records)
        for record in given:
            if isinstance(record, (Registration, Outcome)):
                raise EvidenceError(
                    "registrations are made by register(prediction), outcomes by "
                    "adjudicate(registration, evidence)"
                )
        along = [e for r in given if isinstance(r, Evidence) for e in r.at_hand]
        self._write([*along, *given])
        return [r.id for r in given]

    def register(self, prediction: Prediction, anchor: str | None = None) -> Registration:
        """Store an expectation; it counts for what is measured and appended after it.

        Parameters
        ----------
        anchor : str, optional
            Something outside that shows when it was made, such as the git commit that holds
            ``prediction.id``. It is shown to the reader, who has to check it.

        Raises
        ------
        EvidenceError
            If it could never count, since the instrument was used on the signal and data that it
            names. One that leaves signal or data open may still be about others.
        """
        registration = Registration(prediction, anchor)
        self._write([registration])
        return registration

    def adjudicate(self, registration: str, evidence: str) -> Outcome:
        """Judge a registered prediction on an evidence, by the records, and keep the outcome.

        Parameters
        ----------
        registration, evidence : str
            Ids.

        Raises
        ------
        EvidenceError
            If the prediction cannot be judged on that evidence; says why.
        """
        stated, found = self.get(registration), self.get(evidence)
        if not isinstance(stated, Registration) or not isinstance(found, Evidence):
            raise EvidenceError(
                f"adjudicate({registration!r}, {evidence!r}): give the id of a registration and "
                "the id of an evidence"
            )
        why = self._ladder.why_not(stated, found)
        if why:
            raise EvidenceError(f"{registration} cannot be judged on {evidence}: {why}")
        outcome = Outcome.of(stated, found)
        self._write([outcome])
        return outcome

    def _write(self, records: list[Any]) -> None:
        entries = [(entry_of(r), parents_of(r)) for r in records]
        with self._transaction("IMMEDIATE") as connection:
            fault = schema_fault(connection)
            if fault:
                raise EvidenceError(f"{self.path}: {fault}; it was tampered with: verify() it")
            checked = self._checked(connection)
            known = {e.id for e, _ in entries if chain.has(connection, e.id)}
            new = {e.id: (e, p) for e, p in entries if e.id not in known}
            for record in records:
                if isinstance(record, Registration) and record.id in new:
                    self._refuse_late(record.prediction)
            for entry, parents in chain.parents_first(connection, new):
                chain.add(connection, entry, parents)
            self._sound = (_state(connection), checked[1]) if checked else None
        for record in records:
            self._attached(record)

    def _refuse_late(self, p: Prediction) -> None:
        """Refuse what the ladder would not count, as long as there is time to predict something."""
        if p.signal is None or p.data is None:
            return
        used = self.places("evidence", instrument=p.instrument, signal=p.signal, data=p.data,
                           readout=p.readout)  # fmt: skip
        if used:
            other = "" if p.readout else ", or name a readout that it has not read"
            raise EvidenceError(
                f"{p.id} could never count: {p.instrument} had been used on this model and data "
                f"before ({used[0].id}, record {used[0].seq}); predict about pairs or a signal "
                f"that it has not read{other}"
            )

    def restore(self, rows: Iterable[chain.Row], head: str | None = None) -> None:
        """Fill an empty store with the rows of another, chain and all.

        Raises
        ------
        EvidenceError
            If the store is not empty, or the rows do not verify; then nothing was written.
        """
        with self._transaction("IMMEDIATE") as connection:
            if chain.head(connection)[0]:
                raise EvidenceError(f"{self.path}: is not empty; restore into a new store")
            for row in rows:
                chain.write(connection, row, parents_of(record_of(row.kind, row.content)))
            found = chain.check_records(connection, head)
            if not found.ok:
                raise EvidenceError(f"the records do not verify: {found}")

    # Judging.

    def to_dataframe(self) -> pd.DataFrame:
        """What :meth:`index` gives, and ``trust``: the rung, empty where it is no evidence."""
        table = self.index()
        trust = [
            self.trust(i).name.lower() if kind == "evidence" else ""
            for i, kind in zip(table["id"], table["kind"], strict=True)
        ]
        return table.assign(trust=trust)

    def verify(self, head: str | None = None) -> chain.Verification:
        """Compute every id and the whole chain anew.

        Parameters
        ----------
        head : str, optional
            A head noted earlier, which must still be in the chain: without one a cut tail and a
            chain written anew cannot be told from an honest store.
        """
        with self._transaction("DEFERRED") as connection:  # one moment, whoever writes meanwhile
            found = chain.check_records(connection, head)
            schema = schema_fault(connection)
        if schema:
            found = chain.Verification(
                found.records, found.head, (chain.Fault(0, "", schema), *found.faults)
            )
        return found

    def trust(self, id: str) -> TrustLevel:
        """The rung that the records support for an evidence.

        Raises
        ------
        EvidenceError
            If there is no such evidence.
        """
        carded = self._column(
            "1 FROM records AS card JOIN records AS ours USING (instrument, signal, readout) "
            "WHERE ours.id = ? AND ours.kind = 'evidence' AND card.kind = 'scorecard' LIMIT 1",
            id,
        )
        if not carded and self.kind(id) == "evidence":
            return TrustLevel.EXPLORATORY  # known without reading its content
        return self.standing(id).level

    def standing(self, id: str) -> Standing:
        """The rung, the reasons for it, and what it licenses the reader to say.

        Raises
        ------
        EvidenceError
            If there is no such evidence.
        """
        fault = self.fault()
        if fault:
            self.seq(id)
            why = f"the store does not verify, so that nothing in it can be relied on: {fault}"
            return Standing(TrustLevel.EXPLORATORY, (why,))
        evidence = self.get(id)
        if not isinstance(evidence, Evidence):
            raise EvidenceError(f"{id} is no evidence, and only evidence has a rung")
        return self._ladder.standing(evidence)

    def fault(self) -> str:
        """What is wrong with schema or chain, empty if nothing; remembered until somebody writes.

        It reads hashes only; :meth:`verify` reads the contents too.
        """
        with self._transaction("DEFERRED") as connection:
            checked = self._checked(connection)
            if checked is None:
                link = chain.first_fault(connection)
                fault = schema_fault(connection) or (str(link) if link else "")
                checked = self._sound = (_state(connection), fault)
            return checked[1]

    def _checked(self, connection: sqlite3.Connection) -> tuple[tuple[int, int], str] | None:
        """The last check, if nobody has written since."""
        known = self._sound
        return known if known is not None and known[0] == _state(connection) else None


class _Teller:
    """Speaks of trust for one open store; it lives as long as the store is open."""

    def __init__(self, store: EvidenceStore) -> None:
        self._store = store

    def trust(self, id: str) -> TrustLevel:
        return self._store.trust(id)

    def standing(self, id: str) -> Standing:
        return self._store.standing(id)


def _state(connection: sqlite3.Connection) -> tuple[int, int]:
    """Changes when another connection writes, and when this one does."""
    version = connection.execute("PRAGMA data_version").fetchone()[0]
    return int(version), connection.total_changes
