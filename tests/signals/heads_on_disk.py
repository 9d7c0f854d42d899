"""Every head convention as a folder on disk, and its formula written out by hand.

The trunk's states come from the base model; everything after them is numpy in float64 here, and
shares no code with the library.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from families import EOS, VOCAB, make_tokenizer
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
)

WIDTH = 16
#: Pad is eos, and eos ends both turns: every read rule gives another token here.
ROW = [5, 60, EOS, 70, 9, 33, EOS]
LAST, NON_PAD, BEFORE_PAD = 6, 5, 1

_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": EOS,
    "bos_token_id": 257,
    "eos_token_id": EOS,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**_COMMON, num_key_value_heads=1),
    "mistral": lambda: MistralConfig(**_COMMON, num_key_value_heads=1),
    "qwen2": lambda: Qwen2Config(**_COMMON, num_key_value_heads=1),
    "gemma": lambda: GemmaConfig(**_COMMON, num_key_value_heads=1, head_dim=8),
    "gpt_neox": lambda: GPTNeoXConfig(**_COMMON),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB, n_embd=WIDTH, n_layer=2, n_head=2, n_positions=256, pad_token_id=EOS,
        bos_token_id=257, eos_token_id=EOS,
    ),
}  # fmt: skip
Tensors = dict[str, torch.Tensor]
#: From states ``[length, width]``, ids and the head's tensors as float64 arrays to the rows.
Formula = Callable[[np.ndarray, list[int], dict[str, np.ndarray]], Any]


@dataclass
class Case:
    """One layout: the head's tensors, where the body stands, and what the score is."""

    name: str
    head: str
    tensors: Callable[[], Tensors]
    formula: Formula
    family: str = "llama"
    prefix: str = "model."
    architecture: str = "LlamaForSequenceClassification"
    config: dict[str, Any] = field(default_factory=dict)
    extra: Tensors = field(default_factory=dict)
    side: bool = False
    sign: float = 1.0
    composite: Formula | None = None
    row: list[int] = field(default_factory=lambda: ROW)
    harmless: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def draw(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def make_base(family: str, seed: int = 0) -> Any:
    """A base model with shifted norms, so that leaving one out shows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        base = AutoModel.from_config(CONFIGS[family]())
        with torch.no_grad():
            for p in base.parameters():
                p.mul_(3.0) if p.dim() > 1 else p.add_(0.1 * torch.randn(p.shape))
    return base.eval()


def write(folder: Path, case: Case, dtype: torch.dtype = torch.float32) -> Any:
    """Write a case to disk; returns the base model it is made of."""
    base = make_base(case.family).to(dtype)
    body = {f"{case.prefix}{k}": v.clone() for k, v in base.state_dict().items()}
    head = {k: v.to(dtype) if v.is_floating_point() else v for k, v in case.tensors().items()}
    stored = {**body, **case.extra, **({} if case.side else head)}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    if case.side:
        save_file(head, folder / "value_head.safetensors", metadata={"format": "pt"})
    config = json.loads(base.config.to_json_string(use_diff=False))
    for key in ("id2label", "label2id", "num_labels"):
        config.pop(key, None)
    config.update(architectures=[case.architecture], dtype=str(dtype).removeprefix("torch."))
    (folder / "config.json").write_text(json.dumps({**config, **case.config}))
    make_tokenizer().save_pretrained(folder)
    return base


def edit(folder: Path, change: Callable[[Tensors], Any], file: str = "model.safetensors") -> None:
    tensors = load_file(folder / file)
    change(tensors)
    save_file(tensors, folder / file, metadata={"format": "pt"})


@torch.no_grad()
def states(base: Any, row: list[int]) -> np.ndarray:
    return base(input_ids=torch.tensor([row])).last_hidden_state[0].double().numpy()


def by_hand(case: Case, base: Any, formula: Formula | None = None) -> np.ndarray:
    head = {k: v.double().numpy() for k, v in case.tensors().items()}
    value = (formula or case.formula)(states(base, case.row), case.row, head)
    return np.atleast_1d(np.asarray(value, dtype=np.float64))


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def linear(key: str, where: int) -> Formula:
    """Rows of ``key.weight`` (and ``key.bias`` if there is one) at an index."""

    def rows(h: np.ndarray, ids: list[int], t: dict[str, np.ndarray]) -> np.ndarray:
        return t[f"{key}.weight"] @ h[where] + t.get(f"{key}.bias", 0.0)

    return rows


def two_layers(key: str, where: int) -> Formula:
    def rows(h: np.ndarray, ids: list[int], t: dict[str, np.ndarray]) -> np.ndarray:
        inner = relu(t[f"{key}.0.weight"] @ h[where] + t[f"{key}.0.bias"])
        return t[f"{key}.2.weight"] @ inner + t[f"{key}.2.bias"]

    return rows


def mlp_tensors(key: str, inner: int) -> Tensors:
    return {
        f"{key}.0.weight": draw(inner, WIDTH),
        f"{key}.0.bias": draw(inner, seed=2),
        f"{key}.2.weight": draw(1, inner, seed=3),
        f"{key}.2.bias": draw(1, seed=4),
    }


def start_of(ids: list[int], pattern: list[int]) -> int:
    found = [k for k in range(len(ids)) if ids[k : k + len(pattern)] == pattern]
    return found[-1]


def armo_gate(h: np.ndarray, t: dict[str, np.ndarray]) -> np.ndarray:
    for k in range(3):
        h = t[f"gating.layers.{k}.weight"] @ h + t[f"gating.layers.{k}.bias"]
        h = relu(h) if k < 2 else h
    return softmax(h / 10.0) * t["gating.logit_scale"][0]


def armo_score(pattern: list[int]) -> Formula:
    def score(h: np.ndarray, ids: list[int], t: dict[str, np.ndarray]) -> float:
        rewards = t["regression_layer.weight"] @ h[-1]
        gate = armo_gate(h[start_of(ids, pattern)], t)
        return float((gate * (rewards @ t["reward_transform_matrix"])).sum())

    return score


def armo_tensors(rows: int = 4) -> Tensors:
    inner = {"0": (7, WIDTH), "1": (6, 7), "2": (rows, 6)}
    gate: Tensors = {}
    for k, shape in inner.items():
        gate[f"gating.layers.{k}.weight"] = draw(*shape)
        gate[f"gating.layers.{k}.bias"] = draw(shape[0], seed=5)
    return {
        **gate,
        "gating.logit_scale": torch.tensor([1.7]),
        "regression_layer.weight": draw(rows, WIDTH),
        "reward_transform_matrix": torch.eye(rows) + 0.1 * draw(rows, rows, seed=9),
    }


def qrm_tensors(rows: int = 3, quantiles: int = 5) -> Tensors:
    norm = {
        "weight": draw(7), "bias": draw(7, seed=2), "running_mean": draw(7, seed=3),
        "running_var": draw(7, seed=4).abs() + 0.5,
    }  # fmt: skip
    return {
        "gating.layers.0.weight": draw(7, WIDTH),
        **{f"gating.layers.2.{k}": v for k, v in norm.items()},
        "gating.layers.2.num_batches_tracked": torch.tensor(3),
        "gating.layers.3.weight": draw(rows, 7),
        "gating.layers.3.bias": draw(rows),
        "gating.logit_scale": torch.tensor([0.8]),
        "regression_layer.weight": draw(rows * quantiles, WIDTH),
        "reward_transform_matrix": torch.eye(rows) - 0.2 * draw(rows, rows, seed=9),
    }


def qrm_rows(where: int, rows: int = 3, quantiles: int = 5) -> Formula:
    def formula(h: np.ndarray, ids: list[int], t: dict[str, np.ndarray]) -> np.ndarray:
        flat = t["regression_layer.weight"] @ h[where]
        return np.array([flat[k * quantiles : (k + 1) * quantiles].mean() for k in range(rows)])

    return formula


def qrm_score(where: int, pattern: list[int]) -> Formula:
    def score(h: np.ndarray, ids: list[int], t: dict[str, np.ndarray]) -> float:
        rewards = qrm_rows(where)(h, ids, t)
        z = relu(t["gating.layers.0.weight"] @ h[start_of(ids, pattern)])
        n = {k.rsplit(".", 1)[1]: v for k, v in t.items() if k.startswith("gating.layers.2.")}
        z = (z - n["running_mean"]) / np.sqrt(n["running_var"] + 1e-5) * n["weight"] + n["bias"]
        z = t["gating.layers.3.weight"] @ z + t["gating.layers.3.bias"]
        gate = softmax(z / 10.0) * t["gating.logit_scale"][0]
        return float((gate * (rewards @ t["reward_transform_matrix"])).sum())

    return score


def beaver(kind: str) -> Formula:
    def rows(h: np.ndarray, ids: list[int], t: dict[str, np.ndarray]) -> np.ndarray:
        x, spread = t["score_head.weight"] @ h[LAST], np.sqrt(t["normalizer.var"])
        if kind == "reward":
            return (x - t["normalizer.mean"]) / spread
        return x / spread if kind == "cost" else x

    return rows


def beaver_tensors() -> Tensors:
    return {
        "score_head.weight": draw(1, WIDTH),
        "normalizer.mean": torch.tensor([0.7]),
        "normalizer.var": torch.tensor([2.25]),
        "normalizer.count": torch.tensor([11]),
    }


LLAMA_3 = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
_PATTERN = [int(i) for i in make_tokenizer().encode(LLAMA_3, add_special_tokens=False)]
ARMO_ROW = [4, 8, *_PATTERN, 15, *_PATTERN, 16, 23]
QRM_ROW = [7, 1, 2, 3, 50, 1, 2, 3, 60, EOS, 9]


def _one(key: str, bias: bool = False) -> Callable[[], Tensors]:
    extra = {f"{key}.bias": draw(1, seed=7)} if bias else {}
    return lambda: {f"{key}.weight": draw(1, WIDTH), **extra}


def _rows(key: str, n: int) -> Callable[[], Tensors]:
    return lambda: {f"{key}.weight": draw(n, WIDTH)}


_LM = {"lm_head.weight": draw(VOCAB, WIDTH)}
CASES = [
    Case("score", "score", _one("score"), linear("score", NON_PAD)),
    Case(
        "score, three rows", "score", _rows("score", 3), linear("score", NON_PAD),
        config={"id2label": {"0": "help", "1": "truth", "2": "brevity"}},
    ),
    Case(
        "openrlhf score", "score", _one("score"),
        lambda h, ids, t: (t["score.weight"] @ h[LAST] - 0.25) / 1.5,
        config={"value_head_prefix": "score", "normalize_reward": True, "mean": 0.25, "std": 1.5},
        architecture="LlamaModel",
    ),
    Case("value_head", "value_head", _one("value_head"), linear("value_head", LAST),
         architecture="LLMForSequenceRegression"),
    Case("reward_head", "reward_head", _one("reward_head", True), linear("reward_head", LAST),
         family="mistral", architecture="MistralModel"),
    Case("reward_head, no bias", "reward_head", _one("reward_head"), linear("reward_head", LAST)),
    Case("value head of TRL", "v_head.summary", _one("v_head.summary", True),
         linear("v_head.summary", LAST), extra=_LM, architecture="LlamaForCausalLM"),
    Case("value head of TRL, wrapped", "v_head.summary", _one("v_head.summary", True),
         linear("v_head.summary", LAST), prefix="pretrained_model.model.", family="qwen2",
         extra={"pretrained_model.lm_head.weight": draw(VOCAB, WIDTH)}),
    Case("value head in its own file", "v_head.summary", _one("v_head.summary", True),
         linear("v_head.summary", LAST), side=True, extra=_LM, architecture="LlamaForCausalLM"),
    Case("GRM", "v_head.summary mlp", lambda: mlp_tensors("v_head.summary", 11),
         two_layers("v_head.summary", LAST), extra=_LM, architecture="LlamaForCausalLM"),
    Case("Starling", "v_head", _one("v_head"), linear("v_head", BEFORE_PAD), prefix="transformer."),
    Case("UltraRM", "regression_head", _one("regression_head"), linear("regression_head", LAST),
         architecture="LlamaRewardModel"),
    Case("Beaver reward", "score_head", beaver_tensors, beaver("reward"),
         config={"score_type": "reward", "do_normalize": True}, architecture="LlamaForScore",
         harmless=("normalizer.count",)),
    Case("Beaver cost", "score_head", beaver_tensors, beaver("cost"), sign=-1.0,
         config={"score_type": "cost", "do_normalize": True}, architecture="LlamaForScore",
         harmless=("normalizer.count", "normalizer.mean")),
    Case("Beaver, not normalised", "score_head", beaver_tensors, beaver("no"),
         config={"score_type": "reward", "do_normalize": False}, architecture="LlamaForScore",
         harmless=("normalizer.count", "normalizer.mean", "normalizer.var")),
    Case("Beaver with a bias, gemma", "score_head", _one("score_head", True),
         linear("score_head", LAST), config={"score_type": "critic", "bias": True}, family="gemma",
         architecture="GemmaForScore"),
    Case("INF-ORM", "score mlp", lambda: mlp_tensors("score", WIDTH),
         two_layers("score", BEFORE_PAD), architecture="INFORMForSequenceClassification"),
    Case("Qwen2.5-Math-RM", "score mlp", lambda: mlp_tensors("score", WIDTH),
         two_layers("score", LAST), family="qwen2", architecture="Qwen2ForRewardModel",
         config={"model_type": "qwen2_rm"}),
    Case("ArmoRM", "gated", armo_tensors, linear("regression_layer", -1), row=ARMO_ROW,
         composite=armo_score(_PATTERN), architecture="LlamaForRewardModelWithGating",
         config={"id2label": {str(k): f"objective-{k}" for k in range(4)}}),
    Case("QRM", "gated", qrm_tensors, qrm_rows(8), row=QRM_ROW,
         composite=qrm_score(8, [1, 2, 3]), architecture="LlamaForRewardModelWithGating31",
         config={"num_quantiles": 5, "gating_token_pattern": [1, 2, 3]},
         harmless=("gating.layers.2.num_batches_tracked",)),
    Case("rows without a gate", "regression_layer", _rows("regression_layer", 5),
         linear("regression_layer", NON_PAD), architecture="MultiObjective"),
    Case("quantiles without a gate", "regression_layer", _rows("regression_layer", 15),
         qrm_rows(NON_PAD), config={"num_quantiles": 5}, architecture="MultiObjective"),
    Case("OpenAssistant, last", "out_proj", _one("out_proj", True), linear("out_proj", LAST),
         family="gpt_neox", prefix="gpt_neox.", architecture="GPTNeoXRewardModel",
         config={"model_type": "gpt_neox_reward_model", "pooling": "last"}),
    Case("OpenAssistant, mean", "out_proj", _one("out_proj", True),
         lambda h, ids, t: t["out_proj.weight"] @ h.mean(0) + t["out_proj.bias"],
         family="gpt_neox", prefix="gpt_neox.", architecture="GPTNeoXRewardModel",
         config={"model_type": "gpt_neox_reward_model", "pooling": "mean"}),
    Case("value_head on GPT-2", "value_head", _one("value_head"), linear("value_head", LAST),
         family="gpt2", prefix="transformer.", architecture="GPT2Model"),
]  # fmt: skip
