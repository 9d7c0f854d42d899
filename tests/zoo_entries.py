"""The configurations of the zoo: every decoder and encoder type that reward models use, made tiny.

Hidden size 32, three blocks, four query heads, two key heads where the type allows it, the
vocabulary and special ids of ``families``; a type that mixes kinds of block has one of each.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from families import BOS, EOS, PAD, VOCAB
from transformers import CONFIG_MAPPING, PreTrainedConfig

UNUSED = 259  # the only id below VOCAB that no text contains
LENGTH = 256

Build = Callable[[], PreTrainedConfig]

_IDS = {
    "vocab_size": VOCAB,
    "num_labels": 1,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
# Weights of 0.02 would leave a layer of this width with next to no say in the score.
_COMMON = {
    **_IDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.2,
}
_GQA = {"num_key_value_heads": 2}
_WINDOW = {**_GQA, "sliding_window": 16}
_MIXED = {**_WINDOW, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
_ROUTED = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_QWEN_MOE = {
    **_GQA,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
_DELTA = {
    **_GQA,
    "head_dim": 16,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_VISION = {"hidden_size": 16, "intermediate_size": 16, "patch_size": 14}
# The names that the GPT-2 line of configurations uses for the same sizes.
_GPT2 = {**_IDS, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": LENGTH}
_GPT2["initializer_range"] = 0.2


def _build(model_type: str, options: dict[str, Any]) -> PreTrainedConfig:
    # A configuration keeps and changes the lists and dictionaries it is given.
    return CONFIG_MAPPING[model_type](**copy.deepcopy(options))


def _own(model_type: str, **options: Any) -> Build:
    return functools.partial(_build, model_type, {**_IDS, **options})


def _of(model_type: str, **options: Any) -> Build:
    return _own(model_type, **{**_COMMON, **options})


def _gpt2(model_type: str, **options: Any) -> Build:
    return _own(model_type, **{**_GPT2, **options})


def _wrapped(model_type: str, text: dict[str, Any], vision: dict[str, Any], **ids: int) -> Build:
    """A model of text and pictures, given text only."""
    parts = {"text_config": {**_COMMON, **text}, "vision_config": {**_VISION, **vision}}
    return functools.partial(
        _build, model_type, {**parts, "num_labels": 1, "pad_token_id": PAD, **ids}
    )


_QWEN3_5_VISION = {"depth": 1, "num_heads": 2, "out_hidden_size": 32, "num_position_embeddings": 16}
_BLOOM = {"hidden_size": 32, "n_layer": 3, "n_head": 4, "initializer_range": 0.2}
_MPT = {"d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": LENGTH, "initializer_range": 0.2}
_NEO = {
    "hidden_size": 32,
    "num_layers": 3,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1], [["global"], 1]],
    "window_size": 16,
    "max_position_embeddings": LENGTH,
    "initializer_range": 0.2,
}
_MODERN = {
    "local_attention": 16,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "cls_token_id": BOS,
    "sep_token_id": EOS,
}
_OPT = {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.2}
# Two blocks of the kind whose attention is shared, since the sharing is what is odd in them.
_ZAMBA = {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2}

DECODERS: dict[str, Build] = {
    # The shared head of transformers: one linear map, read at the last token that is not padding.
    "arcee": _of("arcee", **_GQA),
    "axk1": _of("axk1", **_MLA, **_ROUTED, mlp_layer_types=["dense", "sparse", "sparse"]),
    "axk2": _of(
        "axk2",
        **_MLA,
        **_ROUTED,
        mlp_layer_types=["dense", "sparse", "sparse"],
        index_head_dim=8,
        index_n_heads=2,
        gated_norm_rank=4,
    ),
    "cohere_compass_text": _of(
        "cohere_compass_text",
        **_WINDOW,
        rope_parameters={"full_attention": _ROPE, "sliding_attention": _ROPE},
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "deepseek_v2": _of("deepseek_v2", **_MLA, **_ROUTED, first_k_dense_replace=1),
    "deepseek_v3": _of("deepseek_v3", **_MLA, **_ROUTED, first_k_dense_replace=1),
    "diffllama": _of("diffllama", **_GQA),
    "doge": _of("doge", **_GQA),
    "exaone4": _of("exaone4", **_MIXED),
    "gemma": _of("gemma", **_GQA, head_dim=16),
    "gemma2": _of("gemma2", **_MIXED, head_dim=16),
    "gemma3": _wrapped(
        "gemma3",
        {**_MIXED, "head_dim": 16},
        {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28},
        mm_tokens_per_image=4,
        boi_token_index=UNUSED,
        eoi_token_index=UNUSED,
        image_token_index=UNUSED,
    ),
    "gemma3_text": _of("gemma3_text", **_MIXED, head_dim=16),
    "glm": _of("glm", **_GQA, head_dim=16),
    "glm4": _of("glm4", **_GQA, head_dim=16),
    "gpt_oss": _of("gpt_oss", **_MIXED, **_EXPERTS, head_dim=16),
    "gptj": _gpt2("gptj", rotary_dim=4),
    "helium": _of("helium", **_GQA, head_dim=8),
    "hunyuan_v1_dense": _of("hunyuan_v1_dense", **_GQA, head_dim=8),
    "hunyuan_v1_moe": _of("hunyuan_v1_moe", **_GQA, head_dim=8, num_experts=4, moe_topk=2),
    "jamba": _of(
        "jamba",
        **_GQA,
        num_experts=4,
        num_experts_per_tok=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_d_state=4,
    ),
    "jetmoe": _of("jetmoe", **_EXPERTS, num_key_value_heads=2, kv_channels=8),
    "llama": _of("llama", **_GQA),
    "minicpm3": _of("minicpm3", **_MLA),
    "minimax": _of(
        "minimax",
        **_GQA,
        **_EXPERTS,
        head_dim=8,
        block_size=16,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
    ),
    "ministral": _of("ministral", **_MIXED, head_dim=8),
    "ministral3": _of("ministral3", **_GQA, head_dim=8),
    "mistral": _of("mistral", **_WINDOW),
    "mistral4": _of("mistral4", **_MLA, **_ROUTED, first_k_dense_replace=1),
    "mixtral": _of("mixtral", **_GQA, **_EXPERTS),
    "nemotron": _of("nemotron", **_GQA),
    "olmo": _of("olmo", **_GQA),
    "olmo2": _of("olmo2", **_GQA),
    "olmo3": _of("olmo3", **_MIXED),
    "persimmon": _of("persimmon"),
    "phi": _of("phi", **_GQA),
    "phi3": _of("phi3", **_GQA),
    "phimoe": _of("phimoe", **_GQA, **_EXPERTS),
    "qwen2": _of("qwen2", **_GQA),
    "qwen2_moe": _of("qwen2_moe", **_QWEN_MOE, shared_expert_intermediate_size=24),
    "qwen3": _of("qwen3", **_GQA, head_dim=16),
    "qwen3_5": _wrapped(
        "qwen3_5",
        _DELTA,
        _QWEN3_5_VISION,
        image_token_id=UNUSED,
        video_token_id=UNUSED,
        vision_start_token_id=UNUSED,
        vision_end_token_id=UNUSED,
    ),
    "qwen3_5_text": _of("qwen3_5_text", **_DELTA),
    "qwen3_moe": _of("qwen3_moe", **_QWEN_MOE, head_dim=16),
    "qwen3_next": _of("qwen3_next", **_QWEN_MOE | _DELTA, shared_expert_intermediate_size=24),
    "seed_oss": _of("seed_oss", **_GQA, head_dim=16),
    "smollm3": _of("smollm3", **_GQA, no_rope_layers=[1, 0, 1]),
    "stablelm": _of("stablelm", **_GQA),
    "starcoder2": _of("starcoder2", **_WINDOW),
    # The same rule in code of their own.
    "bloom": _own("bloom", **_BLOOM),
    "falcon": _of("falcon"),
    "mpt": _own("mpt", **_MPT),
    "gpt2": _gpt2("gpt2"),
    "gpt-sw3": _gpt2("gpt-sw3"),
    "gpt_bigcode": _gpt2("gpt_bigcode", multi_query=False),
    "gpt_neo": _own("gpt_neo", **_NEO),
    "gpt_neox": _of("gpt_neox"),
    "openai-gpt": _gpt2("openai-gpt"),
    "biogpt": _of("biogpt"),
    "zamba": _of("zamba", num_key_value_heads=4, **_ZAMBA, mamba_d_state=4),
    "zamba2": _of("zamba2", **_ZAMBA, mamba_d_state=8, n_mamba_heads=8, chunk_size=16),
    "opt": _of("opt", **_OPT),
    "ctrl": _gpt2("ctrl", dff=48),
    # A dense layer, an activation and a norm before the linear map.
    "modernbert-decoder": _of("modernbert-decoder", **_MODERN),
}

_DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "position_biased_input": False,
}
_DEBERTA_V2 = {**_DEBERTA, "position_buckets": 32, "norm_rel_ebd": "layer_norm"}
_DEBERTA_V2["share_att_key"] = True
# These count positions from the padding id on.
_OFFSET = {"max_position_embeddings": LENGTH + PAD + 1}
_DISTIL = {"dim": 32, "hidden_dim": 48, "n_layers": 3, "n_heads": 4, "initializer_range": 0.2}

_EURO = {**_GQA, "mask_token_id": UNUSED}

ENCODERS: dict[str, Build] = {
    "bert": _of("bert"),
    "roberta": _of("roberta", **_OFFSET, type_vocab_size=1),
    "xlm-roberta": _of("xlm-roberta", **_OFFSET, type_vocab_size=1),
    "deberta": _of("deberta", **_DEBERTA),
    "deberta-v2": _of("deberta-v2", **_DEBERTA_V2),
    "electra": _of("electra", embedding_size=32),
    "distilbert": _own("distilbert", **_DISTIL, max_position_embeddings=LENGTH),
    "albert": _of("albert", embedding_size=16),
    "modernbert": _of("modernbert", **_MODERN),
    "mpnet": _of("mpnet", **_OFFSET),
    "nomic_bert": _of("nomic_bert"),
    "gte": _of("gte"),
    "eurobert": _of("eurobert", **_EURO),
}

_DYNAMIC = {**_ROPE, "rope_type": "dynamic", "factor": 8.0}
_LONGROPE = {
    **_ROPE,
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [1.0, 2.0, 3.0, 4.0],
}

VARIANTS: dict[str, Build] = {
    "bloom, residual after the norm": _own(
        "bloom", **_BLOOM, apply_residual_connection_post_layernorm=True
    ),
    "falcon, new decoder": _of("falcon", new_decoder_architecture=True, num_kv_heads=2),
    "falcon, sequential": _of("falcon", parallel_attn=False, multi_query=False),
    "falcon, alibi and multi-query": _of("falcon", alibi=True, parallel_attn=False),
    "gpt_neox, sequential": _of("gpt_neox", use_parallel_residual=False),
    "stablelm, parallel": _of("stablelm", **_GQA, use_parallel_residual=True),
    "stablelm, query-key norm": _of("stablelm", **_GQA, qk_layernorm=True),
    "opt, norm after": _of("opt", **_OPT, do_layer_norm_before=False),
    "opt, narrow embedding": _of("opt", **{**_OPT, "word_embed_proj_dim": 16}),
    "gpt_bigcode, multi-query": _gpt2("gpt_bigcode", multi_query=True),
    "phi, query-key norm": _of("phi", **_GQA, qk_layernorm=True),
    "gpt2, upcast attention": _gpt2(
        "gpt2", reorder_and_upcast_attn=True, attn_implementation="eager"
    ),
    "llama, three labels": _of("llama", **_GQA, num_labels=3),
    "llama, one layer": _of("llama", **_GQA, num_hidden_layers=1),
    "gpt2, one layer": _gpt2("gpt2", n_layer=1),
    "gemma2, window 8": _of("gemma2", **{**_MIXED, "sliding_window": 8}, head_dim=16),
    "mistral, window 8": _of("mistral", **_GQA, sliding_window=8),
    "qwen2, window 8": _of(
        "qwen2",
        **{**_MIXED, "sliding_window": 8},
        use_sliding_window=True,
    ),
    "minimax, scaled residual": _of(
        "minimax",
        **_GQA,
        **_EXPERTS,
        head_dim=8,
        block_size=16,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        full_attn_alpha_factor=1.3,
        full_attn_beta_factor=0.7,
        linear_attn_alpha_factor=1.2,
        linear_attn_beta_factor=0.8,
        mlp_alpha_factor=1.1,
        mlp_beta_factor=0.9,
    ),
    "axk2, sparse index of 8": _of(
        "axk2",
        **_MLA,
        **_ROUTED,
        mlp_layer_types=["dense", "sparse", "sparse"],
        index_topk=8,
        index_head_dim=8,
        index_n_heads=2,
        gated_norm_rank=4,
    ),
    "nemotron, partial rotary": _of(
        "nemotron",
        **_GQA,
        rope_parameters={**_ROPE, "partial_rotary_factor": 0.25},
    ),
    "mpt, clipped": _own("mpt", **_MPT, attn_config={"clip_qkv": 0.5}),
    "electra, narrow embedding": _of("electra", embedding_size=16),
    "modernbert, mean": _of("modernbert", **_MODERN, classifier_pooling="mean"),
    "eurobert, bos": _of("eurobert", **_EURO, classifier_pooling="bos"),
    "eurobert, mean": _of("eurobert", **_EURO, classifier_pooling="mean"),
    "albert, three groups": _of("albert", embedding_size=16, num_hidden_groups=3),
    "albert, two layers in a group": _of("albert", embedding_size=16, inner_group_num=2),
    "deberta-v2, convolution": _of(
        "deberta-v2", **_DEBERTA_V2, conv_kernel_size=3, conv_act="gelu"
    ),
    "doge, experts": _of("doge", **_GQA, is_moe=True, num_experts=16, num_experts_per_tok=4),
    "llama, dynamic NTK past its limit": _of(
        "llama", **_GQA, rope_parameters=_DYNAMIC, max_position_embeddings=32
    ),
    "phi3, long rope past its limit": _of(
        "phi3", **_GQA, rope_parameters=_LONGROPE, original_max_position_embeddings=32
    ),
}
