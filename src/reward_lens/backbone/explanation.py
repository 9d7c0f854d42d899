"""What an encoder made of one item, written out for a person to check."""

from __future__ import annotations

from dataclasses import dataclass

from reward_lens.backbone.alignment import Span
from reward_lens.backbone.reading import MEAN, RULES

_SHOWN = 24  # tokens at each end of a long table


@dataclass(frozen=True)
class Explanation:
    """One item as a model gets it; ``print`` it.

    Attributes
    ----------
    text : str
        What was tokenised; see :class:`~reward_lens.backbone.alignment.Alignment`.
    template, bos, eos : str
        The conventions, as the encoder records them; ``"given as ids"`` where none was used.
    ids : tuple of int
    tokens : tuple of str
        The text of each token.
    spans : tuple of (int, int), or None
        Verified character span of each token in ``text``.
    verified : str or None
        What the spans come from.
    rule : str
        The checkpoint's read rule.
    native, last : int
        The index that the rule reads (:data:`~reward_lens.backbone.reading.MEAN` for the mean over
        all tokens), and that of the last token.
    response : (int, int), or None
        Half-open token span of the response.
    cut : int
        How many tokens truncation removed.
    types : tuple of int, or None
        Token types, where the tokenizer tells question and answer apart by them.
    max_length : int or None
        The longest item in tokens; ``max_length_source`` says who states it.
    max_length_source : str
    """

    text: str
    template: str
    bos: str
    eos: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    spans: tuple[Span, ...] | None
    verified: str | None
    rule: str
    native: int
    last: int
    response: Span | None
    cut: int
    types: tuple[int, ...] | None
    max_length: int | None
    max_length_source: str

    @property
    def native_token(self) -> str | None:
        """Text of the token that the rule reads; ``None`` where it reads their mean."""
        return None if self.native == MEAN else self.tokens[self.native]

    @property
    def last_token(self) -> str:
        """Text of the last token."""
        return self.tokens[self.last]

    def __str__(self) -> str:
        return "\n".join([*self._facts(), "", *self._table()])

    def _facts(self) -> list[str]:
        native = "all tokens, their mean"
        if self.native != MEAN:
            native = f"index {self.native} {self.native_token!r}"
        limit = "any number" if self.max_length is None else str(self.max_length)
        cut = f", {self.cut} cut away" if self.cut else ""
        response = "not located"
        if self.response is not None:
            response = f"tokens {self.response[0]} to {self.response[1] - 1}"
        spans = f"verified by {self.verified}" if self.verified else "could not be verified"
        facts = {
            "text": repr(self.text),
            "template": repr(self.template),
            "BOS": self.bos,
            "EOS": self.eos,
            "tokens": f"{len(self.ids)}{cut}; the model reads {limit} ({self.max_length_source})",
            "native read": f"{native}: {RULES[self.rule]}",
            "last": f"index {self.last} {self.last_token!r}",
            "response": response,
            "spans": spans,
        }
        if self.types is not None:
            facts["types"] = ", ".join(
                f"{self.types.count(t)} of type {t}" for t in sorted(set(self.types))
            )
        return [f"{name:<12}{value}" for name, value in facts.items()]

    def _table(self) -> list[str]:
        n = len(self.ids)
        shown = list(range(n))
        if n > 2 * _SHOWN + 1:
            shown = [*range(_SHOWN), *range(n - _SHOWN, n)]
        head = ["index", "id", *(["type"] if self.types is not None else []), "span", "token", ""]
        rows = [head, *(self._row(k) for k in shown)]
        widths = [max(len(row[c]) for row in rows) for c in range(len(head) - 2)]
        widths.append(max(len(row[-2]) for row in rows))
        lines = [
            "  ".join(
                [
                    *(cell.rjust(w) for cell, w in zip(row[:-2], widths, strict=False)),
                    row[-2].ljust(widths[-1]),
                    row[-1],
                ]
            ).rstrip()
            for row in rows
        ]
        if len(shown) < n:
            lines.insert(1 + _SHOWN, f"... {n - len(shown)} tokens not shown ...")
        return lines

    def _row(self, k: int) -> list[str]:
        span = "-" if self.spans is None else "{}:{}".format(*self.spans[k])
        inside = self.response is not None and self.response[0] <= k < self.response[1]
        marks = {"native read": k == self.native, "last": k == self.last, "response": inside}
        type_ = [str(self.types[k])] if self.types is not None else []
        marked = ", ".join(name for name, holds in marks.items() if holds)
        return [str(k), str(self.ids[k]), *type_, span, repr(self.tokens[k]), marked]
