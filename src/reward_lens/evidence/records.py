"""The kinds of record that a store keeps, and how each stands in a row."""

from __future__ import annotations

import json
from typing import NamedTuple

from reward_lens.errors import EvidenceError
from reward_lens.evidence.encoding import array_to_digest
from reward_lens.evidence.hashing import canonical, fingerprint
from reward_lens.evidence.record import Evidence
from reward_lens.evidence.registration import Outcome, Registration
from reward_lens.evidence.scorecard import Scorecard

Record = Evidence | Scorecard | Registration | Outcome

KINDS: dict[str, type[Record]] = {
    "evidence": Evidence,
    "scorecard": Scorecard,
    "registration": Registration,
    "outcome": Outcome,
}


class Entry(NamedTuple):
    """A record as a row: what it is found by, and its content as JSON text."""

    kind: str
    id: str
    request_key: str | None
    instrument: str | None
    version: str | None
    signal: str | None
    data: str | None
    readout: str | None
    content: str


def entry_of(record: Record) -> Entry:
    """The row of a record; its id is computed anew.

    Raises
    ------
    EvidenceError
        If it is of no known kind, of a subclass, or its content does not match its id.
    """
    kind = next((k for k, t in KINDS.items() if type(record) is t), None)
    if kind is None:
        raise EvidenceError(
            f"a store keeps {', '.join(KINDS)} records, not {type(record).__name__}: what a "
            "subclass says of itself could not be read back"
        )
    key = instrument = version = signal = data = readout = None
    if isinstance(record, Evidence):
        _refuse_altered(record)
        s, key, version = record.subject, record.request_key, record.version
        instrument, signal, data, readout = record.instrument, s.signal, s.data, s.readout
    elif isinstance(record, Scorecard):
        instrument, version = record.instrument, record.version
        signal, readout = record.signal, record.readout
    elif isinstance(record, Registration):
        p = record.prediction
        instrument, signal, data, readout = p.instrument, p.signal, p.data, p.readout
    content = json.dumps(record.to_dict(), allow_nan=False)
    return Entry(
        kind,
        record.id,
        key,
        column_text(instrument),
        column_text(version),
        column_text(signal),
        column_text(data),
        column_text(readout),
        content,
    )


def column_text(value: str | None) -> str | None:
    """A text as a column can hold it: half a surrogate pair, which JSON can escape, is escaped."""
    return None if value is None else value.encode("utf-8", "backslashreplace").decode("utf-8")


def _refuse_altered(evidence: Evidence) -> None:
    """The id is computed once and kept; a field that was changed by force since then shows here."""
    found = "ev-" + fingerprint(canonical(evidence._record(array_to_digest)))
    if found != evidence.id:
        raise EvidenceError(
            f"the evidence says it is {evidence.id}, its content is {found}: it was altered after "
            "it was measured"
        )


def record_of(kind: str, content: str) -> Record:
    """Undo :func:`entry_of`.

    Raises
    ------
    EvidenceError
        If the content is malformed or does not match its id.
    """
    if kind not in KINDS:
        raise EvidenceError(f"a record of the kind {kind!r}: known are {', '.join(KINDS)}")
    try:
        return KINDS[kind].from_dict(json.loads(content))
    except EvidenceError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EvidenceError(f"malformed {kind} record: {error!r}") from error


def parents_of(record: Record) -> tuple[str, ...]:
    """Ids of the records it was computed from, each once."""
    given = record.provenance.parents if isinstance(record, Evidence) else record.parents
    return tuple(dict.fromkeys(given))
