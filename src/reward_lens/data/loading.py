"""Pairs from files, saved or cached data sets, and tables."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reward_lens.data.pairs import Pair, Pairs
from reward_lens.data.rows import Columns, as_pairs, pairs_from_row
from reward_lens.errors import DataError, DownloadRefused

_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".csv", ".parquet")


def load_pairs(
    source: Any,
    *,
    limit: int | None = None,
    prompt: str | None = None,
    chosen: str | None = None,
    rejected: str | None = None,
    subset: str | None = None,
    id: str | None = None,
    lineage: str | None = None,
    transcripts: bool | str = "auto",
    split: str = "train",
    revision: str | None = None,
    allow_download: bool = False,
) -> Pairs:
    r"""Read preference pairs.

    Parameters
    ----------
    source : path, DataFrame, datasets.Dataset, list, or hub id
        A ``.jsonl`` (also ``.gz``), ``.json``, ``.csv`` or ``.parquet`` file; a folder written by
        ``Dataset.save_to_disk``; an id of a data set in the local cache.
    limit : int, optional
        Only the first ``limit`` rows.
    prompt, chosen, rejected, subset, id, lineage : str, optional
        Column names, where they are not the usual ones.
    transcripts : {"auto", True, False}
        Texts of ``\n\nHuman:`` and ``\n\nAssistant:`` turns are split into messages where they
        hold their own prompt (``"auto"``), also in a prompt column (``True``), or never.
    split, revision : str
        For hub ids.
    allow_download : bool
        Let a hub id that is not cached be fetched.

    Returns
    -------
    Pairs

    Raises
    ------
    DataError
        Naming file, line and field of what is wrong.
    DownloadRefused
        For a hub id that is not cached.
    """
    columns = Columns(prompt, chosen, rejected, subset, id, lineage, None, transcripts)
    if limit is not None and limit < 1:
        raise DataError(f"limit={limit}: ask for at least one row")
    if not isinstance(source, (str, os.PathLike)):
        pairs = as_pairs(source, columns)
        return pairs if limit is None else pairs[:limit]
    path = Path(source)
    if path.is_dir():
        rows = _saved_dataset(path)
    elif path.is_file():
        rows = _file_rows(path)
    elif _looks_like_path(str(source)):
        raise DataError(f"{source}: there is no such file")
    else:
        rows = _hub_dataset(str(source), split, revision, allow_download)
    return Pairs(_unique(rows, columns, str(source), limit))


def _unique(
    rows: Iterator[tuple[str, Any]], columns: Columns, source: str, limit: int | None
) -> Iterator[Pair]:
    """Pairs of all rows; a second use of an id is refused with both places."""
    seen: dict[str, str] = {}
    number = -1
    for number, (where, row) in enumerate(rows):
        if limit is not None and number >= limit:
            return
        for pair in pairs_from_row(row, where, number, columns):
            if pair.id in seen:
                raise DataError(f"{where}: the id {pair.id!r} was used before, at {seen[pair.id]}")
            seen[pair.id] = where
            yield pair
    if number < 0:
        raise DataError(f"{source}: there are no rows in it")


def _looks_like_path(source: str) -> bool:
    return (
        source.endswith(_SUFFIXES)
        or source.startswith((".", "/", "~"))
        or (source.count("/") != 1 or source.endswith("/"))
    )


def _file_rows(path: Path) -> Iterator[tuple[str, Any]]:
    name = path.name.lower()
    if name.endswith((".jsonl", ".jsonl.gz")):
        return _jsonl(path)
    if name.endswith(".json"):
        return _json(path)
    if name.endswith(".csv"):
        return _csv(path)
    if name.endswith(".parquet"):
        return _parquet(path)
    raise DataError(f"{path}: expected one of {', '.join(_SUFFIXES)}")


def _jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    opened: Any = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{path}, line {number}", _parse(line, f"{path}, line {number}")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, after line {number}: not UTF-8 ({error.reason})") from error


def _parse(text: str, where: str) -> Any:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, found a {type(row).__name__}")
    return row


def _json(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error.reason})") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from error
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of objects, found a {type(rows).__name__}")
    for n, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"{path}, row {n}: expected an object, found a {type(row).__name__}")
        yield f"{path}, row {n}", row


def _csv(path: Path) -> Iterator[tuple[str, Any]]:
    import csv

    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, strict=True)
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                if None in row or None in row.values():
                    raise DataError(f"{where}: the row and the header differ in length")
                yield where, {k: v for k, v in row.items() if v != ""}
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 ({error.reason})") from error
    except csv.Error as error:
        raise DataError(f"{path}: not CSV ({error})") from error


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path)
    except Exception as error:
        raise DataError(f"{path}: not a Parquet file ({error})") from error
    number = 0
    for batch in table.iter_batches():
        for row in batch.to_pylist():
            yield f"{path}, row {number}", row
            number += 1


def _saved_dataset(path: Path) -> Iterator[tuple[str, Any]]:
    import datasets

    try:
        found = datasets.load_from_disk(str(path))
    except (FileNotFoundError, ValueError) as error:
        raise DataError(f"{path} is a folder, but no data set saved by save_to_disk") from error
    if isinstance(found, datasets.DatasetDict):
        raise DataError(f"{path} holds the splits {list(found)}; name the folder of one")
    for n, row in enumerate(found):
        yield f"{path}, row {n}", row


def _hub_dataset(
    name: str, split: str, revision: str | None, allow_download: bool
) -> Iterator[tuple[str, Any]]:
    import datasets

    kind = datasets.DownloadMode.REUSE_DATASET_IF_EXISTS
    offline = datasets.config.HF_HUB_OFFLINE
    try:
        if not allow_download:
            datasets.config.HF_HUB_OFFLINE = True
        found = datasets.load_dataset(name, split=split, revision=revision, download_mode=kind)
    except Exception as error:
        if allow_download:
            raise DataError(f"{name}: the data set could not be loaded: {error}") from error
        raise DownloadRefused(
            f"{name} is neither a file here nor a data set in the local cache. Either pass "
            f"allow_download=True, or download it beforehand and pass the path of the file."
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = offline
    for n, row in enumerate(found):
        yield f"{name}, row {n}", row
