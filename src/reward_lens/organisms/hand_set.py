"""A tiny Llama classifier whose weights are set by hand, one named part at a time.

What makes it computable on paper:

- Channel ``ONE`` of the residual stream holds ``2**14`` at every token, and nothing ever writes to
  it. All else in the stream is of size 1, so that each RMSNorm divides by the same number at every
  token of every text, patched or not (to ``2**-28``, below what float32 resolves). The gains undo
  that division: a norm hands on every channel as it is, and ``ONE`` as the number 1.
- Rotary embeddings turn the channels 1 and 3 of a head by 1e-15 a token, which is nothing: queries
  and keys that are set by hand use channel 1 and know no position.
- The MLP is ``relu(gate) * up``: with an ``up`` that reads ``ONE`` a neuron is a plain ReLU, with a
  ``gate`` that does it is linear.
- The head reads channel ``REWARD`` and has no bias.

The channels from ``JUNK`` on hold random numbers that depend on the token, and every part that is
not set by hand mixes them at random among themselves. No part that is set by hand reads them, nor
does the head: they are there so that an instrument has something to find nothing in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reward_lens.backbone.gpt2_vocabulary import gpt2_tokenizer
from reward_lens.errors import AnatomyError
from reward_lens.evidence.arguments import checked_seed
from reward_lens.signals import ClassifierRM, wrap_hf_model

#: Channels of the residual stream.
ONE, FEATURE, REWARD, MOVED, QUERY, KEY, VALUE, JUNK = 0, 1, 2, 3, 4, 5, 6, 8
WIDTH, HEADS, NEURONS = 16, 4, 16
_HEAD_WIDTH = WIDTH // HEADS
_STILL = 1  # the channel of a head that rotary embeddings do not turn
_CONSTANT = 2.0**14
#: Difference of attention logits between a token that is looked for and the others; exp(-60) is 0.
SHARP = 60.0


class HandSet:
    """A model in the making.

    Parameters
    ----------
    layers : int
        Number of blocks.
    seed : int
        Of the junk.
    mixing : bool
        Whether heads that are not set by hand look at tokens by their junk, or at all alike.
    """

    def __init__(self, layers: int, seed: int = 0, *, mixing: bool = True) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaForSequenceClassification

        config = LlamaConfig(
            vocab_size=50257, pad_token_id=50256, bos_token_id=50256, eos_token_id=50256,
            hidden_size=WIDTH, intermediate_size=NEURONS, num_hidden_layers=layers,
            num_attention_heads=HEADS, num_key_value_heads=HEADS, max_position_embeddings=256,
            rms_norm_eps=1e-6, hidden_act="relu", num_labels=1, attn_implementation="eager",
            rope_parameters={"rope_type": "default", "rope_theta": 1e30},
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):  # what it draws is overwritten
            self.model: Any = LlamaForSequenceClassification(config).eval()
        self.tokenizer = gpt2_tokenizer()
        self.layers = layers
        generator = torch.Generator().manual_seed(checked_seed(seed))
        with torch.no_grad():
            for p in self.model.parameters():
                p.zero_()
            self._set_norms()
            self._set_junk(generator, mixing)
            self.model.score.weight[0, REWARD] = 1.0

    def _set_norms(self) -> None:
        gain = torch.full((WIDTH,), _CONSTANT / WIDTH**0.5)
        gain[ONE] = WIDTH**-0.5
        for block in self.model.model.layers:
            block.input_layernorm.weight.copy_(gain)
            block.post_attention_layernorm.weight.copy_(gain)
        self.model.model.norm.weight.copy_(gain)

    def _set_junk(self, generator: torch.Generator, mixing: bool) -> None:
        embedding = self.model.model.embed_tokens.weight
        embedding[:, JUNK:] = _drawn(generator, len(embedding), WIDTH - JUNK)
        embedding[:, ONE] = _CONSTANT
        for block in self.model.model.layers:
            attention, mlp = block.self_attn, block.mlp
            for part in (attention.q_proj, attention.k_proj) if mixing else ():
                part.weight[:, JUNK:] = _drawn(generator, WIDTH, WIDTH - JUNK)
            attention.v_proj.weight[:, JUNK:] = _drawn(generator, WIDTH, WIDTH - JUNK) / 4
            attention.o_proj.weight[JUNK:] = _drawn(generator, WIDTH - JUNK, WIDTH) / 4
            rest = slice(1, NEURONS)  # neuron 0 is the one that is set by hand
            mlp.gate_proj.weight[rest, JUNK:] = _drawn(generator, NEURONS - 1, WIDTH - JUNK) / 4
            mlp.up_proj.weight[rest, ONE] = 1.0  # plain ReLUs: products of junk would grow
            mlp.down_proj.weight[JUNK:, rest] = _drawn(generator, WIDTH - JUNK, NEURONS - 1) / 4

    def _block(self, layer: int) -> Any:
        if not 0 <= layer < self.layers:
            raise AnatomyError(
                f"layer {layer}: this model has layers 0 to {self.layers - 1}; there is no such "
                f"layer"
            )
        return self.model.model.layers[layer]

    @torch.no_grad()
    def token(self, word: str, channels: Mapping[int, float]) -> None:
        """Set what the embedding of a word (one token, with the space before it) holds."""
        row = self.model.model.embed_tokens.weight[self.id(word)]
        for channel, value in channels.items():
            row[channel] = value

    def id(self, word: str) -> int:
        """The id of a word that is one token."""
        (found,) = self.tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        return int(found)

    @torch.no_grad()
    def neuron(
        self,
        layer: int,
        gate: Mapping[int, float],
        writes: Mapping[int, float],
        up: Mapping[int, float] | None = None,
    ) -> None:
        """Set neuron 0 of a layer's MLP: ``relu(gate · x) * (up · x)`` times ``writes``.

        Parameters
        ----------
        gate, writes : mapping of channel to weight
        up : mapping of channel to weight, optional
            The number 1 where it is left out.
        """
        mlp = self._block(layer).mlp
        mlp.gate_proj.weight[0] = _row(gate)
        mlp.up_proj.weight[0] = _row({ONE: 1.0} if up is None else up)
        mlp.down_proj.weight[:, 0] = _row(writes)

    @torch.no_grad()
    def head(
        self,
        layer: int,
        head: int,
        *,
        query: int | None,
        key: int,
        value: int,
        writes: Mapping[int, float],
    ) -> None:
        """Set one attention head: it reads one channel of the tokens that it looks at.

        Parameters
        ----------
        query, key : int
            Channels: the attention logit is ``SHARP`` times their product. With ``query=None`` all
            tokens are looked at alike.
        value : int
            The channel that is read.
        writes : mapping of channel to weight
        """
        attention = self._block(layer).self_attn
        if not 0 <= head < HEADS:
            raise AnatomyError(f"head {head}: this model has heads 0 to {HEADS - 1} in every layer")
        own = slice(head * _HEAD_WIDTH, (head + 1) * _HEAD_WIDTH)
        for part in (attention.q_proj, attention.k_proj, attention.v_proj):
            part.weight[own] = 0
        attention.o_proj.weight[:, own] = 0
        if query is not None:
            attention.q_proj.weight[own.start + _STILL, query] = SHARP * _HEAD_WIDTH**0.5
            attention.k_proj.weight[own.start + _STILL, key] = 1.0
        attention.v_proj.weight[own.start, value] = 1.0
        attention.o_proj.weight[:, own.start] = _row(writes)

    def signal(self, name: str) -> ClassifierRM:
        """Wrap the model as it stands now; its quick check is run."""
        return wrap_hf_model(self.model, self.tokenizer, source=f"organism {name}")


def _drawn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def _row(entries: Mapping[int, float]) -> Tensor:
    row = torch.zeros(WIDTH)
    for channel, weight in entries.items():
        row[channel] = weight
    return row
