"""What a checkpoint leaves open is an error with the candidates; graders of other kinds refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from heads_on_disk import CASES, VOCAB, WIDTH, Case, by_hand, draw, edit, linear, states, write
from transformers import AutoModelForCausalLM

from reward_lens.errors import CheckpointError, LoadError
from reward_lens.signals.checkpoint_model import Wishes, read_checkpoint
from reward_lens.signals.head_table import HEADS

BY_NAME = {c.name: c for c in CASES}
NO_HEAD = Case(
    "none", "none", dict, linear("none", -1), extra={"lm_head.weight": draw(VOCAB, WIDTH)},
    architecture="LlamaForCausalLM",
)  # fmt: skip


def read(folder, **wishes):
    return read_checkpoint(folder, dtype="float32", wishes=Wishes(**wishes))


def logits(model, row):
    with torch.no_grad():
        return model(input_ids=torch.tensor([row])).logits[0].numpy()


def change_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_two_heads_are_named_and_head_settles_it(tmp_path):
    case = BY_NAME["value_head"]
    base = write(tmp_path, case)
    other = draw(1, WIDTH, seed=40)
    edit(tmp_path, lambda t: t.update({"score.weight": other}))
    with pytest.raises(
        CheckpointError, match="more than one thing that looks like a head"
    ) as error:
        read(tmp_path)
    assert f"head='score': score.weight [1, {WIDTH}]" in str(error.value)
    assert f"head='value_head': value_head.weight [1, {WIDTH}]" in str(error.value)
    chosen = read(tmp_path, head="value_head")
    np.testing.assert_allclose(logits(chosen.model, case.row), by_hand(case, base), rtol=1e-5)
    assert chosen.ignored_keys == ("score.weight",)
    native = read(tmp_path, head="score")
    expected = other.double().numpy() @ states(base, case.row)[5]
    np.testing.assert_allclose(logits(native.model, case.row), expected, rtol=1e-5)
    assert native.ignored_keys == ("value_head.weight",)
    assert (native.convention.head, native.convention.rule) == ("score", None)
    assert (chosen.convention.head, chosen.convention.rule) == ("value_head", "last")


def test_a_part_of_a_second_head_is_not_passed_over(tmp_path):
    write(tmp_path, BY_NAME["value_head"])
    edit(tmp_path, lambda t: t.update({"v_head.summary.weight": draw(1, WIDTH)}))
    message = r"a part of 'v_head.summary'.*missing from the checkpoint: v_head.summary.bias"
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path)
    assert read(tmp_path, head="value_head").convention.head == "value_head"


def test_a_name_that_is_no_head_lists_those_that_are(tmp_path):
    write(tmp_path, BY_NAME["value_head"])
    with pytest.raises(LoadError, match=r"head='vhead' is no name of a head.*has value_head$") as e:
        read(tmp_path, head="vhead")
    assert all(row.name in str(e.value) for row in HEADS)
    with pytest.raises(CheckpointError, match=r"has no head 'score mlp': it lacks score.N.weight"):
        read(tmp_path, head="score mlp")
    with pytest.raises(CheckpointError, match=r"no head 'score': it lacks score.weight.*: value_"):
        read(tmp_path, head="score")


def test_keys_decide_where_a_native_class_name_hides_another_format(tmp_path):
    case = BY_NAME["Starling"]
    base = write(tmp_path, case)
    assert case.architecture == "LlamaForSequenceClassification"
    found = read(tmp_path)
    assert found.convention.head == "v_head"
    np.testing.assert_allclose(logits(found.model, case.row), by_hand(case, base), rtol=1e-5)


@pytest.mark.parametrize(
    ("tensors", "architecture", "message"),
    [
        ({"head_layer.1.weight": draw(WIDTH, 2 * WIDTH)}, "DebertaV2PairRM", "pair ranker"),
        (
            {"value_head.weight": draw(2, WIDTH), "prompt_head.weight": draw(2, WIDTH)},
            "GPMForCausalLM",
            "general preference model",
        ),
        ({"value_head.weight": draw(4, WIDTH)}, "LlamaModel", "a vector per response"),
        (BY_NAME["Qwen2.5-Math-RM"].tensors(), "Qwen2ForProcessRewardModel", "process reward"),
        ({"v_head.weight": draw(1, WIDTH)}, "AtheneForSequenceClassification", "Athene reads"),
    ],
)
def test_a_grader_of_another_kind_is_refused_with_the_reason(
    tmp_path, tensors, architecture, message
):
    write(tmp_path, replace(NO_HEAD, tensors=lambda: tensors, architecture=architecture))
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path)


def test_an_architecture_that_transformers_lacks(tmp_path):
    write(tmp_path, BY_NAME["value_head"])
    change_config(tmp_path, model_type="internlm2", architectures=["InternLM2ForRewardModel"])
    with pytest.raises(CheckpointError, match=r"'internlm2' \(class InternLM2For.*wrap_hf_model"):
        read(tmp_path)


def test_a_language_model_without_a_head_says_how_to_ask(tmp_path):
    write(tmp_path, NO_HEAD)
    with pytest.raises(CheckpointError, match=r"(?s)random\): score.weight.*head='vocab:0'"):
        read(tmp_path)


@pytest.mark.parametrize("spec", ["vocab:0", "vocab:65", "vocab:a-b", "vocab:7-b", "vocab:A"])
def test_a_vocabulary_row_is_the_language_models_own_logit(tmp_path, spec):
    write(tmp_path, NO_HEAD)
    found = read(tmp_path, head=spec)
    lm = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        own = lm(input_ids=torch.tensor([NO_HEAD.row])).logits[0, -1].double().numpy()
    # The byte tokenizer of the tests numbers printable ASCII from 0 for "!".
    numbers = {"a": ord("a") - 33, "b": ord("b") - 33, "A": ord("A") - 33}
    ids = [numbers.get(p) if p in numbers else int(p) for p in spec[6:].split("-")]
    expected = own[ids[0]] - (own[ids[1]] if len(ids) > 1 else 0.0)
    np.testing.assert_allclose(logits(found.model, NO_HEAD.row), [expected], rtol=1e-5, atol=1e-5)
    assert (found.convention.head, found.convention.rule) == (spec, "last")
    assert f"the logit of {ids[0]}" in found.convention.notes[-1]
    assert found.model.config.num_labels == 1


def test_tied_embeddings_give_the_vocabulary_row(tmp_path):
    base = write(tmp_path, replace(NO_HEAD, extra={}, config={"tie_word_embeddings": True}))
    found = read(tmp_path, head="vocab:9")
    row = base.get_input_embeddings().weight[9].detach().double().numpy()
    expected = states(base, NO_HEAD.row)[-1] @ row
    np.testing.assert_allclose(logits(found.model, NO_HEAD.row), [expected], rtol=1e-5)


def test_the_output_layers_bias_belongs_to_the_vocabulary_row(tmp_path):
    from transformers import PhiConfig, PhiForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2}
    config = PhiConfig(vocab_size=VOCAB, num_attention_heads=2, **sizes, pad_token_id=258)
    lm = PhiForCausalLM(config).eval()
    with torch.no_grad():
        lm.lm_head.bias.normal_()
        own = lm(input_ids=torch.tensor([NO_HEAD.row])).logits[0, -1]
    lm.save_pretrained(tmp_path)
    found = read(tmp_path, head="vocab:4-5")
    np.testing.assert_allclose(
        logits(found.model, NO_HEAD.row), [float(own[4] - own[5])], rtol=1e-4
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("vocab:", "write 'vocab:K' or 'vocab:A-B'"),
        ("vocab:1-2-3", "write 'vocab:K' or 'vocab:A-B'"),
        ("vocab:yes", r"'yes' is 3 tokens \("),
        ("vocab:260", "id 260 is not among 0 to 259"),
    ],
)
def test_a_vocabulary_row_that_cannot_be_told(tmp_path, spec, message):
    write(tmp_path, NO_HEAD)
    with pytest.raises(LoadError, match=message):
        read(tmp_path, head=spec)


def test_the_output_layer_must_be_there_and_the_logits_its_own(tmp_path):
    write(tmp_path / "absent", replace(NO_HEAD, extra={}))
    with pytest.raises(CheckpointError, match=r"missing .*: lm_head.weight"):
        read(tmp_path / "absent", head="vocab:0")
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, final_logit_softcapping=0.05,
        pad_token_id=258,
    )  # fmt: skip
    Gemma2ForCausalLM(config).save_pretrained(tmp_path / "capped")
    with pytest.raises(CheckpointError, match="a cap or a scale lies between"):
        read(tmp_path / "capped", head="vocab:3")


@pytest.mark.parametrize("name", ["regression_layer.pt", "value_head.bin", "reward_head.pkl"])
def test_a_pickled_head_is_named_and_never_opened(tmp_path, name):
    write(tmp_path, NO_HEAD)
    (tmp_path / name).write_bytes(b"not even a pickle")
    with pytest.raises(CheckpointError, match=rf"(?s){name}: pickled files are never opened"):
        read(tmp_path)


def test_a_pickled_tree_on_top_of_the_rows_is_refused_unless_the_rows_are_asked_for(tmp_path):
    case = BY_NAME["score, three rows"]
    write(tmp_path, case)
    (tmp_path / "training_args.bin").write_bytes(b"left by the trainer")
    assert read(tmp_path).convention.head == "score"
    (tmp_path / "decision_tree.pkl").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"decides by decision_tree.pkl.*head='score'"):
        read(tmp_path)
    assert read(tmp_path, head="score").convention.labels == ("help", "truth", "brevity")


def test_the_number_of_rows_comes_from_the_head_only_where_it_is_not_stated(tmp_path):
    write(tmp_path, BY_NAME["score"])
    found = read(tmp_path)
    assert found.model.config.num_labels == 1
    assert any("was taken from the head's shape" in n for n in found.convention.notes)
    change_config(tmp_path, id2label={"0": "bad", "1": "good"})
    with pytest.raises(CheckpointError, match=r"score.weight is \[1, 16\], not \[2, 16\]"):
        read(tmp_path)


def test_labels_only_where_they_mean_something(tmp_path):
    write(tmp_path, BY_NAME["score, three rows"])
    assert read(tmp_path).convention.labels == ("help", "truth", "brevity")
    change_config(tmp_path, id2label={str(k): f"LABEL_{k}" for k in range(3)})
    assert read(tmp_path).convention.labels == ()


def test_what_the_caller_settles_is_in_the_convention(tmp_path):
    write(tmp_path, BY_NAME["value_head"])
    assert read(tmp_path).convention.eos == "overwrite"
    found = read(tmp_path, eos="keep", bos="none", template="plain", sign=-1).convention
    assert (found.eos, found.bos, found.template, found.sign) == (None, "none", "plain", -1.0)
    with pytest.raises(LoadError, match="sign=2: choose 1, or -1"):
        read(tmp_path, sign=2)
    with pytest.raises(LoadError, match="base= is for adapters"):
        read(tmp_path, base="somewhere")


_SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from reward_lens.signals.checkpoint_model import read_checkpoint
for folder, row in zip(sys.argv[1::2], sys.argv[2::2]):
    read = read_checkpoint(folder, dtype="float32")
    with torch.no_grad():
        ids = torch.tensor([[int(i) for i in row.split(",")]])
        print([float(x).hex() for x in read.model(input_ids=ids).logits[0]])
        if read.convention.gate is not None:
            print(float(read.model.composite(ids)[0]).hex())
"""


def test_fresh_processes_give_equal_bits(tmp_path):
    arguments = []
    for name in ("score", "GRM", "QRM"):
        case = BY_NAME[name]
        write(tmp_path / name, case)
        arguments += [str(tmp_path / name), ",".join(map(str, case.row))]
    command = [sys.executable, "-c", _SCRIPT, *arguments]
    out = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(3)
    ]
    assert len(out[0].splitlines()) == 4
    assert len(set(out)) == 1


@pytest.mark.parametrize("name", ["score", "GRM", "ArmoRM"])
def test_sharded_checkpoints_load(tmp_path, name):
    from safetensors.torch import load_file, save_file

    case = BY_NAME[name]
    base = write(tmp_path, case)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    keys, where = sorted(tensors), {}
    for k in range(3):
        file = f"model-0000{k + 1}-of-00003.safetensors"
        save_file({n: tensors[n] for n in keys[k::3]}, tmp_path / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(keys[k::3], file))
    index = {"metadata": {}, "weight_map": where}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    np.testing.assert_allclose(
        logits(read(tmp_path).model, case.row), by_hand(case, base), rtol=1e-5, atol=1e-5
    )
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="shards that are not there: model-00002-of-00003"):
        read(tmp_path)


def test_a_file_that_was_cut_short_is_named(tmp_path):
    write(tmp_path, BY_NAME["value_head"])
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="model.safetensors is not a whole safetensors file"):
        read(tmp_path)


def test_device_map_is_passed_on(tmp_path, monkeypatch):
    from reward_lens.signals import trunk_files

    for name in ("score", "value_head"):
        case = BY_NAME[name]
        base = write(tmp_path / name, case)
        found = read_checkpoint(tmp_path / name, dtype="float32", device_map={"": "cpu"})
        np.testing.assert_allclose(logits(found.model, case.row), by_hand(case, base), rtol=1e-5)
    monkeypatch.setattr(trunk_files, "find_spec", lambda name: None)
    with pytest.raises(LoadError, match=r"device_map needs the package accelerate"):
        read_checkpoint(tmp_path / "score", device_map="auto")


def test_weights_left_on_disk_are_refused(tmp_path):
    write(tmp_path, BY_NAME["score"])
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk",
              "model.norm": "cpu", "model.rotary_emb": "cpu", "score": "cpu"}  # fmt: skip
    with pytest.raises(CheckpointError, match=r"layers.1.* was left on disk by device_map"):
        read_checkpoint(tmp_path, device_map=places)
