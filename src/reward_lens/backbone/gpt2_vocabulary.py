"""The GPT-2 byte-level vocabulary, built from its merges; no network."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from reward_lens.assets import asset

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

END_OF_TEXT = "<|endoftext|>"


def byte_symbols() -> list[str]:
    """The 256 symbols that stand for bytes, in the order of the vocabulary's first 256 ids.

    Printable bytes stand for themselves and come first; the others follow, in increasing order, as
    the characters from 256 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in printable] + [chr(256 + k) for k in range(256 - len(printable))]


def read_merges(path: Path) -> list[tuple[str, str]]:
    """Pairs of tokens to join, in order of priority, from a gzipped list with one header line."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        next(lines)  # a version header
        return [(left, right) for left, right in (line.split() for line in lines if line.strip())]


def vocabulary(merges: list[tuple[str, str]]) -> dict[str, int]:
    """Token -> id: the bytes, one token per merge, then the end of text."""
    tokens = [*byte_symbols(), *(left + right for left, right in merges), END_OF_TEXT]
    return {token: i for i, token in enumerate(tokens)}


@cache
def vocabulary_and_merges() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The shipped vocabulary (token -> id, 50257 of them) and its merges."""
    merges = read_merges(asset("gpt2/merges.txt.gz"))
    return vocabulary(merges), merges


def gpt2_tokenizer() -> PreTrainedTokenizerBase:
    """A new GPT-2 tokenizer without a chat template.

    Returns
    -------
    transformers.GPT2TokenizerFast
        ``<|endoftext|>`` (50256) serves as bos, eos, unk and pad. No token is added to a text.
    """
    from transformers import GPT2TokenizerFast

    ids, merges = vocabulary_and_merges()
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), END_OF_TEXT)
    # Copies: the tokenizer keeps what it is given, and the cached tables are shared.
    return GPT2TokenizerFast(
        vocab=dict(ids),
        merges=list(merges),
        add_prefix_space=False,
        clean_up_tokenization_spaces=False,
        **special,
    )
