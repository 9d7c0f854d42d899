"""The GPT-2 byte-level vocabulary, built from its merges; no network."""

from __future__ import annotations

import gzip
from functools import cache
from typing import Any

from reward_lens.assets import asset

END_OF_TEXT = "<|endoftext|>"


def byte_symbols() -> list[str]:
    """The 256 symbols that stand for bytes, in the order of the vocabulary's first 256 ids.

    Printable bytes stand for themselves and come first; the others follow, in increasing order, as
    the characters from 256 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in printable] + [chr(256 + k) for k in range(256 - len(printable))]


@cache
def vocabulary_and_merges() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Token -> id (50257 of them), and the merges in order of priority."""
    with gzip.open(asset("gpt2/merges.txt.gz"), "rt", encoding="utf-8") as lines:
        next(lines)  # a version header
        merges = [(a, b) for a, b in (line.split() for line in lines if line.strip())]
    tokens = [*byte_symbols(), *(a + b for a, b in merges), END_OF_TEXT]
    return {token: i for i, token in enumerate(tokens)}, merges


def gpt2_tokenizer() -> Any:
    """A new GPT-2 tokenizer without a chat template.

    Returns
    -------
    transformers.PreTrainedTokenizerFast
        ``<|endoftext|>`` (50256) serves as bos, eos, unk and pad.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary, merges = vocabulary_and_merges()
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.post_processor = processors.ByteLevel(trim_offsets=False)
    core.decoder = decoders.ByteLevel()
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), END_OF_TEXT)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, clean_up_tokenization_spaces=False, **special
    )
