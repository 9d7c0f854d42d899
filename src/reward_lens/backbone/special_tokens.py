"""The tokens at both ends of a text: what the tokenizer adds, and the rules for BOS and EOS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reward_lens.errors import TokenizeError

BOS_RULES = ("keep", "none", "add")
EOS_RULES = ("append", "overwrite")


@dataclass(frozen=True)
class Frame:
    """The tokens that a tokenizer puts around a text, found by comparing what it returns.

    Attributes
    ----------
    prefix, suffix : tuple of int
        Before and after one text.
    between : tuple of int
        Between two texts; empty where the tokenizer does not separate them.
    opening : int or None
        The token that counts as BOS: the tokenizer's BOS, else its CLS.
    encloses : bool
        Whether texts are put between CLS and an end (BERT, RoBERTa, DeBERTa).
    pair_types : tuple of int, or None
        Token types of prefix, question, between, answer and suffix, in this order and one number
        each per token or text; ``None`` where the tokenizer yields none, or one type only.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    between: tuple[int, ...]
    opening: int | None
    encloses: bool
    pair_types: tuple[int, ...] | None

    @property
    def opens(self) -> bool:
        """Whether the tokenizer begins a text with the opening token."""
        return bool(self.prefix) and self.prefix[0] == self.opening

    def types(self, question: int, answer: int) -> list[int] | None:
        """Token types of a pair of texts of these lengths, all tokens of the frame included."""
        if self.pair_types is None:
            return None
        n, m = len(self.prefix), len(self.between)
        t = self.pair_types
        first, second = [t[n]] * question, [t[n + 1 + m]] * answer
        return [*t[:n], *first, *t[n + 1 : n + 1 + m], *second, *t[n + 2 + m :]]


def find_frame(tokenizer: Any) -> Frame:
    """Find what a tokenizer adds to one text and to two.

    Raises
    ------
    TokenizeError
        If it does not give a text the same tokens with and without what it adds.
    """
    one, two = _ids(tokenizer, "a"), _ids(tokenizer, "b")
    framed = _ids(tokenizer, "a", special=True)
    start = _find(one, framed, 0)
    if start < 0 or (framed and not one):
        raise TokenizeError(
            f"the tokenizer reads 'a' as {one} alone and as {framed} with its special tokens; "
            f"which of them are special cannot be told. Set it up to add them around a text."
        )
    prefix, suffix = framed[:start], framed[start + len(one) :]
    opening = tokenizer.bos_token_id
    cls = getattr(tokenizer, "cls_token_id", None)
    if opening is None:
        opening = cls
    between, types = _separator(tokenizer, (prefix, suffix), one, two)
    encloses = bool(prefix and suffix) and cls is not None and prefix[0] == cls
    return Frame(tuple(prefix), tuple(suffix), between, opening, encloses, types)


def _separator(
    tokenizer: Any, ends: tuple[list[int], list[int]], one: list[int], two: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """What stands between two texts, and the token types of a pair."""
    try:
        both = tokenizer("a", "b", verbose=False)
    except (TypeError, ValueError, NotImplementedError):  # a tokenizer for single texts only
        return (), None
    ids = list(both["input_ids"])
    prefix, suffix = ends
    start = len(prefix)
    middle = start + len(one)
    stop = _find(two, ids, middle)
    between = ids[middle:stop]
    if stop < 0 or ids != [*prefix, *one, *between, *two, *suffix]:
        return (), None
    # Some decoders begin the second text with BOS: two texts, not a question and its answer.
    separators = {tokenizer.eos_token_id, getattr(tokenizer, "sep_token_id", None)}
    separators -= {None, tokenizer.bos_token_id}
    if not separators & set(between) or not set(between) <= set(tokenizer.all_special_ids):
        return (), None
    types = list(both.get("token_type_ids") or ())
    if not any(types):
        return tuple(between), None
    # One number per text: a text's tokens have one type.
    kept = [*types[:start], types[start], *types[middle:stop], types[stop]]
    return tuple(between), (*kept, *types[stop + len(two) :])


def _ids(tokenizer: Any, text: str, special: bool = False) -> list[int]:
    return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


def _find(part: list[int], whole: list[int], start: int) -> int:
    """Index of the first occurrence of ``part`` at or after ``start``; -1 where there is none."""
    for k in range(start, len(whole) - len(part) + 1):
        if whole[k : k + len(part)] == part:
            return k
    return -1


def check_rules(tokenizer: Any, frame: Frame, bos: str | None, eos: str | None, pair: bool) -> None:
    """Refuse a BOS or EOS rule that is unknown or that this tokenizer cannot serve.

    Raises
    ------
    TokenizeError
    """
    if bos is not None and bos not in BOS_RULES:
        raise TokenizeError(f"bos={bos!r}: choose None or one of {', '.join(BOS_RULES)}")
    if eos is not None and eos not in EOS_RULES:
        raise TokenizeError(f"eos={eos!r}: choose None or one of {', '.join(EOS_RULES)}")
    if bos == "add" and frame.opening is None:
        raise TokenizeError("bos='add', but the tokenizer has no BOS token: set one, or bos='keep'")
    if eos is not None and tokenizer.eos_token_id is None:
        raise TokenizeError(f"eos={eos!r}, but the tokenizer has no EOS token: set one")
    if eos == "overwrite" and pair:
        raise TokenizeError(
            "eos='overwrite' ends one text; it does not fit template='pair'. Choose eos='append', "
            "or a template that writes one text."
        )
