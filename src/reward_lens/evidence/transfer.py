"""Stores as JSON lines and Parquet, and back.

A whole store goes out with its chain, one row a record. It comes back with the same chain into an
empty store. Into a store that holds something only evidence can be taken over: a scorecard, a
registration or an outcome is worth what its place in its own chain is worth.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reward_lens.errors import EvidenceError
from reward_lens.evidence import chain
from reward_lens.evidence.record import Evidence
from reward_lens.evidence.records import record_of
from reward_lens.evidence.store import EvidenceStore

FORMATS = (".jsonl", ".parquet")
#: Columns that every row has.
_NEEDED = ("seq", "added", "kind", "id", "content", "previous", "hash")


def export_records(
    store: EvidenceStore, path: str | os.PathLike[str], *, evidence_only: bool = False
) -> int:
    """Write a store to a file, which appears whole or not at all.

    Parameters
    ----------
    path : path
        ``.jsonl`` or ``.parquet``. Parquet has one row a record; ``content`` is its JSON text.
    evidence_only : bool
        Only the evidence; as JSON lines it is what :func:`~reward_lens.evidence.read_jsonl` reads.

    Returns
    -------
    int
        Records written.

    Raises
    ------
    EvidenceError
        If the file's name ends in neither.
    """
    target = _checked(path)
    rows = [r for r in store.rows() if r.kind == "evidence" or not evidence_only]
    with _whole(target) as partial:
        if target.suffix == ".parquet":
            _write_parquet(partial, rows)
        else:
            _write_lines(partial, rows, evidence_only=evidence_only)
    return len(rows)


def import_records(
    store: EvidenceStore, path: str | os.PathLike[str], *, head: str | None = None
) -> int:
    """Take over what a file holds; all of it or, where something is wrong, nothing.

    Parameters
    ----------
    path : path
        A file of :func:`export_records` or :func:`~reward_lens.evidence.write_jsonl`.
    head : str, optional
        A head noted from the store that was exported, which must be in the file's chain.

    Returns
    -------
    int
        Records that were added.

    Raises
    ------
    EvidenceError
        If a row is malformed or altered (named), the chain does not verify, a parent is missing, or
        the file holds more than evidence and the store is not empty.
    """
    source = _checked(path)
    found = _read_parquet(source) if source.suffix == ".parquet" else _read_lines(source)
    before = len(store)
    rows = [r for r in found if isinstance(r, chain.Row)]
    evidence = [r for r in found if isinstance(r, Evidence)]
    if rows and evidence:
        raise EvidenceError(f"{source}: some lines have a place in a chain and some do not")
    if head is not None and not rows:
        raise EvidenceError(f"{source}: holds evidence without a chain, so that no head is in it")
    whole = [r.seq for r in rows] == list(range(1, len(rows) + 1))
    if rows and not before and whole:
        store.restore(rows, head)
    else:
        evidence += _evidence_of(source, rows, head)
        store.append_all(evidence)
    return len(store) - before


def _evidence_of(source: Path, rows: list[chain.Row], head: str | None) -> Iterator[Evidence]:
    others = [r for r in rows if r.kind != "evidence"]
    if others:
        raise EvidenceError(
            f"{source}: holds {len(others)} records that are no evidence (the first: "
            f"{others[0].kind} {others[0].id}); these count only in their own chain, so import the "
            "whole file into a new store, or export its evidence alone"
        )
    if head is not None and head not in {r.hash for r in rows}:
        raise EvidenceError(f"{source}: no record has the hash {head}")
    for row in rows:
        record = record_of(row.kind, row.content)
        if not isinstance(record, Evidence) or record.id != row.id:
            raise EvidenceError(f"{source}: under {row.id} stands {record.id}: it was altered")
        yield record


def _checked(path: str | os.PathLike[str]) -> Path:
    found = Path(path)
    if found.suffix not in FORMATS:
        raise EvidenceError(f"{found}: end it in {' or '.join(FORMATS)}")
    return found


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _write_lines(path: Path, rows: Iterable[chain.Row], *, evidence_only: bool) -> None:
    with path.open("w", encoding="ascii", newline="\n") as out:
        for row in rows:
            # The content as text, so that not a byte of what is hashed can change on the way.
            out.write(row.content if evidence_only else json.dumps(row._asdict()))
            out.write("\n")


def _read_lines(path: Path) -> list[chain.Row | Evidence]:
    found: list[chain.Row | Evidence] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                if isinstance(record, dict) and "content" in record:
                    found.append(_row(record))
                else:
                    found.append(Evidence.from_dict(record))
            except (EvidenceError, ValueError) as error:
                raise EvidenceError(f"{path}, line {number}: {error}") from error
    return found


def _row(record: dict[str, Any]) -> chain.Row:
    if set(record) != set(chain.Row._fields):
        missing = sorted(set(chain.Row._fields) - set(record))
        unknown = sorted(set(record) - set(chain.Row._fields))
        raise EvidenceError(f"malformed row: missing {missing}, unknown {unknown}")
    for name, value in record.items():
        absent = value is None and name not in _NEEDED
        if not absent and not isinstance(value, int if name == "seq" else str):
            raise EvidenceError(f"malformed row: {name}={value!r}")
    return chain.Row(**record)


def _write_parquet(path: Path, rows: list[chain.Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(c, pa.int64() if c == "seq" else pa.large_string()) for c in
                        chain.Row._fields])  # fmt: skip
    pq.write_table(pa.Table.from_pylist([r._asdict() for r in rows], schema=schema), path)


def _read_parquet(path: Path) -> list[chain.Row | Evidence]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except pa.ArrowInvalid as error:
        raise EvidenceError(f"{path}: no Parquet file ({error})") from error
    found: list[chain.Row | Evidence] = []
    for number, record in enumerate(rows, 1):
        try:
            found.append(_row(record))
        except EvidenceError as error:
            raise EvidenceError(f"{path}, row {number}: {error}") from error
    return found
