"""The file beside a page that holds every pair that was scored; the page does not read it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reward_lens.data import Pairs
from reward_lens.data.writing import pair_row
from reward_lens.errors import EvidenceError
from reward_lens.evidence import Evidence


def write_sidecar(path: Path, pairs: Pairs, preferred: Evidence) -> None:
    """Write one row a pair, scores and texts; the file appears whole or not at all.

    Parameters
    ----------
    path : Path
        Of a JSONL file; :func:`~reward_lens.load_pairs` reads the pairs back from it.
    pairs : Pairs
    preferred : Evidence
        Of :func:`~reward_lens.preference` on these pairs: gives ``margin``, ``score_chosen`` and
        ``score_rejected`` of each row, in its own units.

    Raises
    ------
    EvidenceError
        If it was measured on other pairs.
    """
    table = preferred.tables["scores"]
    if table["pair"].tolist() != pairs.ids:
        raise EvidenceError(
            f"{path}: the scores are of other pairs, or in another order; give the pairs that were "
            f"scored"
        )
    columns = {"margin": "margin", "score_chosen": "chosen", "score_rejected": "rejected"}
    numbers = {name: table[column].tolist() for name, column in columns.items()}
    write_rows(
        path,
        (
            {**pair_row(pair), **{name: v[k] for name, v in numbers.items()}}
            for k, pair in enumerate(pairs)
        ),
    )


def is_sidecar(path: Path) -> bool:
    """Whether a file begins as what is written beside a page does."""
    try:
        with path.open(encoding="utf-8") as lines:
            row = json.loads(lines.readline() or "null")
    except ValueError:
        return False
    return isinstance(row, dict) and bool({"margin", "margin_a"} & row.keys())


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as strict JSON lines; the file appears whole or not at all."""
    partial = path.with_name(path.name + ".part")
    with partial.open("w", encoding="utf-8", newline="\n") as lines:
        for row in rows:
            lines.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
    partial.replace(path)
