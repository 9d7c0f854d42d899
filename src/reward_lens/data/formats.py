"""Rows out of files and saved data sets, each with the place it came from.

A reader yields ``(where, row)``; lines are counted from 1, rows of formats without lines from 0.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from reward_lens.data.fields import refuse_repeated
from reward_lens.errors import DataError

Rows = Callable[[Path], Iterator[tuple[str, Any]]]

#: The kinds of file that are read, by the end of their name.
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".csv", ".parquet")
# What a list of messages looks like after a table was written as CSV.
_WRITTEN_MESSAGES = re.compile(r"""\s*\[\s*\{\s*(['"])(role|content)\1\s*:""")


def file_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Rows of a file, by the end of its name.

    Raises
    ------
    DataError
        If the name has another ending; or (while reading) if the file cannot be read, or naming the
        line that is malformed.
    """
    name = path.name.lower()
    if name.endswith((".jsonl", ".jsonl.gz")):
        return _readable(path, _jsonl)
    if name.endswith(".json"):
        return _readable(path, _json)
    if name.endswith(".csv"):
        return _readable(path, _csv)
    if name.endswith(".parquet"):
        return _readable(path, _parquet)
    raise DataError(f"{path}: expected one of {', '.join(SUFFIXES)}; convert the file to one")


def _readable(path: Path, reader: Rows) -> Iterator[tuple[str, Any]]:
    try:
        yield from reader(path)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror or error}); see to its permissions"
        ) from error


def saved_dataset_rows(path: Path, split: str | None) -> Iterator[tuple[str, Any]]:
    """Rows of a folder written by ``datasets``' ``save_to_disk``.

    Raises
    ------
    DataError
        If it is no such folder, or ``split`` is missing, unknown or not called for.
    """
    import datasets

    try:
        found = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path} is a folder, but no data set saved by save_to_disk; give the path of a file"
        ) from error
    if isinstance(found, datasets.DatasetDict):
        if split not in found:
            raise DataError(
                f"{path} holds the splits {list(found)}; choose one with split=..."
                + (f" (got {split!r})" if split is not None else "")
            )
        found = found[split]
    elif split is not None:
        raise DataError(f"{path} holds one data set and no splits; leave split={split!r} out")
    return ((f"{path}, row {n}", row) for n, row in enumerate(found))


def _jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    opened: Any = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opened(path, "rb") as lines:
            yield from jsonl_rows(lines, str(path))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: not a whole gzip file ({error})") from error


def jsonl_rows(lines: Iterable[bytes], source: str) -> Iterator[tuple[str, Any]]:
    """Rows of lines that hold one JSON object each; blank ones are skipped.

    Raises
    ------
    DataError
        While reading, naming the line that is malformed.
    """
    for number, raw in enumerate(lines, 1):
        where = f"{source}, line {number}"
        # decoded line by line, so that an error can name its line
        line = _decode(raw, where, bom=number == 1)
        if line.strip():
            yield where, _object(_parse(line, where), where)


def _decode(raw: bytes, where: str, *, bom: bool = True) -> str:
    try:
        return raw.decode("utf-8-sig" if bom else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise DataError(
            f"{where}: not JSON ({error.msg.removesuffix(' at')} at {place}column {error.colno})"
        ) from error
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _without_repeats(members: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(members)
    if len(row) < len(members):
        refuse_repeated((k for k, _ in members), "a JSON object")
    return row


def _object(row: Any, where: str) -> Any:
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, found a {type(row).__name__}")
    return row


def _json(path: Path) -> Iterator[tuple[str, Any]]:
    text = _decode(path.read_bytes(), str(path))
    if not text.strip():
        raise DataError(f"{path}: there are no rows in it")
    rows = _parse(text, str(path))
    if not isinstance(rows, list):
        raise DataError(
            f"{path}: expected a list of objects, found a {type(rows).__name__}; write "
            f"[{{...}}, {{...}}], or one object a line in a .jsonl file"
        )
    for n, row in enumerate(rows):
        where = f"{path}, row {n}"
        yield where, _object(row, where)


def _csv(path: Path) -> Iterator[tuple[str, Any]]:
    end = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            refuse_repeated(reader.fieldnames or (), f"{path}, line 1")
            end = reader.line_num
            for row in reader:
                where = f"{path}, line {end + 1}"
                end = reader.line_num
                if None in row or None in row.values():
                    raise DataError(f"{where}: the row and the header differ in length")
                for name, value in row.items():
                    if _WRITTEN_MESSAGES.match(value):
                        raise DataError(
                            f"{where}: {name} is a list of messages written as text; CSV cannot "
                            f"hold one: use .jsonl or .parquet"
                        )
                yield where, row
    except UnicodeDecodeError:
        raise DataError(f"{path}, line {_bad_line(path)}: not UTF-8; save it as UTF-8") from None
    except csv.Error as error:
        raise DataError(
            f"{path}, line {end + 1}: not CSV ({error}); a .jsonl file has no such limits"
        ) from error


def _bad_line(path: Path) -> int:
    """The first line that is not UTF-8."""
    for number, raw in enumerate(path.read_bytes().split(b"\n"), 1):
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError:
            return number
    raise AssertionError("the file changed while it was read")


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        table = pq.ParquetFile(path)
        refuse_repeated(table.schema_arrow.names, str(path))
        for batch in table.iter_batches():
            for row in batch.to_pylist():
                yield f"{path}, row {number}", row
                number += 1
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a Parquet file, or a damaged one ({error})") from error
