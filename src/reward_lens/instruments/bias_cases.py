"""What the bias battery runs: the edited responses and templated prompts, as rows of scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from reward_lens.backbone import Encoded
from reward_lens.data import Item, Message, Pairs
from reward_lens.data.edits import EDITS, Edit, edits_named, end_token
from reward_lens.data.templates import CONTRASTS, contrasts
from reward_lens.errors import DataError
from reward_lens.signals import ClassifierRM

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Row:
    """One difference of scores: the items ``plus`` minus the items ``minus``, by index."""

    plus: tuple[int, ...]
    minus: tuple[int, ...]
    lineage: str


@dataclass
class Case:
    """One edit at one position, or one templated contrast, with its rows.

    Attributes
    ----------
    label, name, family, position, changes, keeps : str
    rows : list of Row
    not_applicable, too_long : int
        Responses with nothing to change, and rows longer than the model reads.
    """

    label: str
    name: str
    family: str
    position: str
    changes: str
    keeps: str
    rows: list[Row] = field(default_factory=list)
    not_applicable: int = 0
    too_long: int = 0

    @property
    def lineages(self) -> npt.NDArray[np.object_]:
        """Lineage of every row."""
        return np.array([r.lineage for r in self.rows], dtype=object)

    def differences(self, scores: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Plus minus minus of scores ``[item, ...]``: float64 ``[row, ...]``."""
        total = np.zeros((len(self.rows), *scores.shape[1:]))
        for sign, side in ((1.0, "plus"), (-1.0, "minus")):
            places = np.array([getattr(r, side) for r in self.rows], dtype=np.int64)
            for column in places.T:
                total += sign * scores[column]
        return total


class Cases:
    """Items to score, each content once, and the differences to take of their scores.

    Parameters
    ----------
    pairs : Pairs
        Their responses are edited, chosen and rejected alike: items ``0..2n−1``.
    chosen : sequence of Edit
    templated : sequence of str
        Names of contrasts.
    seed : int
        Chooses wordings.

    Raises
    ------
    DataError
        If a pair is rendered text or ids, in which no response can be told.
    """

    def __init__(
        self, pairs: Pairs, chosen: Sequence[Edit], templated: Sequence[str], seed: int
    ) -> None:
        self.pairs = pairs
        self.items: list[Item] = [*pairs.chosen, *pairs.rejected]
        self._refuse_rendered()
        self.originals = len(self.items)  # these keep their places, for margins
        self._known = {item.messages: k for k, item in reversed(list(enumerate(self.items)))}
        self.cases = [*(self._edited(e, seed) for e in chosen), *map(self._contrast, templated)]

    def _refuse_rendered(self) -> None:
        for k, item in enumerate(self.items):
            if item.messages is None:
                pair = self.pairs[k % len(self.pairs)]
                raise DataError(
                    f"pair {pair.id!r} is rendered text or ids, which do not say where the "
                    f"response begins: edits of responses need a prompt and a response"
                )

    def _place(self, item: Item) -> int:
        """Index of an item, added where it is new."""
        if item.messages not in self._known:
            self._known[item.messages] = len(self.items)
            self.items.append(item)
        return self._known[item.messages]

    def _edited(self, edit: Edit, seed: int) -> Case:
        case = Case(edit.label, edit.name, edit.family, edit.position, edit.changes, edit.keeps)
        n = len(self.pairs)
        for k in range(self.originals):
            lineage, original = self.pairs[k % n].lineage, self.items[k]
            turns = original.messages or ()
            new = edit.apply(turns[-1].content, seed=seed)
            if new is None:
                case.not_applicable += 1
                continue
            turns = (*turns[:-1], Message(turns[-1].role, new))
            place = self._place(Item(messages=turns, lineage=lineage))
            case.rows.append(Row((place,), (k,), lineage))
        return case

    def _contrast(self, name: str) -> Case:
        rows = contrasts(name)
        first = rows[0]
        case = Case(name, name, first.family, "whole", first.changes, first.keeps)
        for row in rows:
            plus, minus = (tuple(map(self._place, side)) for side in (row.plus, row.minus))
            case.rows.append(Row(plus, minus, row.lineage))
        return case

    def encoded(self, signal: ClassifierRM, truncate: str) -> list[Encoded]:
        """Encode every item; rows that the model cannot read whole are left out and counted.

        Under ``truncate="error"`` an original that is too long is refused as everywhere; an edit
        that makes it so is not the caller's fault and becomes one of ``too_long``.
        """
        first = signal.encoder.encode(self.items[: self.originals], truncate)
        lax = "right" if truncate == "error" else truncate
        encoded = [*first, *signal.encoder.encode(self.items[self.originals :], lax)]
        if truncate == "error":
            long = {k for k, e in enumerate(encoded) if e.cut}
            for case in self.cases:
                kept = [r for r in case.rows if not long & {*r.plus, *r.minus}]
                case.too_long = len(case.rows) - len(kept)
                case.rows = kept
        return self._compact(encoded)

    def _compact(self, encoded: Sequence[Encoded]) -> list[Encoded]:
        """Keep one item for each row of ids that is needed, and renumber.

        Two texts that a template makes the same are run once: in two batches their scores would
        differ by rounding, and that by itself would look like an effect.
        """
        needed = {k for c in self.cases for r in c.rows for k in (*r.plus, *r.minus)}
        new: dict[int, int] = {}
        places: dict[tuple[bytes, bytes], int] = {}
        kept: list[int] = []
        for k, e in enumerate(encoded):
            if k >= self.originals and k not in needed:
                continue
            key = (e.ids.tobytes(), b"" if e.types is None else e.types.tobytes())
            if k < self.originals or key not in places:
                places.setdefault(key, len(kept))
                kept.append(k)
            new[k] = places[key]
        for case in self.cases:
            case.rows = [
                Row(tuple(new[k] for k in r.plus), tuple(new[k] for k in r.minus), r.lineage)
                for r in case.rows
            ]
        self.items = [self.items[k] for k in kept]
        return [encoded[k] for k in kept]

    def margins(self, scores: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Chosen minus rejected of scores ``[item, ...]``: float64 ``[pair, ...]``."""
        n = len(self.pairs)
        margins: npt.NDArray[np.float64] = scores[:n].astype(np.float64) - scores[n : 2 * n]
        return margins


def chosen_edits(
    signal: ClassifierRM, asked: Iterable[str | Edit] | None
) -> tuple[list[Edit], list[str]]:
    """The edits and the templated contrasts to run; all that there are by default.

    Raises
    ------
    DataError
        If one is not known.
    """
    ending = getattr(signal.encoder.tokenizer, "eos_token", None)
    known = [*EDITS, *([end_token(str(ending))] if ending else [])]
    if asked is None:
        return known, list(CONTRASTS)
    if isinstance(asked, str):
        raise DataError(f"edits={asked!r}: give a list of names or edits")
    given = list(asked)
    names = [x for x in given if isinstance(x, str)]
    templated = [n for n, family in CONTRASTS.items() if n in names or family in names]
    covered = {*templated, *(CONTRASTS[n] for n in templated)}
    own = [x for x in given if isinstance(x, Edit)]
    edits = [*edits_named([n for n in names if n not in covered], known), *own]
    if not edits and not templated:
        raise DataError("edits is empty: name at least one, or leave it out for all")
    labels = [e.label for e in edits] + templated
    if len(set(labels)) < len(labels):
        twice = next(x for x in labels if labels.count(x) > 1)
        raise DataError(f"two edits have the label {twice!r}: labels tell them apart")
    return edits, templated
