"""From items to ids: the one function that builds them for every purpose.

The read position is computed here, per item, from its ids and the checkpoint's convention, never
from a padded batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reward_lens.backbone.alignment import Alignment, Span, decode, find_spans, follow
from reward_lens.backbone.explanation import Explanation
from reward_lens.backbone.limits import longest_input
from reward_lens.backbone.reading import MEAN, RIGHTMOST_NON_PAD, RULES, Encoded, read_index
from reward_lens.backbone.rendering import PLAIN_TEMPLATE, Rendered, Renderer
from reward_lens.backbone.rows import Row
from reward_lens.backbone.special_tokens import check_rules, find_frame
from reward_lens.data import Item
from reward_lens.errors import TokenizeError
from reward_lens.evidence import fingerprint

__all__ = ["MEAN", "PLAIN_TEMPLATE", "TRUNCATE", "Alignment", "Encoded", "Encoder", "read_index"]

TRUNCATE = ("error", "left", "right")
_AS_RENDERED = "as rendered"
_GIVEN = "given as ids"


class Encoder:
    """Turns items into ids by one recorded convention.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
    config : transformers.PreTrainedConfig
        The trunk's (text) configuration: pad id, vocabulary size, longest input.
    rule : str
        The checkpoint's read rule; see :func:`~reward_lens.backbone.reading.read_index`.
    template : str, optional
        How a conversation is written: by default with the tokenizer's chat template, and plainly
        where it has none. ``"plain"``, ``"chat"``, ``"pair"`` (question and answer as two texts), a
        Jinja chat template, or a text with ``{prompt}`` and ``{response}``.
    bos : {"keep", "none", "add"}, optional
        By default exactly one BOS where the tokenizer's own convention has one. ``"keep"`` leaves
        what template and tokenizer gave, ``"none"`` removes it, ``"add"`` makes it exactly one.
        Where a tokenizer has no BOS token its CLS counts.
    eos : {"append", "overwrite"}, optional
        By default nothing is added. ``"append"`` ends an item with EOS unless it does already.
        ``"overwrite"`` is OpenRLHF's: line ends are stripped, a space and the EOS text are added
        where EOS is missing, and the last id is then set to EOS. Both survive truncation.
    pair_default : bool
        Whether a tokenizer without a chat template that separates two texts is given pairs.
    model : torch.nn.Module, optional
        Looked through for positions that are kept for padding, which make ``max_length`` smaller.

    Attributes
    ----------
    template : str
        ``"chat template"``, ``"pair"``, or the template's text.
    bos : str
        Who supplies the first token: ``"template"``, ``"tokenizer"`` or ``"none"``; or the rule
        that was given.
    eos : str
        ``"as rendered"``, or the rule that was given.
    rule : str
    max_length : int or None
        Longest item in tokens; ``max_length_source`` says who states it.
    max_length_source : str

    Raises
    ------
    TokenizeError
        If a rule or template is unknown, or this tokenizer cannot serve it.

    Notes
    -----
    Items given as ids get no template, BOS or EOS; only padding at their ends is taken off.
    """

    def __init__(
        self,
        tokenizer: Any,
        config: Any,
        *,
        rule: str = RIGHTMOST_NON_PAD,
        template: str | None = None,
        bos: str | None = None,
        eos: str | None = None,
        pair_default: bool = False,
        model: Any = None,
    ) -> None:
        if rule not in RULES:
            raise TokenizeError(f"rule={rule!r}: choose one of {', '.join(RULES)}")
        self.tokenizer = tokenizer
        self.rule = rule
        self.pad_id: int | None = getattr(config, "pad_token_id", None)
        self.vocabulary: int | None = getattr(config, "vocab_size", None)
        self.max_length, self.max_length_source = longest_input(tokenizer, config, model)
        self.frame = find_frame(tokenizer)
        self.renderer = Renderer(
            tokenizer, template, pairs=bool(self.frame.between), pair_default=pair_default
        )
        self.template = self.renderer.template
        check_rules(tokenizer, self.frame, bos, eos, self.renderer.kind == "pair")
        self._bos, self._eos = bos, eos
        self.bos = bos or self._who_begins()
        self.eos = eos or _AS_RENDERED

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations are written by a chat template."""
        return self.renderer.kind == "chat"

    def fingerprint(self) -> str:
        """Hash of the vocabulary, the template, the special tokens and every rule."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        vocabulary = repr(sorted(self.tokenizer.get_vocab().items()))
        body = backend.to_str() if backend is not None else vocabulary
        special = repr(sorted(self.tokenizer.special_tokens_map.items()))
        rules = [self.pad_id, self.rule, self._bos, self._eos, self.bos, self.renderer.kind]
        return fingerprint(body, special, self.renderer.source(), *map(str, rules))

    def render(self, item: Item) -> str:
        """Return the text of an item as it is tokenised.

        Where question and answer are two texts, the separator's tokens stand between them.

        Raises
        ------
        TokenizeError
            If the template refuses the conversation or leaves out its system turn, or the item has
            several turns and there is no template to say how turns look.
        """
        return self._joined(self._render(item).parts)

    def encode(self, items: Sequence[Item], truncate: str = "error") -> list[Encoded]:
        """Tokenise items.

        Parameters
        ----------
        items : sequence of Item
        truncate : {"error", "left", "right"}
            What to do with an item longer than the model's maximum: refuse it, or cut tokens at
            the left or right end of its text (counted in ``Encoded.cut``). A BOS at its start, an
            EOS that a rule put at its end, and the tokenizer's own tokens around and between texts
            stay.

        Raises
        ------
        TokenizeError
            Naming the item: too long, no tokens, nothing but padding where the rule skips padding,
            or ids outside the vocabulary.
        """
        _check_truncate(truncate)
        rendered = [None if x.ids is not None else self._render(x, i) for i, x in enumerate(items)]
        tokens = iter(self._tokens([p for r in rendered if r is not None for p in r.parts]))
        encoded = []
        for i, (item, form) in enumerate(zip(items, rendered, strict=True)):
            if form is None:
                row = self._given(item)
            else:
                row = self._assembled(form, [next(tokens) for _ in form.parts], _name(item, i))
            kept = self._kept(row, _name(item, i), truncate)
            encoded.append(self._finished(row, kept, _name(item, i)))
        return encoded

    def align(self, item: Item, truncate: str = "error") -> Alignment:
        """Return the text of an item with the place of every token of :meth:`encode` in it."""
        return self._aligned(item, truncate)[1]

    def explain(self, item: Item, truncate: str = "error") -> Explanation:
        """Return everything that was decided on the way from an item to its ids; print it.

        Raises
        ------
        TokenizeError
            As :meth:`encode`.
        """
        encoded, aligned = self._aligned(item, truncate)
        by_rule = item.ids is None
        own = item.messages is not None
        return Explanation(
            text=aligned.text,
            template=self.template if own else "already rendered" if by_rule else _GIVEN,
            bos=self.bos if by_rule else _GIVEN,
            eos=self.eos if by_rule else _GIVEN,
            ids=tuple(encoded.ids.tolist()),
            tokens=aligned.tokens,
            spans=aligned.spans,
            verified=aligned.verified,
            rule=self.rule,
            native=encoded.native,
            last=encoded.last,
            response=aligned.response,
            cut=encoded.cut,
            types=None if encoded.types is None else tuple(encoded.types.tolist()),
            max_length=self.max_length,
            max_length_source=self.max_length_source,
        )

    def _render(self, item: Item, index: int | None = None, find: bool = False) -> Rendered:
        form = self.renderer.render(item, _name(item, index), find)
        if self._eos != "overwrite":
            return form
        (text,) = form.parts
        text, end = text.rstrip("\n"), self.tokenizer.eos_token
        response = form.response
        if response is not None:
            response = (0, response[1], min(response[2], len(text)))
        text = text if text.endswith(end) else f"{text} {end}"
        return Rendered((text,), form.complete, response)

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, without what the tokenizer adds."""
        if not texts:
            return []
        out = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        return [list(ids) for ids in out]

    def _assembled(self, form: Rendered, parts: list[list[int]], name: str) -> Row:
        """Put the tokenizer's own tokens around a text or two, and apply the rules at its ends."""
        content = [t for part in parts for t in part]
        if not content:
            raise TokenizeError(f"{name} has no tokens")
        if len(parts) == 2:
            row = Row.of_pair(parts[0], parts[1], self.frame)
        else:
            row = Row.of(content, self.frame if self._takes_frame(form, content) else None)
        row.begin(self._one_bos(row.ids))
        self._end(row)
        return row

    def _takes_frame(self, form: Rendered, content: list[int]) -> bool:
        """Whether the tokenizer's own tokens go around a text.

        They do not where the text holds them: rendered text and chat templates do by definition,
        unless the tokenizer encloses texts and this one does not begin so.
        """
        if self._bos == "keep":
            return not form.complete
        if content[0] == self.frame.opening:
            return False
        return self.frame.encloses or not form.complete

    def _one_bos(self, ids: list[int]) -> list[int]:
        """Apply the BOS rule to the ids of a text."""
        opening = self.frame.opening
        exactly_one = self.frame.opens if self._bos is None else self._bos == "add"
        if opening is None or not (exactly_one or self._bos == "none"):
            return ids
        start = next((k for k, token in enumerate(ids) if token != opening), len(ids))
        if exactly_one:
            return [opening, *ids[start:]]
        # Of a text that is nothing but BOS the last one stays.
        return ids[min(start, len(ids) - 1) :]

    def _end(self, row: Row) -> None:
        """Apply the EOS rule."""
        eos = self.tokenizer.eos_token_id
        if self._eos is not None and row.ids[-1] != eos:
            row.end(eos, overwrite=self._eos == "overwrite")

    def _given(self, item: Item) -> Row:
        """Ids as they were given, without padding at either end where pad is an id of its own."""
        ids = list(item.ids or ())
        pad = self.pad_id if self.pad_id is not None else self.tokenizer.pad_token_id
        if pad is not None and pad not in {
            self.tokenizer.eos_token_id,
            self.tokenizer.bos_token_id,
        }:
            while ids and ids[-1] == pad:
                ids.pop()
            while ids and ids[0] == pad:
                ids.pop(0)
        return Row.of(ids)

    def _kept(self, row: Row, name: str, truncate: str) -> list[int] | None:
        """The indices that truncation leaves; ``None`` for all of them."""
        n, limit = len(row.ids), self.max_length
        if n == 0:
            raise TokenizeError(f"{name} has no tokens")
        if limit is None or n <= limit:
            return None
        if truncate == "error":
            raise TokenizeError(
                f"{name} has {n} tokens; this model reads at most {limit} "
                f"({self.max_length_source}). Leave it out, or ask for truncate='left' or 'right'."
            )
        eos = None if self._eos is None else self.tokenizer.eos_token_id
        kept = row.cut_to(limit, truncate, self.frame, eos)
        if kept is None:
            raise TokenizeError(
                f"{name}: a limit of {limit} tokens ({self.max_length_source}) leaves no room for "
                f"text beside the special tokens"
            )
        return kept

    def _finished(self, row: Row, kept: list[int] | None, name: str) -> Encoded:
        ids, types = np.asarray(row.ids, dtype=np.int64), None
        if row.types is not None:
            types = np.asarray(row.types, dtype=np.int64)
        if kept is not None:
            ids, types = ids[kept], types if types is None else types[kept]
        if self.vocabulary is not None and int(ids.max()) >= self.vocabulary:
            raise TokenizeError(
                f"{name} has the id {int(ids.max())}; this model embeds ids 0 to "
                f"{self.vocabulary - 1}. Were they made with another tokenizer?"
            )
        try:
            native = read_index(ids, self.rule, self.pad_id)
        except TokenizeError as error:
            raise TokenizeError(f"{name}: {error}") from error
        return Encoded(ids, native, len(row.ids) - len(ids), types)

    def _aligned(self, item: Item, truncate: str) -> tuple[Encoded, Alignment]:
        if item.ids is not None:
            (encoded,) = self.encode([item], truncate)
            return encoded, self._decoded(encoded.ids.tolist())
        _check_truncate(truncate)
        name, form = _name(item), self._render(item, find=True)
        parts = self._tokens(list(form.parts))
        found = self._spans(form, parts)
        row = self._assembled(form, parts, name)
        kept = self._kept(row, name, truncate)
        encoded = self._finished(row, kept, name)
        text = self._joined(form.parts)
        decoded = [decode(self.tokenizer, [t]) for t in encoded.ids.tolist()]
        if found is None:
            return encoded, Alignment(text, tuple(decoded), None, None)
        spans = row.placed(kept, found[0])
        tokens = tuple(text[a:b] or d for (a, b), d in zip(spans, decoded, strict=True))
        response = self._response(form, spans)
        return encoded, Alignment(text, tokens, spans, response, found[1])

    def _decoded(self, ids: list[int]) -> Alignment:
        """What ids that were given stand for."""
        text = decode(self.tokenizer, ids)
        spans = follow(self.tokenizer, text, ids)
        tokens = tuple(decode(self.tokenizer, [t]) for t in ids)
        return Alignment(text, tokens, spans, None, None if spans is None else "decoding")

    def _spans(self, form: Rendered, parts: list[list[int]]) -> tuple[list[Span], str] | None:
        """Verified spans of the tokens of the joined text, and what they come from."""
        spans: list[Span] = []
        ways, start = set(), 0
        for k, (part, ids) in enumerate(zip(form.parts, parts, strict=True)):
            if k:
                for token in self.frame.between:
                    stop = start + len(decode(self.tokenizer, [token]))
                    spans.append((start, stop))
                    start = stop
            found = find_spans(self.tokenizer, part, ids)
            if found is None:
                return None
            spans.extend((a + start, b + start) for a, b in found[0])
            ways.add(found[1])
            start += len(part)
        return spans, "decoding" if "decoding" in ways else "offsets"

    def _joined(self, parts: tuple[str, ...]) -> str:
        return self._separator().join(parts)

    def _separator(self) -> str:
        return "".join(decode(self.tokenizer, [token]) for token in self.frame.between)

    def _response(self, form: Rendered, spans: Sequence[Span]) -> Span | None:
        """The tokens that share characters with the response."""
        if form.response is None:
            return None
        part, start, stop = form.response
        before = len(form.parts[0]) + len(self._separator()) if part else 0
        start, stop = start + before, stop + before
        inside = [k for k, (a, b) in enumerate(spans) if max(a, start) < min(b, stop)]
        return (inside[0], inside[-1] + 1) if inside else None

    def _who_begins(self) -> str:
        """Who supplies the first token where no rule was given."""
        (probe,) = self._tokens([self.renderer.probe]) if self.renderer.probe else ([],)
        if probe and probe[0] == self.frame.opening:
            return "template"
        return "tokenizer" if self.frame.opens else "none"


def _check_truncate(truncate: str) -> None:
    if truncate not in TRUNCATE:
        raise TokenizeError(f"truncate={truncate!r}: choose one of {', '.join(TRUNCATE)}")


def _name(item: Item, index: int | None = None) -> str:
    if item.id is not None:
        return f"item {item.id!r}"
    return "the item" if index is None else f"item {index}"
