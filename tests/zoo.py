"""Tiny random classifiers of every decoder and encoder type that reward models use.

``make`` builds one by its name in ``ALL``; ``tokenizer_for`` gives the tokenizer that fits it.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from families import BOS, EOS, ITEMS, PAD, make_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast
from zoo_entries import DECODERS, ENCODERS, UNUSED, VARIANTS, Build

from reward_lens.backbone.gpt2_vocabulary import byte_symbols
from reward_lens.data import Item

Floats = npt.NDArray[np.float64]

GROUPS = {"decoders": DECODERS, "encoders": ENCODERS, "variants": VARIANTS}
ALL: dict[str, Build] = {**DECODERS, **ENCODERS, **VARIANTS}
EXACT = 1e-5  # of the range of the scores: what reordered float32 sums differ by
ONE_BATCH = 10**9  # tokens
SIZES = (1, 2, 3, 7)


def make(name: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A tiny random classifier of a zoo entry, in evaluation mode.

    Parameters
    ----------
    name : str
        A key of ``ALL``.
    changes
        Attributes of the configuration (of its text part, in a model that has one) to set first.
    """
    config = ALL[name]()
    for key, value in changes.items():
        owner = config if hasattr(config, key) else config.get_text_config()
        if not hasattr(owner, key):
            raise KeyError(f"{name}: its configuration has no {key!r}")
        setattr(owner, key, value)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = AutoModelForSequenceClassification.from_config(config)
        for p in model.parameters():
            if p.dim() == 1:  # fresh biases of 0 and gains of 1 would hide an error
                p += 0.1 * torch.randn(p.shape)
        # A head as small as a fresh one would let rounding drown a margin.
        _last_linear(model, config.num_labels).weight.normal_()
    return model.to(dtype).eval()


def _last_linear(model: nn.Module, rows: int) -> nn.Linear:
    fitting = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == rows]
    return fitting[-1]


@functools.cache
def _pair_core() -> str:
    symbols = {s: i for i, s in enumerate(byte_symbols())}
    extra = {"[PAD]": PAD, "[CLS]": BOS, "[SEP]": EOS, "[UNK]": UNUSED}
    core = Tokenizer(models.BPE(vocab={**symbols, **extra}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", BOS), ("[SEP]", EOS)],
    )
    return str(core.to_str())


def make_pair_tokenizer(token_types: bool = True) -> Any:
    """A byte tokenizer in the manner of BERT: ``[CLS] a [SEP] b [SEP]``."""
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_pair_core()),
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        clean_up_tokenization_spaces=False,
        model_input_names=[names[0], "token_type_ids", names[1]] if token_types else names,
    )


def is_encoder(name: str) -> bool:
    return name.split(",")[0] in ENCODERS


# Encoders whose published tokenizers give token types.
_TYPED = ("bert", "deberta", "deberta-v2", "electra", "albert", "nomic_bert")


def tokenizer_for(name: str) -> Any:
    """The tokenizer that fits a zoo entry: bytes for a decoder, pairs for an encoder."""
    return (
        make_pair_tokenizer(name.split(",")[0] in _TYPED) if is_encoder(name) else make_tokenizer()
    )


def texts(name: str, prompt: str, response: str) -> tuple[str, ...]:
    """What the entry's tokenizer is given for an item: two texts for an encoder, else one."""
    return (prompt, response) if is_encoder(name) else (f"User: {prompt}\nAssistant: {response}",)


@torch.no_grad()
def native_scores(name: str, model: Any, items: Sequence[tuple[str, str]] = ITEMS) -> Floats:
    """The model's own logits on one unpadded text at a time, its rows averaged.

    Text and ids are made here, from the tokenizer alone: nothing of what is judged is used. Every
    text meets a copy of the model, since some models remember the longest text they have seen.
    """
    tokenizer = tokenizer_for(name)
    found = []
    for item in items:
        row = tokenizer(*texts(name, *item), return_tensors="pt")
        found.append(float(copy.deepcopy(model)(**row).logits.double().mean()))
    return np.array(found)


def scores_in(size: int, signal: Any, items: Sequence[Any] = ITEMS) -> Floats:
    """The signal's scores, the items taken ``size`` at a time, each lot in one batch."""
    lots = [list(items[i : i + size]) for i in range(0, len(items), size)]
    scored = [signal.score(lot, batch_tokens=ONE_BATCH).value.values for lot in lots]
    return np.concatenate(scored).astype(np.float64)


def batch_gap(signal: Any, items: Sequence[Any] = ITEMS) -> float:
    """Largest difference between the scores of an item in batches of ``SIZES``."""
    return float(np.ptp([scores_in(size, signal, items) for size in SIZES], axis=0).max())


def padding_gap(signal: Any, items: Sequence[Any] = ITEMS) -> float:
    """Largest change of a score when the same ids are given with padding on the left or right."""
    plain = [e.ids.tolist() for e in signal.encode(items)]
    left = [[PAD] * (3 + k) + ids for k, ids in enumerate(plain)]
    right = [ids + [PAD] * (9 - k % 9) for k, ids in enumerate(plain)]
    rows = [[Item(ids=tuple(ids)) for ids in given] for given in (plain, left, right)]
    return float(np.ptp([scores_in(len(plain), signal, given) for given in rows], axis=0).max())
