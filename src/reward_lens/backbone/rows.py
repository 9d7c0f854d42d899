"""One item's tokens on the way from its text to its ids: what was added, and what may be cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reward_lens.backbone.alignment import Span
from reward_lens.backbone.special_tokens import Frame


@dataclass
class Row:
    """The tokens of an item.

    Attributes
    ----------
    ids : list of int, [n_tokens]
    origin : list of int, [n_tokens]
        Which token of the tokenised text each one is, -1 where it was added.
    types : list of int, [n_tokens], or None
        Token types.
    separator : range
        Where the tokens between two texts are; truncation leaves them in place.
    """

    ids: list[int]
    origin: list[int]
    types: list[int] | None = None
    separator: range = field(default_factory=lambda: range(0))

    @classmethod
    def of(cls, content: list[int], frame: Frame | None = None) -> Row:
        """One text, inside a frame if there is one."""
        before, after = (frame.prefix, frame.suffix) if frame else ((), ())
        origin = [*[-1] * len(before), *range(len(content)), *[-1] * len(after)]
        return cls([*before, *content, *after], origin)

    @classmethod
    def of_pair(cls, question: list[int], answer: list[int], frame: Frame) -> Row:
        """Two texts inside a frame; what separates them counts as part of the text."""
        row = cls.of([*question, *frame.between, *answer], frame)
        start = len(frame.prefix) + len(question)
        row.separator = range(start, start + len(frame.between))
        row.types = frame.types(len(question), len(answer))
        return row

    def begin(self, ids: list[int]) -> None:
        """Take over ids that differ at the front only, by tokens added or removed."""
        grown = len(ids) - len(self.ids)
        old, new = max(-grown, 0), max(grown, 0)
        self.origin = [-1] * new + self.origin[old:]
        if self.types is not None:
            self.types = self.types[:1] * new + self.types[old:]
        self.separator = range(self.separator.start + grown, self.separator.stop + grown)
        self.ids = ids

    def end(self, token: int, overwrite: bool = False) -> None:
        """Add a token at the end, or put it in the last one's place."""
        if overwrite:
            self.ids[-1], self.origin[-1] = token, -1
            return
        self.ids.append(token)
        self.origin.append(-1)
        if self.types is not None:
            self.types.append(self.types[-1])

    def cut_to(self, limit: int, side: str, frame: Frame, eos: int | None) -> list[int] | None:
        """The indices that are left when the row is cut to a length.

        Parameters
        ----------
        limit : int
            Less than the row has.
        side : {"left", "right"}
            The end of the text at which tokens go.
        frame : Frame
            Its tokens stay, where the row has them, and so does an opening token at the start.
        eos : int or None
            Stays at the end, where the row ends in it.

        Returns
        -------
        list of int, [limit], or None
            ``None`` where nothing of the text would be left.
        """
        head, tail = self._ends(frame, eos)
        n = len(self.ids)
        inner = [k for k in range(head, n - tail) if k not in self.separator]
        cut = n - limit
        if cut >= len(inner):
            return None
        gone = set(inner[:cut] if side == "left" else inner[-cut:])
        return [k for k in range(n) if k not in gone]

    def _ends(self, frame: Frame, eos: int | None) -> tuple[int, int]:
        """How many tokens at the start and at the end stay."""
        prefix, suffix = list(frame.prefix), list(frame.suffix)
        head = int(self.ids[0] == frame.opening)
        if prefix and self.ids[: len(prefix)] == prefix:
            head = len(prefix)
        if suffix and self.ids[-len(suffix) :] == suffix:
            return head, len(suffix)
        return head, int(self.ids[-1] == eos)

    def placed(self, kept: Sequence[int] | None, spans: Sequence[Span]) -> tuple[Span, ...]:
        """Character spans of the kept tokens, from those of the text's.

        Parameters
        ----------
        kept : sequence of int, or None
            Indices of the row; ``None`` for all.
        spans : sequence of (int, int)
            By ``origin``. A token that was added gets an empty one where it stands.
        """
        placed, end = [], 0
        for origin in self.origin if kept is None else [self.origin[k] for k in kept]:
            span = spans[origin] if origin >= 0 else (end, end)
            placed.append(span)
            end = span[1]
        return tuple(placed)
