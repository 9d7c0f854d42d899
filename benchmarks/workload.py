"""The models, the texts, the calls that are measured, and the bare work they are held against.

The models are Llama sequence classifiers of common shapes with random weights, so their scores mean
nothing; what a forward costs does not depend on the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import GPT2TokenizerFast, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForSequenceClassification

from reward_lens.backbone.gpt2_vocabulary import END_OF_TEXT, vocabulary, vocabulary_and_merges
from reward_lens.data import Item, Pair, Pairs
from reward_lens.instruments import attribution, lens, patch_grid
from reward_lens.signals import ClassifierRM

VOCABULARY = 32_000
#: Padded tokens of one forward, the same for the calls and for their floors.
BATCH_TOKENS = 2048
#: Shortest and longest item, in tokens.
LENGTHS = (32, 256)
#: Hidden size, intermediate size, layers; heads are 64 wide.
SHAPES = {"small": (256, 688, 6), "medium": (768, 2048, 12)}

Work = Callable[[], Any]


def build_model(shape: str) -> tuple[Any, Any]:
    """Build a model with random weights, and a tokenizer of its size: GPT-2's first merges."""
    hidden, intermediate, layers = SHAPES[shape]
    end = VOCABULARY - 1
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=512,
        num_labels=1,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
    )
    torch.manual_seed(0)
    merges = vocabulary_and_merges()[1][: VOCABULARY - 256 - 1]  # 256 bytes, one end of text
    tokenizer = GPT2TokenizerFast(
        vocab=vocabulary(merges), merges=merges, pad_token=END_OF_TEXT, eos_token=END_OF_TEXT
    )
    return LlamaForSequenceClassification(config).eval(), tokenizer


def build_pairs(n: int, lengths: tuple[int, int] = LENGTHS, seed: int = 0) -> Pairs:
    """Pairs of random ids with lengths spread evenly over ``lengths``, ends included.

    The largest batch is therefore the same for every ``n``, but for the numbers of the ids.
    """
    rng = np.random.default_rng(seed)
    spread = rng.permutation(np.linspace(*lengths, 2 * n).round().astype(int))

    def item(length: int) -> Item:
        return Item(ids=tuple(rng.integers(0, VOCABULARY - 1, length).tolist()))

    sides = [item(int(length)) for length in spread]
    return Pairs(
        Pair(chosen, rejected, id=str(k), lineage=str(k))
        for k, (chosen, rejected) in enumerate(zip(sides[:n], sides[n:], strict=True))
    )


def build_equal_pairs(n: int, length: int, shared: int, seed: int = 0) -> Pairs:
    """Pairs of random ids, all of one length, that share their first ids."""
    rng = np.random.default_rng(seed)

    def row(size: int) -> list[int]:
        return [int(i) for i in rng.integers(0, VOCABULARY - 1, size)]

    found = []
    for k in range(n):
        prompt = row(shared)
        chosen, rejected = (Item(ids=(*prompt, *row(length - shared))) for _ in range(2))
        found.append(Pair(chosen, rejected, id=str(k), lineage=str(k)))
    return Pairs(found)


@dataclass(frozen=True)
class Bare:
    """The floor: transformers alone over length-sorted, right-padded batches.

    Attributes
    ----------
    model : LlamaForSequenceClassification
    rows : list of list of int
        The ids of every item.
    """

    model: Any
    rows: Sequence[Sequence[int]]

    def _batches(self) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
        """Indices, lengths ``[batch]`` and last hidden states ``[batch, length, width]``."""
        order = sorted(range(len(self.rows)), key=lambda i: -len(self.rows[i]))
        while order:
            width = len(self.rows[order[0]])
            take, order = order[: BATCH_TOKENS // width], order[BATCH_TOKENS // width :]
            lengths = torch.tensor([len(self.rows[i]) for i in take])
            mask = (torch.arange(width) < lengths[:, None]).long()
            ids = torch.tensor([[*self.rows[i], *[0] * (width - len(self.rows[i]))] for i in take])
            out = self.model.model(input_ids=ids, attention_mask=mask, use_cache=False)
            yield take, lengths, out.last_hidden_state

    @torch.inference_mode()
    def score(self) -> np.ndarray[Any, Any]:
        """Score every item: the head on its last row; float32 ``[item]``."""
        scores = np.empty(len(self.rows), dtype=np.float32)
        for take, lengths, hidden in self._batches():
            last = hidden[torch.arange(len(take)), lengths - 1]
            scores[take] = self.model.score(last)[:, 0].numpy()
        return scores

    @torch.inference_mode()
    def score_prefixes(self) -> np.ndarray[Any, Any]:
        """Score every prefix: the head on all rows; float32 ``[item, position]``, NaN-padded."""
        longest = max(len(r) for r in self.rows)
        scores = np.full((len(self.rows), longest), np.nan, dtype=np.float32)
        for take, lengths, hidden in self._batches():
            values = self.model.score(hidden)[..., 0].numpy()
            for i, length, row in zip(take, lengths.tolist(), values, strict=True):
                scores[i, :length] = row[:length]
        return scores


def calls(signal: ClassifierRM, pairs: Pairs) -> dict[str, Work]:
    """What is measured, by name; see :mod:`benchmarks.targets`."""
    items = [*pairs.chosen, *pairs.rejected]
    return {
        "score": lambda: signal.score(items, batch_tokens=BATCH_TOKENS),
        "score_prefixes": lambda: signal.score_prefixes(items, batch_tokens=BATCH_TOKENS),
        "lens": lambda: lens(signal, pairs, batch_tokens=BATCH_TOKENS),
        "attribution": lambda: attribution(signal, pairs, batch_tokens=BATCH_TOKENS),
        "patch_grid": lambda: patch_grid(signal, pairs, batch_tokens=BATCH_TOKENS),
    }


def floors(model: Any, pairs: Pairs) -> dict[str, Work]:
    """The floor of each call: the bare scores, for prefix scores those of every row."""
    bare = Bare(model, [list(x.ids or ()) for x in (*pairs.chosen, *pairs.rejected)])
    return {
        "score": bare.score,
        "score_prefixes": bare.score_prefixes,
        "lens": bare.score,
        "attribution": bare.score,
    }
