"""Where each token lies in its text, verified; a tokenizer's word alone is not believed.

Offsets come out wrong in ways that make no error: zero-width for every token, or shifted after a
character that was normalised away. So they are held against what the tokens decode to, and where
they fail, or there are none, the text is decoded token by token and followed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Span = tuple[int, int]

_BROKEN = "\ufffd"  # decoding gives this sign for a part of a character
_SPACE = "\u2581"  # sentencepiece's sign for a space


@dataclass(frozen=True)
class Alignment:
    """An item's text and where each token lies in it.

    Attributes
    ----------
    text : str
        What was tokenised, all of it; for an item given as ids, what they decode to. Where
        question and answer are two texts, the separator's tokens stand between them.
    tokens : tuple of str
        The text of each token of the item, for display.
    spans : tuple of (int, int), or None
        Half-open character spans in ``text``, verified; ``None`` where they could not be. A token
        that was added to the text has an empty span.
    response : (int, int), or None
        Half-open token span of what is left of the response after truncation, where it was found.
    verified : {"offsets", "decoding"}, or None
        What the spans come from: the tokenizer's offsets, or decoding token by token.
    """

    text: str
    tokens: tuple[str, ...]
    spans: tuple[Span, ...] | None
    response: Span | None
    verified: str | None = None


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of ids, special tokens included, nothing tidied up."""
    options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
    return str(tokenizer.decode(list(ids), **options))


def find_spans(
    tokenizer: Any, text: str, ids: Sequence[int]
) -> tuple[tuple[Span, ...], str] | None:
    """Return the verified character span of every token of a text, and what they come from.

    Parameters
    ----------
    tokenizer : transformers.PreTrainedTokenizerBase
    text : str
    ids : sequence of int, [n_tokens]
        What the tokenizer makes of ``text`` without adding special tokens.

    Returns
    -------
    (tuple of (int, int), {"offsets", "decoding"}), or None
        ``None`` where neither way reproduces the text.
    """
    stated = _stated(tokenizer, text, ids)
    if stated is not None and offsets_agree(tokenizer, text, ids, stated):
        return stated, "offsets"
    followed = follow(tokenizer, text, ids)
    return None if followed is None else (followed, "decoding")


def _stated(tokenizer: Any, text: str, ids: Sequence[int]) -> tuple[Span, ...] | None:
    """The tokenizer's own offsets, but that a space put before the text takes no character of it.

    Such a space is given the first character, which the token after it is given too.
    """
    if not tokenizer.is_fast:
        return None
    options = {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
    out = tokenizer(text, **options)
    if list(out["input_ids"]) != list(ids):
        return None
    spans = []
    for token, (a, b) in zip(ids, out["offset_mapping"], strict=True):
        blank = not decode(tokenizer, [token]).strip() and text[a:b].strip()
        spans.append((int(a), int(a if blank else b)))
    return tuple(spans)


def offsets_agree(tokenizer: Any, text: str, ids: Sequence[int], spans: Sequence[Span]) -> bool:
    """Whether spans cut the text into what the tokens decode to, and leave nothing of it out.

    What the tokenizer's own normaliser changes (accents, case) or removes (control characters) is
    no disagreement, nor is white space at a token's ends. A token of part of a character cannot be
    compared; its span must still not be empty.
    """
    normal = _normaliser(tokenizer)
    end = 0
    before = (0, 0)
    for token, (a, b) in zip(ids, spans, strict=True):
        if not before[0] <= a <= b <= len(text) or b < before[1]:
            return False
        if a > end and normal(text[end:a]):
            return False
        end, before = max(end, b), (a, b)
        piece = decode(tokenizer, [token])
        if token == tokenizer.unk_token_id or _BROKEN in piece:
            if a == b:
                return False
        elif piece.strip() != text[a:b].strip() and normal(_bare(tokenizer, piece)) != normal(
            text[a:b]
        ):
            return False
    return not normal(text[end:])


def _normaliser(tokenizer: Any) -> Callable[[str], str]:
    own = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)

    def normal(text: str) -> str:
        text = own.normalize_str(text) if own is not None else text
        return text.replace(_SPACE, " ").strip()

    return normal


def _bare(tokenizer: Any, piece: str) -> str:
    """A piece without the sign that it continues a word."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    mark = getattr(model, "continuing_subword_prefix", None)
    return piece.removeprefix(mark) if mark else piece


def follow(tokenizer: Any, text: str, ids: Sequence[int]) -> tuple[Span, ...] | None:
    """Return spans by decoding the ids one more at a time and following the text.

    Returns
    -------
    tuple of (int, int), or None
        Tokens that make up one character share its span. ``None`` where the decoded text is not
        ``text``, up to white space, case, accents and control characters.
    """
    groups = _grow(tokenizer, ids)
    if "".join(piece for _, piece in groups) == text:
        spans, end = [], 0
        for count, piece in groups:
            spans += [(end, end + len(piece))] * count
            end += len(piece)
        return tuple(spans)
    for fold in (_visible, _folded):
        found = _match(text, ids, tokenizer, fold)
        if found is not None:
            return found
    return None


def _grow(
    tokenizer: Any, ids: Sequence[int], fold: Callable[[str], str] = str
) -> list[tuple[int, str]]:
    """Groups of tokens that decode to whole characters: how many, and their text.

    A window of the last two groups is decoded, since what a token decodes to depends on the one
    before; decoding the whole prefix each time would cost the square of the length.
    """
    groups: list[tuple[int, str]] = []
    anchor = begin = 0
    before = ""
    for k in range(len(ids)):
        now = decode(tokenizer, ids[anchor : k + 1])
        grown = fold(now).startswith(fold(before))
        # A part of a character decodes to a sign of its own, or to nothing at all.
        whole = grown and now != before and not now.endswith(_BROKEN)
        if not whole and k + 1 < len(ids):
            continue
        # On the last token, what is no growth makes the texts differ, as it should.
        groups.append((k + 1 - begin, fold(now)[len(fold(before)) :] if grown else fold(now)))
        anchor, begin = begin, k + 1
        before = decode(tokenizer, ids[anchor:begin])
    return groups


def _match(
    text: str, ids: Sequence[int], tokenizer: Any, fold: Callable[[str], str]
) -> tuple[Span, ...] | None:
    """Spans where the decoded tokens and the text agree after folding both."""
    source = [(c, k) for k, char in enumerate(text) for c in fold(char)]
    groups = _grow(tokenizer, ids, fold)
    if "".join(piece for _, piece in groups) != "".join(c for c, _ in source):
        return None
    spans: list[Span] = []
    done = end = 0
    for count, piece in groups:
        start = source[done][1] if piece else end
        done += len(piece)
        end = source[done - 1][1] + 1 if piece else end
        spans += [(start, end)] * count
    return tuple(spans)


def _visible(text: str) -> str:
    """The text without white space."""
    return "".join(c for c in text if not c.isspace() and c != _SPACE)


def _folded(text: str) -> str:
    """The text without white space, case, accents and control characters."""
    apart = unicodedata.normalize("NFKD", text).casefold()
    return "".join(c for c in _visible(apart) if unicodedata.category(c) not in ("Mn", "Cc", "Cf"))
