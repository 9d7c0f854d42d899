"""From items to ids: the one function that builds them for every purpose.

The read position is computed here, per item, from its ids and the checkpoint's convention, never
from a padded batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reward_lens.data import Item, Message
from reward_lens.errors import TokenizeError
from reward_lens.evidence import fingerprint

PLAIN_TEMPLATE = "User: {prompt}\nAssistant: {response}"
TRUNCATE = ("error", "left", "right")
_UNBOUNDED = 10**9  # tokenizers state "no limit" as a number near 1e30


@dataclass(frozen=True, eq=False)
class Encoded:
    """One item as ids.

    Attributes
    ----------
    ids : ndarray of int64, [n_tokens]
    native : int
        The index that transformers reads: the rightmost id that is not the pad id, or the last
        where the checkpoint names no pad.
    cut : int
        How many tokens truncation removed.
    """

    ids: npt.NDArray[np.int64]
    native: int
    cut: int = 0

    @property
    def last(self) -> int:
        """Index of the last token, whatever it is."""
        return len(self.ids) - 1

    def read(self, position: str) -> int:
        """The index read under ``position``: ``"native"`` or ``"last"``."""
        return self.native if position == "native" else self.last


@dataclass(frozen=True)
class Alignment:
    """An item's text and where each token lies in it.

    Attributes
    ----------
    text : str
        What was tokenised; for an item given as ids, what they decode to.
    tokens : tuple of str
        The text of each token, for display.
    spans : tuple of (int, int), or None
        Half-open character spans in ``text``, verified by decoding; ``None`` where they could not
        be verified.
    response : (int, int), or None
        Half-open token span of the response, where it was found.
    """

    text: str
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...] | None
    response: tuple[int, int] | None


class Encoder:
    """Turns items into ids by one recorded convention.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
    config : transformers.PreTrainedConfig
        The trunk's (text) configuration: pad id, vocabulary size, longest input.

    Attributes
    ----------
    template : str
        ``"chat template"``, or the plain text form used because there is none.
    bos : str
        Who supplies the first token: ``"template"``, ``"tokenizer"`` or ``"none"``.
    max_length : int or None
        Longest item in tokens.
    """

    def __init__(self, tokenizer: Any, config: Any) -> None:
        self.tokenizer = tokenizer
        self.pad_id: int | None = getattr(config, "pad_token_id", None)
        self.max_length = _max_length(tokenizer, config)
        self.vocabulary: int | None = getattr(config, "vocab_size", None)
        self.has_chat_template = bool(getattr(tokenizer, "chat_template", None))
        self.template = "chat template" if self.has_chat_template else PLAIN_TEMPLATE
        plain = tokenizer("a")["input_ids"]
        bos = tokenizer.bos_token_id
        self._adds_bos = bos is not None and len(plain) > 0 and plain[0] == bos
        self.bos = self._bos_rule()

    def fingerprint(self) -> str:
        """Hash of the vocabulary, the template and the special tokens."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        body = backend.to_str() if backend is not None else repr(self.tokenizer.get_vocab())
        special = repr(sorted(self.tokenizer.special_tokens_map.items()))
        template = str(getattr(self.tokenizer, "chat_template", None) or PLAIN_TEMPLATE)
        return fingerprint(body, special, template, str(self.pad_id), self.bos)

    def render(self, item: Item) -> str:
        """Return the text of an item as it is tokenised.

        Raises
        ------
        TokenizeError
            If the template refuses the conversation, or the item has several turns and there is
            no template to say how turns look.
        """
        if item.text is not None:
            return item.text
        if item.messages is None:
            raise TokenizeError(f"{_name(item)} was given as ids; there is no text to render")
        if self.has_chat_template:
            turns = [{"role": m.role, "content": m.content} for m in item.messages]
            try:
                return str(self.tokenizer.apply_chat_template(turns, tokenize=False))
            except Exception as error:
                raise TokenizeError(
                    f"{_name(item)}: the tokenizer's chat template refused the conversation with "
                    f"roles {[m.role for m in item.messages]}: {error}"
                ) from error
        return self._render_plain(item, item.messages)

    def _render_plain(self, item: Item, messages: tuple[Message, ...]) -> str:
        if len(messages) != 2 or messages[0].role != "user":
            raise TokenizeError(
                f"{_name(item)} has turns {[m.role for m in messages]} and this tokenizer has no "
                f"chat template; without one only a user prompt and a response can be written "
                f"(as {PLAIN_TEMPLATE!r}). Set tokenizer.chat_template, or give rendered text."
            )
        return PLAIN_TEMPLATE.format(prompt=messages[0].content, response=messages[1].content)

    def encode(self, items: Sequence[Item], truncate: str = "error") -> list[Encoded]:
        """Tokenise items.

        Parameters
        ----------
        items : sequence of Item
        truncate : {"error", "left", "right"}
            What to do with an item longer than the model's maximum: refuse it, or cut tokens at
            the left or right end (counted in ``Encoded.cut``).

        Raises
        ------
        TokenizeError
            Naming the item: too long, no tokens, nothing but padding, or ids outside the
            vocabulary.
        """
        if truncate not in TRUNCATE:
            raise TokenizeError(f"truncate={truncate!r}: choose one of {', '.join(TRUNCATE)}")
        rows: dict[int, list[int]] = {}
        for plain in (False, True):
            where = [i for i, x in enumerate(items) if x.ids is None and self._plain(x) is plain]
            if where:
                texts = [self.render(items[i]) for i in where]
                out = self.tokenizer(texts, add_special_tokens=plain, verbose=False)["input_ids"]
                rows.update({i: self._one_bos(list(r)) for i, r in zip(where, out, strict=True)})
        encoded = []
        for i, item in enumerate(items):
            ids = self._stripped(item) if item.ids is not None else rows[i]
            encoded.append(self._finish(item, i, ids, truncate))
        return encoded

    def align(self, item: Item, truncate: str = "error") -> Alignment:
        """Return the text of an item with the place of every token of :meth:`encode` in it."""
        (encoded,) = self.encode([item], truncate)
        ids = encoded.ids.tolist()
        decoded = [self.tokenizer.decode([t]) for t in ids]
        if item.ids is not None:
            return Alignment(self.tokenizer.decode(ids), tuple(decoded), None, None)
        text = self.render(item)
        spans = None if encoded.cut else self._spans(item, text, ids, decoded)
        if spans is None:
            return Alignment(text, tuple(decoded), None, None)
        tokens = tuple(text[a:b] or d for (a, b), d in zip(spans, decoded, strict=True))
        response = item.response.strip() if item.response is not None else ""
        start = text.rfind(response) if response else -1
        span = None
        if start >= 0:
            inside = [
                k for k, (a, b) in enumerate(spans) if b > start and a < start + len(response)
            ]
            span = (inside[0], inside[-1] + 1) if inside else None
        return Alignment(text, tokens, spans, span)

    def _spans(
        self, item: Item, text: str, ids: list[int], decoded: list[str]
    ) -> tuple[tuple[int, int], ...] | None:
        """Character spans from the tokenizer, accepted only where decoding agrees with them."""
        if not self.tokenizer.is_fast:
            return None
        special = self._plain(item)
        out = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        raw, spans = list(out["input_ids"]), [tuple(s) for s in out["offset_mapping"]]
        if ids == [self.tokenizer.bos_token_id, *raw]:
            spans = [(0, 0), *spans]
        elif ids == raw[1:]:
            spans = spans[1:]
        elif ids != raw:
            return None
        for (a, b), piece in zip(spans, decoded, strict=True):
            # A token of part of a character decodes to the replacement sign; nothing to compare.
            if a < b and "\ufffd" not in piece and text[a:b].strip() != piece.strip():
                return None
        return tuple((int(a), int(b)) for a, b in spans)

    def _plain(self, item: Item) -> bool:
        """Whether the tokenizer adds its special tokens: yes for text it has no template for.

        A chat template, and text that was rendered by the caller, already hold what they need.
        """
        return item.messages is not None and not self.has_chat_template

    def _one_bos(self, ids: list[int]) -> list[int]:
        """Give a tokenised text exactly one BOS where the tokenizer's convention has one."""
        bos = self.tokenizer.bos_token_id
        if self._adds_bos:
            while len(ids) > 1 and ids[0] == bos and ids[1] == bos:
                ids = ids[1:]
            if not ids or ids[0] != bos:
                ids = [bos, *ids]
        return ids

    def _bos_rule(self) -> str:
        bos = self.tokenizer.bos_token
        if bos and self.has_chat_template:
            probe = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
            try:
                rendered = str(self.tokenizer.apply_chat_template(probe, tokenize=False))
            except Exception:  # a template that wants other roles; the items will tell
                rendered = ""
            if rendered.startswith(bos):
                return "template"
        return "tokenizer" if self._adds_bos else "none"

    def _stripped(self, item: Item) -> list[int]:
        """Ids without padding at either end, where pad is an id of its own."""
        ids = list(item.ids or ())
        special = {self.tokenizer.eos_token_id, self.tokenizer.bos_token_id}
        if self.pad_id is None or self.pad_id in special:
            return ids
        while ids and ids[-1] == self.pad_id:
            ids.pop()
        while ids and ids[0] == self.pad_id:
            ids.pop(0)
        return ids

    def _finish(self, item: Item, index: int, ids: list[int], truncate: str) -> Encoded:
        where = _name(item, index)
        if not ids:
            raise TokenizeError(f"{where} has no tokens")
        cut = 0
        if self.max_length is not None and len(ids) > self.max_length:
            cut = len(ids) - self.max_length
            if truncate == "error":
                raise TokenizeError(
                    f"{where} has {len(ids)} tokens; this model reads at most {self.max_length}. "
                    f"Leave it out, or ask for truncate='left' or 'right'."
                )
            ids = ids[cut:] if truncate == "left" else ids[: self.max_length]
        row = np.asarray(ids, dtype=np.int64)
        if self.vocabulary is not None and int(row.max()) >= self.vocabulary:
            raise TokenizeError(
                f"{where} has the id {int(row.max())}; this model embeds ids 0 to "
                f"{self.vocabulary - 1}. Were they made with another tokenizer?"
            )
        native = len(row) - 1
        if self.pad_id is not None:
            (real,) = np.nonzero(row != self.pad_id)
            if len(real) == 0:
                raise TokenizeError(f"{where} consists of padding only (id {self.pad_id})")
            native = int(real[-1])
        return Encoded(row, native, cut)


def _name(item: Item, index: int | None = None) -> str:
    if item.id is not None:
        return f"item {item.id!r}"
    return "the item" if index is None else f"item {index}"


def _max_length(tokenizer: Any, config: Any) -> int | None:
    limit = getattr(config, "max_position_embeddings", None)
    if isinstance(limit, int) and limit > 0:
        return limit
    stated = getattr(tokenizer, "model_max_length", None)
    return int(stated) if stated is not None and stated < _UNBOUNDED else None
