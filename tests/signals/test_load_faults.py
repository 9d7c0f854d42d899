"""Files that contradict themselves, hold packed weights or were fetched in part: said by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from families import ITEMS, make_model, make_tokenizer
from heads_on_disk import CASES, ROW, VOCAB, WIDTH, Case, draw, edit, linear, write
from safetensors.torch import load_file, save_file

import reward_lens as rl
from reward_lens.errors import CheckpointError, LoadError
from reward_lens.signals import run_conformance
from reward_lens.signals.checkpoint import INDEX, read_json
from reward_lens.signals.checkpoint_model import Wishes, read_checkpoint
from reward_lens.signals.hub import Hub, _complete

BY_NAME = {c.name: c for c in CASES}
HEADLESS = Case(
    "none", "none", dict, linear("none", -1), extra={"lm_head.weight": draw(VOCAB, WIDTH)},
    architecture="LlamaForCausalLM",
)  # fmt: skip
UP, Q = "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.weight"
PACKED = {
    torch.int8: "I8", torch.uint8: "U8", torch.int64: "I64", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.complex64: "C64",
}  # fmt: skip


def read(folder, **wishes):
    return read_checkpoint(folder, dtype="float32", wishes=Wishes(**wishes))


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


def sharded(folder):
    make_model("llama").save_pretrained(folder, max_shard_size="30KB")
    make_tokenizer().save_pretrained(folder)
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 2
    return files


def shard_of(folder, key):
    return json.loads((folder / INDEX).read_text())["weight_map"][key]


def change_index(folder, change):
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def cast(key, dtype):
    def change(tensors):
        tensors[key] = (tensors[key] * 20).to(dtype)

    return change


# --- packed weights -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", PACKED, ids=str)
@pytest.mark.parametrize("key", ["score.weight", UP, "model.norm.weight"])
def test_a_weight_that_is_no_plain_floating_point_is_named(tmp_path, key, dtype):
    whole(tmp_path)
    edit(tmp_path, cast(key, dtype))
    refused(tmp_path, rf"F64: {key} \({PACKED[dtype]}\)\. Packed .*wrap_hf_model\(model, tok")


def test_a_model_that_is_packed_throughout_is_refused(tmp_path):
    whole(tmp_path)
    edit(tmp_path, lambda t: [cast(k, torch.int8)(t) for k in list(t)])
    refused(tmp_path, r"model.embed_tokens.weight \(I8\), .* more\. Packed or quantised weights")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_plain_floating_point_is_read(tmp_path, dtype):
    model = whole(tmp_path)
    edit(tmp_path, lambda t: t.update({k: v.to(dtype) for k, v in t.items()}))
    expected = logits(model.to(dtype).float())
    np.testing.assert_allclose(logits(read(tmp_path).model), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("key", "tensor"),
    [
        ("model.position_ids", torch.arange(9)),
        ("model.layers.0.attn.bias", torch.ones(4, 4, dtype=torch.bool).tril()),
        ("model.layers.0.attention.masked_bias", torch.ones(4, 4, dtype=torch.uint8)),
    ],
)
def test_integer_buffers_that_mean_nothing_are_no_packed_weights(tmp_path, key, tensor):
    whole(tmp_path)
    edit(tmp_path, lambda t: t.update({key: tensor}))
    assert key in read(tmp_path).ignored_keys


@pytest.mark.parametrize(
    ("key", "tensor", "kind"),
    [
        ("model.layers.0.attn.bias", torch.ones(4, dtype=torch.int8), "I8"),
        ("lm_head.weight", torch.ones(4, 4, dtype=torch.int8), "I8"),
        ("model.position_ids", torch.ones(4, dtype=torch.uint8), "U8"),
    ],
)
def test_the_name_of_a_buffer_excuses_only_its_own_dtype(tmp_path, key, tensor, kind):
    whole(tmp_path)
    edit(tmp_path, lambda t: t.update({key: tensor}))
    refused(tmp_path, rf"{key} \({kind}\)")


# --- shards ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["score.weight", "model.embed_tokens.weight", UP])
@pytest.mark.parametrize("last", [False, True])
def test_a_key_in_two_shards_is_named(tmp_path, key, last):
    files = sharded(tmp_path)
    holder = shard_of(tmp_path, key)
    other = [f.name for f in files if f.name != holder][-1 if last else 0]
    again = load_file(tmp_path / holder)[key] + 1
    edit(tmp_path, lambda t: t.update({key: again}), other)
    first, second = sorted([holder, other])
    refused(tmp_path, rf"{key}: stored twice, in .*{first} and in {second}")


@pytest.mark.parametrize("key", ["score.weight", UP])
def test_a_key_that_is_not_in_the_shard_of_its_index_is_named(tmp_path, key):
    files = sharded(tmp_path)
    holder = shard_of(tmp_path, key)
    other = next(f.name for f in files if f.name != holder)
    change_index(tmp_path, lambda m: m.update({key: other}))
    refused(tmp_path, rf"a shard that does not hold them: {key} \(in {holder}\)")


def test_a_key_of_the_index_that_no_shard_has_is_named(tmp_path):
    sharded(tmp_path)
    edit(tmp_path, lambda t: t.pop("score.weight"), shard_of(tmp_path, "score.weight"))
    refused(tmp_path, r"a shard that does not hold them: score.weight \(in none\)")


def test_an_index_may_name_inert_keys_that_were_left_out(tmp_path):
    files = sharded(tmp_path)
    change_index(tmp_path, lambda m: m.update({"lm_head.weight": files[0].name}))
    np.testing.assert_array_equal(logits(read(tmp_path).model), logits(make_model("llama")))


def test_a_whole_file_beside_shards_is_ambiguous(tmp_path):
    sharded(tmp_path / "shards")
    whole(tmp_path / "whole")
    shutil.copy(tmp_path / "whole" / "model.safetensors", tmp_path / "shards")
    refused(
        tmp_path / "shards",
        r"has model.safetensors, and model.safetensors.index.json names other files "
        r"\(model-00001-of-\d+.safetensors, .*cannot be told",
    )
    assert _complete(tmp_path / "shards")  # refused when loaded, not fetched once more


def test_an_index_without_a_map_beside_a_whole_file_is_ambiguous(tmp_path):
    whole(tmp_path)
    (tmp_path / INDEX).write_text("{}")
    refused(tmp_path, r"names other files \(none at all\)")


def test_an_index_of_the_one_file_is_no_contradiction(tmp_path):
    model = whole(tmp_path)
    keys = load_file(tmp_path / "model.safetensors")
    named = dict.fromkeys(keys, "model.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": named}))
    np.testing.assert_array_equal(logits(read(tmp_path).model), logits(model))


# --- a head in a file of its own ------------------------------------------------------------


def side(folder, tensors):
    save_file(tensors, folder / "value_head.safetensors", metadata={"format": "pt"})


def test_a_head_in_the_model_and_in_its_own_file_is_named(tmp_path):
    whole(tmp_path)
    side(tmp_path, {"score.weight": draw(1, 32)})
    refused(tmp_path, r"score.weight: stored twice, in .*model.safetensors and in value_head")


def test_a_native_head_in_its_own_file_is_read(tmp_path):
    model = whole(tmp_path)
    head = draw(1, 32, seed=3)
    edit(tmp_path, lambda t: t.pop("score.weight"))
    side(tmp_path, {"score.weight": head})
    found = read(tmp_path)
    with torch.no_grad():
        model.score.weight.copy_(head)
    np.testing.assert_array_equal(logits(found.model), logits(model))
    assert found.convention.head == "score"


@pytest.mark.parametrize("case", ["score", "value head in its own file"])
def test_a_key_of_the_side_file_that_nothing_reads_is_named(tmp_path, case):
    write(tmp_path, BY_NAME[case])
    file = tmp_path / "value_head.safetensors"
    side(tmp_path, {**(load_file(file) if file.is_file() else {}), "extra.weight": draw(1, 4)})
    refused(tmp_path, r"value_head.safetensors: extra.weight is used by nothing")


def test_a_head_of_the_side_file_that_was_not_asked_for_is_listed(tmp_path):
    write(tmp_path, BY_NAME["score"])
    side(tmp_path, {"value_head.weight": draw(1, WIDTH)})
    refused(tmp_path, r"more than one thing that looks like a head")
    assert read(tmp_path, head="score").ignored_keys == ("value_head.weight",)


def test_a_packed_head_in_its_own_file_is_named(tmp_path):
    write(tmp_path, HEADLESS)
    side(tmp_path, {"value_head.weight": torch.ones(1, WIDTH, dtype=torch.int8)})
    refused(tmp_path, r"value_head.safetensors holds .*value_head.weight \(I8\)")


# --- zeros ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ([UP], f"1 matrix is all zeros: {UP}"),
        (
            [UP, Q],
            f"2 matrices are all zeros: {Q}, {UP}",
        ),
    ],
)
def test_matrices_of_zeros_are_noted_by_name(tmp_path, keys, note):
    whole(tmp_path)
    assert not any("all zeros" in n for n in read(tmp_path).convention.notes)
    edit(tmp_path, lambda t: [t[k].zero_() for k in keys])
    assert note in read(tmp_path).convention.notes
    signal = rl.load_signal(tmp_path)
    assert note in signal.meta.notes
    assert np.ptp(signal.score(ITEMS).value.values) > 0


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("score", "score.weight"),
        ("value_head", "value_head.weight"),
        ("GRM", "v_head.summary.0.weight"),
        ("ArmoRM", "reward_transform_matrix"),
        ("ArmoRM", "gating.layers.1.weight"),
    ],
)
def test_a_head_of_zeros_is_refused_by_name(tmp_path, name, key):
    write(tmp_path, BY_NAME[name])
    edit(tmp_path, lambda t: t[key].zero_())
    refused(tmp_path, rf"head weight {key} is all zeros, so every text would have the same score")


def test_a_vocabulary_row_of_zeros_is_refused(tmp_path):
    write(tmp_path, HEADLESS)
    edit(tmp_path, lambda t: t["lm_head.weight"][7].zero_())
    refused(tmp_path, r"'vocab:7' \(ids 7 of the output layer\) is all zeros", head="vocab:7")
    assert read(tmp_path, head="vocab:7-8").convention.head == "vocab:7-8"


# --- padding --------------------------------------------------------------------------------


def test_a_negative_padding_id_matches_nothing(tmp_path):
    whole(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pad_token_id": -1}))
    assert read(tmp_path).convention.head == "score"


@pytest.mark.parametrize("pad", [260, 9999])
def test_a_padding_id_that_is_not_embedded_is_named(tmp_path, pad):
    whole(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pad_token_id": pad}))
    refused(tmp_path, rf"pad_token_id {pad}, which is not among the ids 0 to 259")
    file.write_text(json.dumps({**json.loads(file.read_text()), "pad_token_id": None}))
    assert read(tmp_path).convention.head == "score"


# --- files that cannot be read --------------------------------------------------------------


def test_weights_that_may_not_be_read_are_named(tmp_path, monkeypatch):
    whole(tmp_path)
    plain = Path.open

    def locked(self, *args, **options):
        if self.name == "model.safetensors":
            raise PermissionError(13, "Permission denied", str(self))
        return plain(self, *args, **options)

    monkeypatch.setattr(Path, "open", locked)
    refused(tmp_path, r"model\.safetensors cannot be read \(Permission denied\); see to its perm")


@pytest.mark.parametrize("left", [0, 4, 100, -1])
def test_weights_that_are_cut_short_are_named(tmp_path, left):
    whole(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    refused(tmp_path, r"model\.safetensors is not a whole safetensors file")


def test_a_configuration_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(LoadError, match=r"config\.json cannot be read \(Is a directory\)"):
        read_json(tmp_path / "config.json")


def test_a_folder_that_may_not_be_entered_is_named(tmp_path, monkeypatch):
    def locked(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", locked)
    with pytest.raises(LoadError, match=r"cannot be read \(Permission denied\); see to its perm"):
        Hub().folder(str(tmp_path))


def test_conformance_names_a_file_beside_the_weights_that_is_no_safetensors(tmp_path):
    whole(tmp_path)
    signal = rl.load_signal(tmp_path)
    (tmp_path / "optimizer.safetensors").write_bytes(b"half a")
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors is not a whole safetensors"):
        run_conformance(signal)


def test_each_head_that_is_known_is_named_once(tmp_path):
    write(tmp_path, HEADLESS)
    with pytest.raises(CheckpointError) as error:
        read(tmp_path)
    known = str(error.value).split("known by name: ")[1].split(". If the head")[0].split(", ")
    assert known.count("regression_layer.weight") == 1
