"""Encoder classifiers of transformers' own: heads by hand, or refused by the key at fault."""

from __future__ import annotations

import json
from math import erf

import numpy as np
import pytest
import torch
from families import VOCAB, make_tokenizer
from heads_on_disk import ROW, WIDTH, edit
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    RobertaConfig,
)

from reward_lens.errors import CheckpointError
from reward_lens.signals.checkpoint_model import read_checkpoint

_COMMON = {
    "vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "pad_token_id": 256, "max_position_embeddings": 64, "num_labels": 1,
    "type_vocab_size": 2,
}  # fmt: skip


def affine(t, key, x):
    return t[f"{key}.weight"] @ x + t[f"{key}.bias"]


def gelu(x):
    return np.array([0.5 * v * (1.0 + erf(v / np.sqrt(2.0))) for v in x])


def bert(h, t):
    return affine(t, "classifier", np.tanh(affine(t, "bert.pooler.dense", h[0])))


def roberta(h, t):
    return affine(t, "classifier.out_proj", np.tanh(affine(t, "classifier.dense", h[0])))


def deberta(h, t):
    return affine(t, "classifier", gelu(affine(t, "pooler.dense", h[0])))


def distilbert(h, t):
    inner = np.maximum(affine(t, "pre_classifier", h[0]), 0.0)
    return affine(t, "classifier", inner)


ENCODERS = {
    "bert": (lambda: BertConfig(**_COMMON), bert, ["classifier.weight", "classifier.bias"]),
    "roberta": (
        lambda: RobertaConfig(**{**_COMMON, "pad_token_id": 1}), roberta,
        [f"classifier.{m}.{k}" for m in ("dense", "out_proj") for k in ("weight", "bias")],
    ),
    "deberta-v2": (
        lambda: DebertaV2Config(**_COMMON, pooler_hidden_size=WIDTH), deberta,
        [f"{m}.{k}" for m in ("pooler.dense", "classifier") for k in ("weight", "bias")],
    ),
    "distilbert": (
        lambda: DistilBertConfig(
            vocab_size=VOCAB, dim=WIDTH, hidden_dim=24, n_layers=2, n_heads=2, num_labels=1,
            max_position_embeddings=64, pad_token_id=256,
        ), distilbert,
        [f"{m}.{k}" for m in ("pre_classifier", "classifier") for k in ("weight", "bias")],
    ),
}  # fmt: skip
KEYS = [pytest.param(n, k, id=f"{n}-{k}") for n, (_, _, keys) in ENCODERS.items() for k in keys]


def write(folder, name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_config(ENCODERS[name][0]()).eval()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.3 * torch.randn(p.shape))
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_scores_as_its_formula(tmp_path, name):
    model = write(tmp_path, name)
    read = read_checkpoint(tmp_path, dtype="float32")
    ids = torch.tensor([ROW])
    with torch.no_grad():
        hidden = model.base_model(input_ids=ids)[0][0].double().numpy()
        logits = read.model(input_ids=ids).logits[0].numpy()
    tensors = {k: v.double().numpy() for k, v in model.state_dict().items()}
    np.testing.assert_allclose(logits, ENCODERS[name][1](hidden, tensors), rtol=1e-5, atol=1e-5)
    assert (read.convention.head, read.convention.rule) == ("classifier", None)
    assert read.architecture == type(model).__name__


@pytest.mark.parametrize(("name", "key"), KEYS)
def test_an_encoders_head_key_at_fault_is_named(tmp_path, name, key):
    write(tmp_path, name)
    whole = (tmp_path / "model.safetensors").read_bytes()
    edit(tmp_path, lambda t: t.pop(key))
    with pytest.raises(CheckpointError, match=rf"missing .*random\): {key}\n"):
        read_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(whole)
    edit(tmp_path, lambda t: t.update({f"other.{key}": t.pop(key)}))
    with pytest.raises(CheckpointError, match=rf"(?s): {key}\n.*used by nothing: .*other.{key}"):
        read_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(whole)
    edit(tmp_path, lambda t: t.update({key: torch.cat([t[key], t[key][..., :1]], -1)}))
    with pytest.raises(CheckpointError, match=rf"of another shape: {key}"):
        read_checkpoint(tmp_path)


def test_one_row_where_the_configuration_says_two_labels(tmp_path):
    """transformers reads a configuration without labels as two; the head has one row."""
    write(tmp_path, "bert")
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("id2label", "label2id"):
        config.pop(key)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_checkpoint(tmp_path).model.config.num_labels == 1
