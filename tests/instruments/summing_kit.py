"""A causal model without norms whose score is a sum over tokens: the right token map is known."""

from __future__ import annotations

import torch
from families import PAD, VOCAB, make_tokenizer
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutputWithPast

import reward_lens as rl


class Running(nn.Module):
    """The sum of all tokens so far, mapped."""

    def __init__(self, width):
        super().__init__()
        self.map = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return self.map(x).cumsum(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attn, self.mlp = Running(width), nn.Linear(width, width, bias=False)

    def forward(self, x):
        x = x + self.attn(x)
        return x + self.mlp(x)


class Summing(PreTrainedModel):
    config_class = PreTrainedConfig
    base_model_prefix = "model"

    class Trunk(PreTrainedModel):
        config_class = PreTrainedConfig

        def __init__(self, config):
            super().__init__(config)
            self.embed_tokens = nn.Embedding(VOCAB, config.hidden_size)
            self.layers = nn.ModuleList([Block(config.hidden_size)])

        def forward(self, input_ids, attention_mask=None, position_ids=None, **_):
            return BaseModelOutput(last_hidden_state=self.layers[0](self.embed_tokens(input_ids)))

    def __init__(self, config):
        super().__init__(config)
        self.model = Summing.Trunk(config)
        self.score = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, input_ids, attention_mask=None, position_ids=None, **_):
        logits = self.score(self.model(input_ids).last_hidden_state)
        real = (input_ids != PAD) * torch.arange(input_ids.shape[1])
        rows = torch.arange(len(input_ids))
        return SequenceClassifierOutputWithPast(logits=logits[rows, real.argmax(-1)])


def summing():
    """A signal whose score is the sum of what each token has in ``worth``; and ``worth``."""
    config = PreTrainedConfig(
        pad_token_id=PAD, num_labels=1, vocab_size=VOCAB, hidden_size=8, num_hidden_layers=1,
        max_position_embeddings=256,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = Summing(config).eval()
        block, embedding = model.model.layers[0], model.model.embed_tokens.weight
        embedding[:, 4:] = 0  # what the head reads holds nothing of the token itself
        block.mlp.weight.zero_()
        block.attn.map.weight[:4] = 0
        model.score.weight[:, :4] = 0
        worth = (embedding @ block.attn.map.weight.T @ model.score.weight.T)[:, 0].numpy()
    return rl.wrap_hf_model(model, make_tokenizer(), conformance_quickcheck=False), worth
