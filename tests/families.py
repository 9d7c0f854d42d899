"""Tiny random models of every supported family, and a tokenizer of 256 bytes for them.

One-dimensional parameters are shifted: fresh biases of 0 and gains of 1 would hide an error.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from reward_lens.backbone.gpt2_vocabulary import byte_symbols

PAD, BOS, EOS, VOCAB = 256, 257, 258, 260

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_labels": 1,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "max_position_embeddings": 256,
}
_GQA = {**_COMMON, "num_key_value_heads": 2}
_GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "num_labels": 1,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}

CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**_GQA),
    "gpt2": lambda: GPT2Config(**_GPT2),
    "mistral": lambda: MistralConfig(**_GQA, sliding_window=16),
    "qwen2": lambda: Qwen2Config(**_GQA),
    "qwen3": lambda: Qwen3Config(**_GQA, head_dim=16),
    "gemma2": lambda: Gemma2Config(**_GQA, head_dim=16, sliding_window=16),
    "gpt_neox": lambda: GPTNeoXConfig(**_COMMON),
    "mixtral": lambda: MixtralConfig(**_GQA, num_local_experts=4, num_experts_per_tok=2),
}
FAMILIES = list(CONFIGS)


def make_model(
    family: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> Any:
    """A tiny classifier of a family in evaluation mode."""
    config = CONFIGS[family]()
    for key, value in changes.items():
        setattr(config, key, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_config(config)
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() == 1:
                    p += 0.1 * torch.randn(p.shape)
            # The default head is drawn so small that rounding would drown a margin.
            model.score.weight.normal_()
    return model.to(dtype).eval()


@cache
def _core() -> str:
    symbols = {s: i for i, s in enumerate(byte_symbols())}
    extra = {"<pad>": PAD, "<bos>": BOS, "<eos>": EOS}
    core = Tokenizer(models.BPE(vocab={**symbols, **extra}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return str(core.to_str())


def make_tokenizer(chat_template: str | None = None) -> Any:
    """A byte tokenizer that fits the models above."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_core()),
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<pad>",
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )


def make_signal(family: str, **changes: Any) -> Any:
    """A signal of a tiny model, quick check included."""
    from reward_lens import wrap_hf_model

    return wrap_hf_model(make_model(family, **changes), make_tokenizer())


PAIRS = [
    ("Why is the sky blue?", "Air scatters blue light most.", "It just is."),
    ("Name a colour.", "Blue.", "A colour is a property of light, and there are many of them."),
    ("Say hi.", "Hi! 🙂", "No"),
    ("Why is the sky blue?", "Because of Rayleigh scattering.", "Ask somebody else, please."),
]
ITEMS = [(p, r) for p, a, b in PAIRS for r in (a, b)]
