"""Pairs from files, saved or cached data sets, and tables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reward_lens.data.formats import SUFFIXES, file_rows, saved_dataset_rows
from reward_lens.data.pairs import Pairs
from reward_lens.data.rows import Columns, as_pairs, pairs_of_rows
from reward_lens.errors import DataError, DownloadRefused
from reward_lens.evidence.arguments import checked_count


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
    split: str | None = None,
    revision: str | None = None,
    allow_download: bool = False,
) -> Pairs:
    r"""Read preference pairs.

    Parameters
    ----------
    source : path, DataFrame, datasets.Dataset, list, or hub id
        A ``.jsonl`` (also ``.gz``), ``.json``, ``.csv`` or ``.parquet`` file; a folder written by
        ``Dataset.save_to_disk``; an id (``owner/name``) of a data set in the local cache.
    limit : int, optional
        Only the first ``limit`` rows.
    prompt, chosen, rejected, subset, id, lineage : str, optional
        Column names, where they are not the usual ones.
    transcripts : {"auto", True, False}
        Texts of ``\n\nHuman:`` and ``\n\nAssistant:`` turns are split into messages where they
        hold their own prompt (``"auto"``); also in a prompt column, where the text begins with
        such a mark (``True``); or never. Without ``True`` a prompt column is scored as it stands.
    split, revision : str, optional
        For hub ids (``split`` is ``"train"`` unless said) and ``split`` also for a saved folder
        with several; refused where they mean nothing.
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
    if limit is not None:
        limit = checked_count("limit", limit, 1, "None for all rows")
    if not isinstance(source, (str, os.PathLike)):
        _refuse_options(type(source).__name__, split=split, revision=revision)
        if isinstance(source, Pairs) and columns != Columns():
            raise DataError("these are pairs already: column names and transcripts= do not apply")
        return as_pairs(source, columns, limit=limit)
    path = Path(source).expanduser()
    if path.is_dir():
        _refuse_options(str(source), revision=revision)
        rows = saved_dataset_rows(path, split)
    elif path.is_file():
        _refuse_options(str(source), split=split, revision=revision)
        rows = file_rows(path)
    elif _looks_like_path(str(source)):
        raise DataError(f"{source}: there is no such file")
    else:
        rows = _hub_rows(str(source), split or "train", revision, allow_download)
    return pairs_of_rows(rows, columns, source=str(source), limit=limit)


def _refuse_options(source: str, **options: str | None) -> None:
    for name, value in options.items():
        if value is not None:
            raise DataError(
                f"{name}={value!r} is for data sets of the hub and means nothing for {source}; "
                f"leave it out (to part pairs by a file of ids, use Pairs.split)"
            )


def _looks_like_path(source: str) -> bool:
    return (
        source.endswith(SUFFIXES)
        or source.startswith((".", "/", "~"))
        or source.count("/") != 1
        or source.endswith("/")
    )


def _hub_rows(
    name: str, split: str, revision: str | None, allow_download: bool
) -> Iterator[tuple[str, Any]]:
    import datasets

    offline = datasets.config.HF_HUB_OFFLINE
    try:
        # datasets has no argument for "only what is cached", and reads this at every call
        datasets.config.HF_HUB_OFFLINE = offline or not allow_download
        found = datasets.load_dataset(name, split=split, revision=revision)
    except Exception as error:
        # this one says that nothing is cached; a wrong split or a damaged copy raises others
        if not allow_download and isinstance(error, ConnectionError):
            raise DownloadRefused(
                f"{name} is neither a file here nor a data set in the local cache. Either pass "
                f"allow_download=True, or download it beforehand and pass the path of the file."
            ) from error
        raise DataError(
            f"{name}: the data set could not be loaded: {error}\nFor what has no argument here "
            f"(a configuration, say), call datasets.load_dataset and pass its result."
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = offline
    if revision is not None and not allow_download:
        _check_revision(name, revision, found.info.download_checksums)
    return ((f"{name}, split {split!r}, row {n}", row) for n, row in enumerate(found))


def _check_revision(name: str, revision: str, checksums: Any) -> None:
    """Refuse a cached copy that is not shown to be of the revision asked for.

    Offline, ``datasets`` hands out the latest cached copy whatever the revision.
    """
    if not any(f"@{revision}/" in str(url) for url in checksums or ()):
        raise DownloadRefused(
            f"{name}: the cached copy is not known to be of revision {revision!r}. Leave "
            f"revision= out to use it, or pass allow_download=True."
        )
