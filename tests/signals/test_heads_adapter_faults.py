"""Adapters whose files contradict themselves, or lack what they say was trained."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from families import make_model, make_tokenizer
from heads_on_disk import CASES, ROW, by_hand, draw, edit, write
from safetensors.torch import save_file

from reward_lens.errors import CheckpointError
from reward_lens.signals.checkpoint_model import Wishes, read_checkpoint

BY_NAME = {c.name: c for c in CASES}
Q, PEFT = "model.layers.0.self_attn.q_proj", "base_model.model."
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "task_type": "SEQ_CLS"}
FACTORS = {
    f"{PEFT}{Q}.lora_A.weight": draw(4, 32),
    f"{PEFT}{Q}.lora_B.weight": 0.3 * draw(32, 4),
}


def read(folder, trust_remote_code=False, **wishes):
    return read_checkpoint(
        folder, dtype="float32", trust_remote_code=trust_remote_code, wishes=Wishes(**wishes)
    )


def refused(folder, message, **wishes):
    with pytest.raises(CheckpointError, match=message):
        read(folder, **wishes)


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ROW])).logits[0].numpy()


def whole(folder):
    """A native reward model of one file; returns it."""
    model = make_model("llama")
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return model


def adapter(folder, base, tensors, **config):
    folder.mkdir(parents=True, exist_ok=True)
    named = {"base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **named, **config}))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_model_and_an_adapter_in_one_folder_are_ambiguous(tmp_path):
    model = whole(tmp_path)
    adapter(tmp_path, "owner/elsewhere", FACTORS)
    refused(
        tmp_path,
        r"holds a whole model and an adapter \(adapter_config.json, adapter_model.safetensors\).*"
        r"For the model alone, move adapter_config.json and adapter_model.safetensors away; for "
        r"the adapter on this model, pass base=",
    )
    a, b = FACTORS.values()
    with torch.no_grad():
        model.get_submodule(Q).weight.add_(2.0 * (b @ a))
    merged = read(tmp_path, base=tmp_path)
    np.testing.assert_allclose(logits(merged.model), logits(model), rtol=1e-5, atol=1e-6)
    assert "merged into its base" in merged.convention.notes[0]


@pytest.mark.parametrize("left", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_part_of_an_adapter_beside_a_model_is_enough_to_ask(tmp_path, left):
    whole(tmp_path)
    adapter(tmp_path, tmp_path, FACTORS)
    for name in {"adapter_config.json", "adapter_model.safetensors"} - {left}:
        (tmp_path / name).unlink()
    refused(tmp_path, rf"a whole model and an adapter \({left}\).*move {left} away")


def test_a_base_that_holds_an_adapter_is_ambiguous(tmp_path):
    whole(tmp_path / "base")
    adapter(tmp_path / "base", "owner/elsewhere", FACTORS)
    refused(
        adapter(tmp_path / "a", tmp_path / "base", FACTORS), r"base holds a whole model and an ad"
    )


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        ({}, {}, r"adapter_model.safetensors holds no tensors"),
        (
            FACTORS,
            {"modules_to_save": ["classifier", "score"]},
            r"'score' was trained .*\(modules_to_save\), and adapter_model.* lacks score.weight",
        ),
        (
            {**FACTORS, f"{PEFT}score.weight": draw(1, 32)},
            {"modules_to_save": ["score", "norm"]},
            r"'norm' was trained .* lacks model.norm.weight",
        ),
        (
            {**FACTORS, f"{PEFT}{Q}.lora_A.default.weight": draw(4, 32)},
            {},
            rf"{Q}.lora_A.default.weight .*and .*{Q}.lora_A.weight .*for the same weight",
        ),
        (
            {**FACTORS, f"{Q}.lora_B.weight": draw(32, 4)},
            {},
            rf"base_model.model.{Q}.lora_B.weight .*and {Q}.lora_B.weight .*for the same weight",
        ),
        (
            {
                f"{PEFT}score.weight": draw(1, 32),
                f"{PEFT}score.modules_to_save.weight": draw(1, 32),
            },
            {},
            r"score.modules_to_save.weight .*and .*score.weight .*for the same weight",
        ),
        (
            {**FACTORS, f"{PEFT}{Q}.weight": draw(32, 32)},
            {},
            rf"{Q}.lora_A.weight .*and .*{Q}.weight .*for the same weight",
        ),
        (
            {k: (20 * v).to(torch.int8) for k, v in FACTORS.items()},
            {},
            rf"{Q}.lora_A.weight \(I8\), .*{Q}.lora_B.weight \(I8\). Packed or quantised",
        ),
    ],
    ids=["empty", "head", "norm", "default", "prefix", "saved", "both", "int8"],
)
def test_an_adapter_that_is_not_whole_or_not_one_is_refused(tmp_path, tensors, config, message):
    whole(tmp_path / "base")
    refused(adapter(tmp_path / "a", tmp_path / "base", tensors, **config), message)


def test_a_head_in_the_adapter_and_in_its_own_file_is_named(tmp_path):
    whole(tmp_path / "base")
    folder = adapter(
        tmp_path / "a", tmp_path / "base", {**FACTORS, f"{PEFT}score.weight": draw(1, 32)}
    )
    side(folder, {"score.weight": draw(1, 32)})
    refused(folder, r"score.weight \(adapter_model.* and score.weight \(value_head.safetensors\)")


def test_a_head_built_apart_must_be_in_the_adapter_that_says_so(tmp_path):
    case = BY_NAME["value_head"]
    base = write(tmp_path / "base", case)
    norm = {f"{PEFT}model.norm.weight": base.norm.weight.detach().clone()}
    folder = adapter(tmp_path / "a", tmp_path / "base", norm, modules_to_save=["value_head"])
    refused(folder, r"'value_head' was trained .* lacks value_head.weight")
    adapter(folder, tmp_path / "base", norm, modules_to_save=["classifier", "score"])
    np.testing.assert_allclose(logits(read(folder).model), by_hand(case, base), rtol=1e-5)


def side(folder, tensors):
    save_file(tensors, folder / "value_head.safetensors", metadata={"format": "pt"})


def test_an_adapter_may_bring_what_the_base_has_as_zeros(tmp_path):
    """What counts is the weight that is used, not the one that was replaced."""
    whole(tmp_path / "base")
    edit(tmp_path / "base", lambda t: t["score.weight"].zero_())
    refused(tmp_path / "base", r"head weight score.weight is all zeros")
    tensors = {**FACTORS, f"{PEFT}score.weight": draw(1, 32)}
    found = read(adapter(tmp_path / "a", tmp_path / "base", tensors, modules_to_save=["score"]))
    assert not any("all zeros" in n for n in found.convention.notes)


def test_an_adapter_on_a_model_with_its_own_code_is_merged(tmp_path, monkeypatch):
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    model = whole(tmp_path / "base")
    (tmp_path / "base" / "modeling_own.py").write_text(
        "from transformers import LlamaForSequenceClassification\n\n\n"
        "class OwnRewardModel(LlamaForSequenceClassification):\n    pass\n"
    )
    file = tmp_path / "base" / "config.json"
    own = {"AutoModelForSequenceClassification": "modeling_own.OwnRewardModel"}
    file.write_text(json.dumps({**json.loads(file.read_text()), "auto_map": own}))
    head = draw(1, 32, seed=6)
    tensors = {**FACTORS, f"{PEFT}score.weight": head}
    folder = adapter(tmp_path / "a", tmp_path / "base", tensors, modules_to_save=["score"])
    a, b = FACTORS.values()
    with torch.no_grad():
        model.get_submodule(Q).weight.add_(2.0 * (b @ a))
        model.score.weight.copy_(head)
    found = read(folder, trust_remote_code=True)
    assert type(found.model).__name__ == "OwnRewardModel"
    np.testing.assert_allclose(logits(found.model), logits(model), rtol=1e-5, atol=1e-6)
    assert "merged into its base" in found.convention.notes[0]
