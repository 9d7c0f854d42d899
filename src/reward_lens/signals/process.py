"""Models built in this process: the tiny classifier that examples and tests run on."""

from __future__ import annotations

from typing import Any

from reward_lens.evidence.arguments import checked_seed
from reward_lens.signals.classifier import ClassifierRM

_TINY = {
    "vocab_size": 50257,
    "pad_token_id": 50256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}


def _tiny_sequence_classifier(seed: int = 0, num_labels: int = 1) -> tuple[Any, Any]:
    """Build a two-layer Llama classifier with random weights, and the GPT-2 tokenizer.

    Parameters
    ----------
    seed : int
        Seeds torch for the initialisation; the caller's random state is left as it was.
    num_labels : int
        Rows of the head.

    Returns
    -------
    model, tokenizer
    """
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForSequenceClassification

    from reward_lens.backbone.gpt2_vocabulary import gpt2_tokenizer

    seed = checked_seed(seed)
    ids = {"bos_token_id": 50256, "eos_token_id": 50256}
    config = LlamaConfig(**_TINY, **ids, num_labels=num_labels, attn_implementation="eager")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForSequenceClassification(config)
    return model.eval(), gpt2_tokenizer()


def from_tiny(seed: int = 0) -> ClassifierRM:
    """A real two-layer Llama reward model with random weights, on the CPU, without a download.

    Its scores mean nothing; it is for examples and tests.

    Parameters
    ----------
    seed : int

    Returns
    -------
    ClassifierRM
    """
    from reward_lens.signals.wrap import wrap_hf_model

    seed = checked_seed(seed)
    model, tokenizer = _tiny_sequence_classifier(seed)
    signal = wrap_hf_model(model, tokenizer, source=f"from_tiny(seed={seed})")
    note = "random weights: its numbers show that the plumbing works, and nothing else"
    return signal.with_meta(notes=(*signal.meta.notes, note))
