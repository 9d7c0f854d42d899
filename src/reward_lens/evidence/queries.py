"""What can be read from a store: one record, records that fit, what rests on what."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from reward_lens.errors import EvidenceError
from reward_lens.evidence import chain
from reward_lens.evidence.conditions import PLANTED
from reward_lens.evidence.record import Evidence, Store
from reward_lens.evidence.records import Record, column_text, record_of
from reward_lens.evidence.store_file import StoreFile
from reward_lens.evidence.trust import Placed

_COLUMNS = "seq, added, kind, id, request_key, instrument, version, signal, data, readout, hash"


class Queries(StoreFile):
    """The reading half of an :class:`~reward_lens.evidence.EvidenceStore`."""

    #: What evidence that is handed out asks about trust; none where the store is closed.
    _teller: Store | None = None

    def _attached(self, record: Any) -> Any:
        if isinstance(record, Evidence) and self._teller is not None:
            record._attach(self._teller)
        return record

    def get(self, id: str) -> Record:
        """One record of any kind by its id; evidence is attached to this store.

        Raises
        ------
        EvidenceError
            If there is none, or its content does not match its id.
        """
        with self._using() as connection:
            found = connection.execute(
                "SELECT kind, content FROM records WHERE id = ?", (id,)
            ).fetchone()
        if found is None:
            raise EvidenceError(f"{self.path}: there is no record {id}")
        record: Record = record_of(*found)
        if record.id != id:
            raise EvidenceError(f"{self.path}: under {id} stands {record.id}; verify() the store")
        self._attached(record)
        return record

    def find(
        self,
        *,
        instrument: str | None = None,
        signal: str | None = None,
        data: str | None = None,
        readout: str | None = None,
        request_key: str | None = None,
        since: int | datetime | None = None,
    ) -> list[Evidence]:
        """Evidence that fits everything given, in the order of the chain.

        Parameters
        ----------
        since : int or datetime
            Only what came after this sequence number, or from this time on by the clocks of those
            who wrote (give a time zone).
        """
        where = _equal(kind="evidence", instrument=instrument, signal=signal, data=data,
                       readout=readout, request_key=request_key)  # fmt: skip
        if isinstance(since, datetime):
            if since.tzinfo is None:
                raise EvidenceError(f"since={since}: give it a time zone")
            utc = since.astimezone(UTC)
            where["added >= ?"] = utc.isoformat(timespec="microseconds")
        elif since is not None:
            where["seq > ?"] = since
        ids = self._column(f"id FROM records WHERE {' AND '.join(where)} ORDER BY seq",
                           *where.values())  # fmt: skip
        return [e for i in ids if isinstance(e := self.get(i), Evidence)]

    def by_request(self, key: str) -> list[Evidence]:
        """Evidence of one request, newest first: what a run that is resumed need not repeat."""
        return self.find(request_key=key)[::-1]

    def parents(self, id: str) -> list[str]:
        """Ids of the records that one was computed from, in the order of the chain."""
        self.seq(id)
        return self._column(
            "parent FROM links JOIN records ON id = parent WHERE child = ? ORDER BY seq", id
        )

    def ancestors(self, id: str) -> list[str]:
        """Ids of all records that one rests on, in the order of the chain."""
        self.seq(id)
        return self._column(
            "id FROM records WHERE id IN (WITH RECURSIVE up (id) AS ("
            "SELECT parent FROM links WHERE child = ? "
            "UNION SELECT parent FROM links JOIN up ON child = up.id) SELECT id FROM up) "
            "ORDER BY seq",
            id,
        )

    def seq(self, id: str) -> int:
        """Place of a record in the chain, from 1.

        Raises
        ------
        EvidenceError
            If there is none of that id.
        """
        return int(self._of(id, "seq"))

    def kind(self, id: str) -> str:
        """``evidence``, ``scorecard``, ``registration`` or ``outcome``."""
        return str(self._of(id, "kind"))

    def _of(self, id: str, column: str) -> Any:
        found = self._column(f"{column} FROM records WHERE id = ?", id)
        if not found:
            raise EvidenceError(f"{self.path}: there is no record {id}")
        return found[0]

    def places(
        self,
        kind: str,
        *,
        instrument: str | None = None,
        signal: str | None = None,
        data: str | None = None,
        readout: str | None = None,
    ) -> list[Placed]:
        """Sequence numbers and ids of the records of a kind, in the order of the chain."""
        where = _equal(kind=kind, instrument=instrument, signal=signal, data=data, readout=readout)
        with self._using() as connection:
            found = connection.execute(
                f"SELECT seq, id FROM records WHERE {' AND '.join(where)} ORDER BY seq",
                list(where.values()),
            ).fetchall()
        return [Placed(*row) for row in found]

    def beginning(self, text: str) -> list[str]:
        """Ids that begin with a text, in the order of the chain."""
        return self._column(
            "id FROM records WHERE substr(id, 1, ?) = ? ORDER BY seq", len(text), text
        )

    def index(self) -> pd.DataFrame:
        """One row a record, by ``seq``, without the contents, and whether it is of an organism.

        Returns
        -------
        DataFrame
            ``planted`` (bool) is true of evidence that a scorecard's trial was read from, and of
            all that was measured with a rule planted in the model.
        """
        with self._using() as connection:
            found = connection.execute(f"SELECT {_COLUMNS} FROM records ORDER BY seq").fetchall()
        table = pd.DataFrame(found, columns=_COLUMNS.split(", ")).set_index("seq")
        return table.assign(planted=table["id"].isin(self._planted()))

    def _planted(self) -> list[str]:
        return self._column(
            "id FROM records WHERE kind = 'evidence' AND (id IN (SELECT parent FROM links "
            "JOIN records AS card ON card.id = child WHERE card.kind = 'scorecard') "
            # An altered content may be no JSON any more; it is for verify to say so.
            "OR EXISTS (SELECT 1 FROM json_each(CASE WHEN json_valid(content) THEN content "
            "ELSE '{}' END, '$.subject.interventions') WHERE substr(value, 1, ?) = ?))",
            len(PLANTED), PLANTED,
        )  # fmt: skip

    def __len__(self) -> int:
        return int(self._column("count(*) FROM records")[0])

    def __iter__(self) -> Iterator[Record]:
        """All records in order, one in memory at a time; those that come meanwhile included."""
        last = 0
        while found := self._column("seq FROM records WHERE seq > ? ORDER BY seq LIMIT 1", last):
            last = int(found[0])
            yield self.get(self._column("id FROM records WHERE seq = ?", last)[0])

    def __contains__(self, id: object) -> bool:
        return bool(self._column("1 FROM records WHERE id = ?", id))

    @property
    def head(self) -> str:
        """Hash of the last record; noted elsewhere, it lets ``verify(head=)`` find a cut tail."""
        with self._using() as connection:
            return chain.head(connection)[1]

    def rows(self) -> list[chain.Row]:
        """All rows as they are stored, for export."""
        with self._using() as connection:
            return list(chain.rows(connection))


def _equal(**wanted: str | None) -> dict[str, Any]:
    """Conditions on columns, and the values to fill in; where nothing is wanted, none."""
    return {f"{k} = ?": column_text(v) for k, v in wanted.items() if v is not None}
