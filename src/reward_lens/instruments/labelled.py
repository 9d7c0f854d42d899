"""Labelled items: two sets of texts, in whatever form people hand them over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reward_lens.data import Item, Pairs, as_item, as_items, as_pairs
from reward_lens.data.fields import rows_of
from reward_lens.errors import DataError
from reward_lens.evidence import canonical, fingerprint

_FORMS = (
    "give (positives, negatives) as two lists of items, a list of (item, label) with labels 1 and "
    "0, rows with a column 'label', or pairs (their chosen sides are the positive items)"
)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Items of two kinds.

    Attributes
    ----------
    items : list of Item
    positive : ndarray of bool, [item]
    lineages : ndarray of str, [item]
        Of a pair, both sides have the pair's.
    """

    items: list[Item]
    positive: npt.NDArray[np.bool_]
    lineages: npt.NDArray[np.object_]

    @property
    def fingerprint(self) -> str:
        """Hash of contents, labels and lineages, in order."""
        rows = zip(self.items, self.positive.tolist(), self.lineages.tolist(), strict=True)
        return fingerprint(canonical([[i.content(), p, str(g)] for i, p, g in rows]))

    def refuse_fewer_than(self, least: int) -> None:
        """Refuse sets that are too small.

        Raises
        ------
        DataError
        """
        for name, count in (
            ("positive", int(self.positive.sum())),
            ("negative", int((~self.positive).sum())),
        ):
            if count < least:
                raise DataError(
                    f"the concept has {count} {name} items and needs {least} of each label; "
                    f"{_FORMS}"
                )


def as_labelled(given: Any) -> Labelled:
    """Turn labelled items in any accepted form into :class:`Labelled`.

    Parameters
    ----------
    given : Labelled, Pairs, mapping, tuple of two lists, or rows
        See :func:`~reward_lens.instruments.concepts.fit_concept`.

    Raises
    ------
    DataError
        Naming the row and what is wrong; nothing is guessed.
    """
    if isinstance(given, Labelled):
        return given
    if isinstance(given, Pairs):
        return _of_pairs(given)
    if isinstance(given, Mapping):
        if set(given) != {"positive", "negative"}:
            raise DataError(
                f"the concept is a mapping with keys {sorted(map(str, given))}; {_FORMS}"
            )
        return _of_lists(given["positive"], given["negative"])
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(x, list) for x in given):
        return _of_lists(*given)
    rows = list(rows_of(given, "labelled items", "(item, label)"))
    if rows and _is_labelled(rows[0]):
        return _of_rows(rows)
    try:
        return _of_pairs(as_pairs(rows))
    except DataError as error:
        raise DataError(f"the concept: {error}; {_FORMS}") from error


def _is_labelled(row: Any) -> bool:
    if isinstance(row, Mapping):
        return "label" in row
    return isinstance(row, (tuple, list)) and len(row) == 2


def _of_rows(rows: list[Any]) -> Labelled:
    items, labels = [], []
    for k, row in enumerate(rows):
        where = f"labelled item {k}"
        if not _is_labelled(row):
            raise DataError(f"{where} has no label, as the first one does; {_FORMS}")
        if isinstance(row, Mapping):
            content, label = {n: v for n, v in row.items() if n != "label"}, row["label"]
        else:
            content, label = row
        if not isinstance(label, (bool, int, float, np.bool_, np.number)) or label not in (0, 1):
            raise DataError(f"{where} has the label {label!r}; labels are 1 and 0")
        items.append(as_item(content, where))
        labels.append(bool(label))
    return _of_items(items, labels)


def _of_lists(positive: Any, negative: Any) -> Labelled:
    parts = []
    for name, part in (("positive", positive), ("negative", negative)):
        try:
            parts.append(as_items(part))
        except DataError as error:
            raise DataError(f"the concept's {name} items: {error}") from error
    labels = [True] * len(parts[0]) + [False] * len(parts[1])
    return _of_items([*parts[0], *parts[1]], labels)


def _of_items(items: list[Item], labels: list[bool]) -> Labelled:
    lineages = np.array([i.lineage for i in items], dtype=object)
    return Labelled(items, np.array(labels, dtype=bool), lineages)


def _of_pairs(pairs: Pairs) -> Labelled:
    items = [*pairs.chosen, *pairs.rejected]
    positive = np.arange(len(items)) < len(pairs)
    return Labelled(items, positive, np.concatenate([pairs.lineages, pairs.lineages]))
