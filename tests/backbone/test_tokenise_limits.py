"""The longest input, and who says so."""

from types import SimpleNamespace

import pytest
import torch
from families import make_tokenizer
from tokenise_kit import Lying
from transformers import (
    BertConfig,
    BertModel,
    BloomConfig,
    DistilBertConfig,
    FalconConfig,
    GPT2Config,
    LlamaConfig,
    MptConfig,
    RobertaConfig,
    RobertaModel,
    T5Config,
)

from reward_lens.backbone.limits import longest_input

SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 20,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}


def tokenizer(longest=None):
    made = make_tokenizer()
    if longest is not None:
        made.model_max_length = longest
    return made


@pytest.mark.parametrize(
    ("config", "tokens", "source"),
    [
        (LlamaConfig(max_position_embeddings=300), 300, "config.max_position_embeddings"),
        (GPT2Config(n_positions=300), 300, "config.max_position_embeddings"),
        (DistilBertConfig(max_position_embeddings=300), 300, "config.max_position_embeddings"),
        (
            LlamaConfig(max_position_embeddings=300, rope_parameters=DYNAMIC),
            600,
            "config.max_position_embeddings=300 × 2 (dynamic rotary positions)",
        ),
        (LlamaConfig(max_position_embeddings=300, rope_parameters=LINEAR), 300, None),
        (MptConfig(max_seq_len=300), 300, "config.max_seq_len"),
        (FalconConfig(alibi=False, max_position_embeddings=300), 300, None),
        (
            FalconConfig(alibi=True, max_position_embeddings=300),
            None,
            "ALiBi: config.max_position_embeddings=300 is no bound",
        ),
        (BloomConfig(), None, "neither the configuration nor the tokenizer states a limit"),
        (T5Config(), None, "neither the configuration nor the tokenizer states a limit"),
    ],
)
def test_the_models_own_limit(config, tokens, source):
    limit = longest_input(tokenizer(), config)
    assert limit.tokens == tokens
    assert source is None or limit.source == source
    assert longest_input(tokenizer(10**30), config) == limit
    assert longest_input(tokenizer(1000), config).tokens == (1000 if tokens is None else tokens)


def test_the_tokenizers_limit_counts_where_it_is_smaller():
    config = LlamaConfig(max_position_embeddings=300)
    limit = longest_input(tokenizer(200), config)
    assert limit == (200, "tokenizer.model_max_length (the model itself would read 300)")
    assert longest_input(tokenizer(200), BloomConfig()) == (200, "tokenizer.model_max_length")
    assert longest_input(tokenizer(300), config).source == "config.max_position_embeddings"
    assert longest_input(Lying(SimpleNamespace(), None), config=config).tokens == 300


@pytest.mark.parametrize("pad", [0, 1, 5])
def test_positions_that_are_kept_for_padding(pad):
    """The limit is the longest input that the model takes, tried out on it."""
    config = RobertaConfig(**SMALL, max_position_embeddings=20, pad_token_id=pad)
    model = RobertaModel(config).eval()
    limit = longest_input(tokenizer(), config, model)
    assert limit.tokens == 20 - (pad + 1)
    assert limit.source == (
        f"config.max_position_embeddings=20 less {pad + 1} positions kept for padding"
    )
    with torch.no_grad():
        model(input_ids=torch.full((1, limit.tokens), 7))
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            model(input_ids=torch.full((1, limit.tokens + 1), 7))


def test_a_padding_id_of_the_words_keeps_no_position():
    config = BertConfig(**{**SMALL, "vocab_size": 20}, max_position_embeddings=20, pad_token_id=0)
    assert longest_input(tokenizer(), config, BertModel(config)).tokens == 20
