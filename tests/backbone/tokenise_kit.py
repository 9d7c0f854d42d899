"""Small tokenizers of every kind that reward models use, and one whose offsets lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from reward_lens.backbone.gpt2_vocabulary import byte_symbols
from reward_lens.backbone.tokenise import Encoder

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def config(pad: int | None = None, longest: int | None = 64, **more: Any) -> Any:
    """What an encoder reads of a configuration."""
    return SimpleNamespace(pad_token_id=pad, max_position_embeddings=longest, **more)


def encoder(tokenizer: Any, pad: int | None = None, longest: int | None = 64, **rules: Any) -> Any:
    return Encoder(tokenizer, config(pad, longest), **rules)


def _ids(names: list[str]) -> dict[str, int]:
    return {name: k for k, name in enumerate(dict.fromkeys(names))}


def bert() -> Any:
    """Word pieces, lower case and without accents; ``[CLS] a [SEP] b [SEP]`` with token types."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = ["the", "sky", "is", "blue", "why", "na", "##ive", "?", ".", ",", "'", "…", "🙂"]
    ids = _ids([*special, *words, *LETTERS, *("##" + c for c in LETTERS)])
    core = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


def roberta() -> Any:
    """Bytes; ``<s> a </s></s> b </s>``, no token types, offsets without leading spaces."""
    ids = _ids(["<s>", "<pad>", "</s>", *byte_symbols()])
    core = Tokenizer(models.BPE(ids, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        cls_token="<s>",
        eos_token="</s>",
        sep_token="</s>",
        pad_token="<pad>",
    )


def llama(chat_template: str | None = None, adds_bos: bool = True) -> Any:
    """Sentencepiece style with byte fallback; BOS before a text, and before a second one."""
    fallback = [f"<0x{b:02X}>" for b in range(256)]
    ids = _ids(["<unk>", "<s>", "</s>", *fallback, "\u2581", *LETTERS, *".,?!:\n"])
    core = Tokenizer(models.BPE(ids, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    if adds_bos:
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=chat_template,
    )


def unigram() -> Any:
    """Compatibility forms written out (as an ellipsis in three points), spaces as a sign."""
    pieces = [("<unk>", 0.0), ("\u2581", -2.0), ("...", -2.0), ("\u2581hi", -2.5)]
    pieces += [(c, -5.0) for c in LETTERS + ".,?! "]
    core = Tokenizer(models.Unigram(pieces, unk_id=0))
    core.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")


class Lying:
    """A tokenizer whose ids are right and whose offsets are not."""

    def __init__(self, tokenizer: Any, lie: Any) -> None:
        self._tokenizer, self._lie = tokenizer, lie

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        out = dict(self._tokenizer(*args, **options))
        if "offset_mapping" in out:
            out["offset_mapping"] = [self._lie(a, b) for a, b in out["offset_mapping"]]
        return out
