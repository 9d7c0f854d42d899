"""LoRA adapters: merged as their formula says, with the head that they bring, or refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from heads_on_disk import (
    CASES,
    LAST,
    NON_PAD,
    ROW,
    VOCAB,
    WIDTH,
    Case,
    draw,
    edit,
    linear,
    states,
    write,
)
from safetensors.torch import save_file

from reward_lens.errors import CheckpointError, DownloadRefused, LoadError
from reward_lens.signals.checkpoint_model import Wishes, read_checkpoint

WEIGHTS = "adapter_model.safetensors"
LLAMA = Case(
    "base", "none", dict, linear("none", -1), extra={"lm_head.weight": draw(VOCAB, WIDTH)},
    architecture="LlamaForCausalLM",
)  # fmt: skip
GPT2 = Case(
    "base", "none", dict, linear("none", -1), family="gpt2", prefix="transformer.",
    architecture="GPT2LMHeadModel",
)  # fmt: skip
CONFIG = {
    "peft_type": "LORA", "r": 4, "lora_alpha": 6, "bias": "none", "use_dora": False,
    "use_rslora": False, "fan_in_fan_out": False, "task_type": "SEQ_CLS", "lora_dropout": 0.05,
    "modules_to_save": ["score"], "init_lora_weights": True,
}  # fmt: skip


def factors(module, shape, rank=4, seed=0):
    """PEFT's names: ``A`` is [r, in], ``B`` is [out, r]."""
    return {
        f"base_model.model.{module}.lora_A.weight": draw(rank, shape[1], seed=seed),
        f"base_model.model.{module}.lora_B.weight": 0.3 * draw(shape[0], rank, seed=seed + 1),
    }


def adapter(folder, base, tensors, **config):
    folder.mkdir(parents=True, exist_ok=True)
    named = {"base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **named, **config}))
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def read(folder, **wishes):
    return read_checkpoint(folder, dtype="float32", wishes=Wishes(**wishes))


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ROW])).logits[0].numpy()


@torch.no_grad()
def add(base, module, tensors, scale, transpose=False):
    """What the adapter does to one weight, done by hand to the base model in memory."""
    a, b = (tensors[f"base_model.model.{module}.lora_{k}.weight"].double() for k in "AB")
    weight = base.get_submodule(module.split(".", 1)[1]).weight
    update = scale * (b @ a)
    weight.copy_((weight.double() + (update.T if transpose else update)).float())


MODULES = {
    "model.layers.0.self_attn.q_proj": (WIDTH, WIDTH),
    "model.layers.1.mlp.down_proj": (WIDTH, 24),
}
HEAD = "base_model.model.score.weight"


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({}, (1.5, 1.5)),
        ({"use_rslora": True}, (3.0, 3.0)),
        ({"alpha_pattern": {"down_proj": 2}}, (1.5, 0.5)),
        ({"alpha_pattern": {"layers.0.self_attn.q_proj": 10}}, (2.5, 1.5)),
    ],
)
def test_an_adapter_with_its_head(tmp_path, config, scales):
    base = write(tmp_path / "base", LLAMA)
    tensors = {HEAD: draw(1, WIDTH, seed=30)}
    for k, (module, shape) in enumerate(MODULES.items()):
        tensors |= factors(module, shape, seed=k)
    adapter(tmp_path / "adapter", tmp_path / "base", tensors, **config)
    found = read(tmp_path / "adapter")
    for module, scale in zip(MODULES, scales, strict=True):
        add(base, module, tensors, scale)
    expected = tensors[HEAD].double().numpy() @ states(base, ROW)[NON_PAD]
    np.testing.assert_allclose(logits(found.model), expected, rtol=1e-5, atol=1e-5)
    assert found.convention.head == "score"
    assert "merged into its base: 2 weights (down_proj, q_proj)" in found.convention.notes[0]
    assert found.ignored_keys == ("lm_head.weight",)
    assert found.architecture == "LlamaForSequenceClassification"


def test_ranks_may_differ_by_module(tmp_path):
    base = write(tmp_path / "base", LLAMA)
    module = "model.layers.0.self_attn.q_proj"
    tensors = {HEAD: draw(1, WIDTH), **factors(module, (WIDTH, WIDTH), rank=2)}
    adapter(tmp_path / "a", tmp_path / "base", tensors, rank_pattern={"q_proj": 2})
    add(base, module, tensors, 6 / 2)
    expected = tensors[HEAD].double().numpy() @ states(base, ROW)[NON_PAD]
    np.testing.assert_allclose(logits(read(tmp_path / "a").model), expected, rtol=1e-5, atol=1e-5)


def test_transposed_layers_of_gpt2(tmp_path):
    base = write(tmp_path / "base", GPT2)
    module = "transformer.h.1.attn.c_attn"
    tensors = {HEAD: draw(1, WIDTH), **factors(module, (3 * WIDTH, WIDTH))}
    adapter(tmp_path / "a", tmp_path / "base", tensors, fan_in_fan_out=True)
    add(base, module, tensors, 1.5, transpose=True)
    expected = tensors[HEAD].double().numpy() @ states(base, ROW)[NON_PAD]
    np.testing.assert_allclose(logits(read(tmp_path / "a").model), expected, rtol=1e-5, atol=1e-5)


def test_embeddings_and_modules_trained_whole(tmp_path):
    base = write(tmp_path / "base", LLAMA)
    a, b = draw(4, VOCAB), 0.3 * draw(WIDTH, 4)
    stem, norm = "base_model.model.model.embed_tokens.lora_embedding_", draw(WIDTH, seed=8)
    tensors = {
        f"{stem}A": a, f"{stem}B": b, HEAD: draw(1, WIDTH),
        "base_model.model.model.norm.modules_to_save.weight": norm,
    }  # fmt: skip
    adapter(tmp_path / "a", tmp_path / "base", tensors, modules_to_save=["score", "norm"])
    with torch.no_grad():
        base.embed_tokens.weight += 1.5 * (b @ a).T
        base.norm.weight.copy_(norm)
    expected = tensors[HEAD].double().numpy() @ states(base, ROW)[NON_PAD]
    np.testing.assert_allclose(logits(read(tmp_path / "a").model), expected, rtol=1e-5, atol=1e-5)


def test_a_value_head_beside_an_adapter(tmp_path):
    base = write(tmp_path / "base", LLAMA)
    module = "model.layers.0.self_attn.q_proj"
    tensors = factors(module, (WIDTH, WIDTH))
    adapter(tmp_path / "a", tmp_path / "base", tensors, task_type="CAUSAL_LM", modules_to_save=None)
    head = {"v_head.summary.weight": draw(1, WIDTH), "v_head.summary.bias": draw(1)}
    save_file(head, tmp_path / "a" / "value_head.safetensors")
    found = read(tmp_path / "a")
    add(base, module, tensors, 1.5)
    h = states(base, ROW)[LAST]
    expected = (
        head["v_head.summary.weight"].double().numpy() @ h + head["v_head.summary.bias"].item()
    )
    np.testing.assert_allclose(logits(found.model), expected, rtol=1e-5, atol=1e-5)
    assert found.convention.head == "v_head.summary"


def test_an_adapter_on_a_reward_model_uses_the_bases_head(tmp_path):
    case = next(c for c in CASES if c.name == "value_head")
    base = write(tmp_path / "base", case)
    module = "model.layers.0.self_attn.q_proj"
    tensors = factors(module, (WIDTH, WIDTH))
    adapter(tmp_path / "a", tmp_path / "base", tensors, modules_to_save=None)
    add(base, module, tensors, 1.5)
    expected = case.tensors()["value_head.weight"].double().numpy() @ states(base, ROW)[LAST]
    np.testing.assert_allclose(logits(read(tmp_path / "a").model), expected, rtol=1e-5, atol=1e-5)


def test_an_adapter_with_a_vocabulary_row(tmp_path):
    base = write(tmp_path / "base", LLAMA)
    module = "model.layers.0.self_attn.q_proj"
    tensors = factors(module, (WIDTH, WIDTH))
    adapter(tmp_path / "a", tmp_path / "base", tensors, task_type="CAUSAL_LM")
    found = read(tmp_path / "a", head="vocab:0")
    add(base, module, tensors, 1.5)
    expected = LLAMA.extra["lm_head.weight"][[0]].double().numpy() @ states(base, ROW)[LAST]
    np.testing.assert_allclose(logits(found.model), expected, rtol=1e-5, atol=1e-5)


def test_a_bfloat16_base_is_rounded_once(tmp_path):
    write(tmp_path / "base", LLAMA, torch.bfloat16)
    module = "model.layers.0.self_attn.q_proj"
    tensors = {HEAD: draw(1, WIDTH), **factors(module, (WIDTH, WIDTH))}
    adapter(tmp_path / "a", tmp_path / "base", tensors)
    merged = read_checkpoint(tmp_path / "a").model.get_submodule(module).weight
    plain = read_checkpoint(tmp_path / "base", wishes=Wishes(head="vocab:0")).model
    before = plain.base_model.get_submodule(module.split(".", 1)[1]).weight.float()
    a, b = (tensors[f"base_model.model.{module}.lora_{k}.weight"] for k in "AB")
    assert merged.dtype == torch.bfloat16
    torch.testing.assert_close(merged, (before + 1.5 * (b @ a)).bfloat16(), rtol=0, atol=0)


def good(tmp_path, **config):
    write(tmp_path / "base", LLAMA)
    tensors = {HEAD: draw(1, WIDTH)}
    for module, shape in MODULES.items():
        tensors |= factors(module, shape)
    adapter(tmp_path / "a", tmp_path / "base", tensors, **config)
    return tmp_path / "a"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora=True is not supported"),
        ({"bias": "lora_only"}, "bias='lora_only' is not supported"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters="),
        ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa'"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices="),
        ({"r": None}, "r is None"),
    ],
)
def test_what_is_not_added_up_here_is_refused_by_name(tmp_path, config, message):
    with pytest.raises(CheckpointError, match=message):
        read(good(tmp_path, **config))


def test_a_removed_head_is_named(tmp_path):
    folder = good(tmp_path)
    edit(folder, lambda t: t.pop(HEAD), WEIGHTS)
    with pytest.raises(CheckpointError, match=r"missing .*random\): score.weight"):
        read(folder)


def test_a_renamed_head_is_named(tmp_path):
    folder = good(tmp_path)
    edit(folder, lambda t: t.update({"base_model.model.skore.weight": t.pop(HEAD)}), WEIGHTS)
    with pytest.raises(CheckpointError, match=r"(?s)score.weight.*used by nothing: skore.weight"):
        read(folder)


def test_a_head_of_another_shape_is_named(tmp_path):
    folder = good(tmp_path)
    edit(folder, lambda t: t.update({HEAD: draw(1, WIDTH + 1)}), WEIGHTS)
    with pytest.raises(CheckpointError, match=r"of another shape: score.weight"):
        read(folder)


def test_a_factor_without_its_partner_is_named(tmp_path):
    folder = good(tmp_path)
    edit(
        folder,
        lambda t: t.pop("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"),
        WEIGHTS,
    )
    with pytest.raises(CheckpointError, match=r"down_proj.lora_A.weight is missing"):
        read(folder)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (factors("model.layers.7.mlp.up_proj", (24, WIDTH)), r"layers.7.*has no place in the base"),
        (factors("model.layers.0.mlp.up_proj", (9, WIDTH)), r"update of .*up_proj is \[9, 16\]"),
        ({"base_model.model.model.extra.weight": draw(3)}, r"model.extra.weight has no place"),
        (
            {"base_model.model.model.norm.weight": draw(3)},
            r"norm.weight is of another shape: \[3\]",
        ),
    ],
)
def test_an_update_that_does_not_fit_the_base_is_named(tmp_path, extra, message):
    folder = good(tmp_path)
    edit(folder, lambda t: t.update(extra), WEIGHTS)
    with pytest.raises(CheckpointError, match=message):
        read(folder)


def test_the_base_model_is_found_or_asked_for(tmp_path):
    folder = good(tmp_path, base_model_name_or_path="owner/base-model")
    with pytest.raises(DownloadRefused, match=r"owner/base-model is neither a folder here"):
        read(folder)
    assert read(folder, base=tmp_path / "base").convention.head == "score"
    nameless = good(tmp_path / "second", base_model_name_or_path=None)
    with pytest.raises(CheckpointError, match="does not say its base model; pass base="):
        read(nameless)
    with pytest.raises(LoadError, match="there is no such folder"):
        read(folder, base=tmp_path / "no" / "where")


def test_a_pickled_adapter_is_not_opened(tmp_path):
    folder = good(tmp_path)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"adapter_model.bin\) are not opened"):
        read(folder)


def test_the_tokenizer_is_the_adapters_own_or_the_bases(tmp_path):
    folder = good(tmp_path)
    assert read(folder).tokenizer().eos_token == "<eos>"
    (tmp_path / "base" / "tokenizer.json").unlink()
    (tmp_path / "base" / "tokenizer_config.json").unlink()
    with pytest.raises(CheckpointError, match="base: its tokenizer could not be loaded"):
        read(folder).tokenizer()
