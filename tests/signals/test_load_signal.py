"""A checkpoint is loaded whole, or refused by name."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from families import FAMILIES, ITEMS, make_model, make_tokenizer
from safetensors.torch import load_file, save_file

import reward_lens as rl
from reward_lens.errors import (
    CheckpointError,
    ConformanceError,
    DownloadRefused,
    LoadError,
    TokenizeError,
)


def save(folder, family="llama", **changes):
    model = make_model(family, **changes)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return model


def edit(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_scores_as_before(tmp_path, family):
    model = save(tmp_path, family)
    signal = rl.load_signal(tmp_path)
    direct = rl.wrap_hf_model(model, make_tokenizer())
    np.testing.assert_array_equal(signal.score(ITEMS).value, direct.score(ITEMS).value)
    assert signal.meta.source == str(tmp_path)
    assert signal.meta.quickcheck == "passed"
    again = rl.load_signal(tmp_path)
    np.testing.assert_array_equal(signal.score(ITEMS).value, again.score(ITEMS).value)


def test_dtype_is_float32_on_a_cpu_unless_asked(tmp_path):
    save(tmp_path, dtype=torch.bfloat16)
    assert rl.load_signal(tmp_path).meta.dtype == "float32"
    signal = rl.load_signal(tmp_path, dtype="bfloat16")
    assert signal.meta.dtype == "bfloat16"
    assert signal.score(ITEMS).value.dtype == np.float32
    with pytest.raises(LoadError, match="dtype='int8'"):
        rl.load_signal(tmp_path, dtype="int8")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_head_is_named(tmp_path, family):
    save(tmp_path, family)
    edit(tmp_path, lambda t: t.pop("score.weight"))
    with pytest.raises(CheckpointError, match=r"missing .*random\): score.weight"):
        rl.load_signal(tmp_path)


@pytest.mark.parametrize("name", ["skore.weight", "model.score.weight", "rm_head.weight"])
def test_a_renamed_head_is_named(tmp_path, name):
    save(tmp_path)
    edit(tmp_path, lambda t: t.update({name: t.pop("score.weight")}))
    with pytest.raises(CheckpointError, match=rf"score.weight\n.*used by nothing: {name}"):
        rl.load_signal(tmp_path)


def test_device_and_device_map_exclude_each_other(tmp_path):
    save(tmp_path)
    with pytest.raises(LoadError, match="device and device_map were both given"):
        rl.load_signal(tmp_path, device="cpu", device_map="auto")
    signal = rl.load_signal(tmp_path, device_map={"": "cpu"})
    direct = rl.load_signal(tmp_path, device="cpu")
    np.testing.assert_array_equal(signal.score(ITEMS).value, direct.score(ITEMS).value)


def test_a_head_of_another_shape_is_refused(tmp_path):
    save(tmp_path)
    edit(tmp_path, lambda t: t.update({"score.weight": torch.zeros(2, 32)}))
    with pytest.raises(CheckpointError, match="score.weight"):
        rl.load_signal(tmp_path)


def test_a_missing_trunk_key_is_named(tmp_path):
    save(tmp_path)
    edit(tmp_path, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(CheckpointError, match=r"model.layers.1.mlp.up_proj.weight"):
        rl.load_signal(tmp_path)


def test_inert_keys_are_listed_not_refused(tmp_path):
    save(tmp_path)
    edit(tmp_path, lambda t: t.update({"lm_head.weight": torch.zeros(3, 32)}))
    assert rl.load_signal(tmp_path).meta.ignored_keys == ("lm_head.weight",)


def test_weights_that_are_not_finite_are_named(tmp_path):
    save(tmp_path)
    edit(tmp_path, lambda t: t["model.norm.weight"].fill_(float("nan")))
    with pytest.raises(CheckpointError, match="model.norm.weight holds 32 values"):
        rl.load_signal(tmp_path)


def test_a_tokenizer_larger_than_the_embedding(tmp_path):
    save(tmp_path)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([f"<extra{k}>" for k in range(5)])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"ids up to 263, the model embeds 260"):
        rl.load_signal(tmp_path)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda d: None, "no config.json"),
        (lambda d: (d / "config.json").write_text("{}"), "no weights"),
        (
            lambda d: [(d / n).write_text("{}") for n in ("config.json", "pytorch_model.bin")],
            "pickled weights only",
        ),
        (
            lambda d: [(d / n).write_text("{}") for n in ("config.json", "model.safetensors")],
            "config.json cannot be used",
        ),
    ],
)
def test_a_folder_that_is_no_checkpoint(tmp_path, prepare, message):
    prepare(tmp_path)
    with pytest.raises(LoadError, match=message):
        rl.load_signal(tmp_path)


def test_a_path_that_is_no_folder(tmp_path):
    file = tmp_path / "x"
    file.write_text("")
    with pytest.raises(LoadError, match="is a file"):
        rl.load_signal(file)
    with pytest.raises(LoadError, match="no such folder"):
        rl.load_signal(tmp_path / "nothing")


def test_a_hub_id_is_not_downloaded_unasked():
    with pytest.raises(
        DownloadRefused, match=r"(?s)owner/model.*size unknown.*allow_download=True"
    ):
        rl.load_signal("owner/model")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A hub cache with one model in it; returns the folder of its snapshot."""
    from huggingface_hub import constants

    home = tmp_path / "cache" / "models--owner--model"
    commit = "0" * 40
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    snapshot = home / "snapshots" / commit
    snapshot.mkdir(parents=True)
    save(snapshot)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return snapshot


def test_a_cached_hub_id_loads_without_the_hub(cache):
    signal = rl.load_signal("owner/model")
    assert signal.meta.source == "owner/model"
    expected = rl.load_signal(cache).score(ITEMS).value
    np.testing.assert_array_equal(signal.score(ITEMS).value, expected)
    assert rl.load_signal("owner/model", revision="0" * 40).meta.quickcheck == "passed"
    with pytest.raises(DownloadRefused, match="neither a folder here nor in the local cache"):
        rl.load_signal("owner/model", revision="v2")


def test_a_hub_id_that_is_cached_in_part_is_not_completed_unasked(cache):
    (cache / "model.safetensors").unlink()
    with pytest.raises(DownloadRefused, match="only in part in the local cache"):
        rl.load_signal("owner/model")


class _Hub:
    """Stands for the hub: knows a size, and puts a model where a download would."""

    asked: ClassVar[list] = []

    def __init__(self, token=None):
        self.token = token

    def model_info(self, name, **options):
        self.asked.append((self.token, name, options["revision"]))
        files = [("model-1.safetensors", 2_500_000_000), ("model-2.safetensors", 700_000_000),
                 ("README.md", 4_000_000_000), ("pytorch_model.bin", 9_000_000_000)]  # fmt: skip
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=f, size=s) for f, s in files])


def test_the_size_is_said_before_the_gate_and_before_a_download(tmp_path, monkeypatch, capsys):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    calls = []

    def snapshot(name, *, revision, token, allow_patterns, local_files_only):
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        calls.append((name, revision, token, allow_patterns))
        assert "downloading owner/big (3.2 GB)" in capsys.readouterr().err
        save(tmp_path / "fetched")
        return str(tmp_path / "fetched")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(huggingface_hub, "HfApi", _Hub)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(
        DownloadRefused, match=r"owner/big is neither .*\(3.2 GB\).*allow_download="
    ):
        rl.load_signal("owner/big", revision="v1", token="secret")
    assert calls == []
    assert _Hub.asked[-1] == ("secret", "owner/big", "v1")
    signal = rl.load_signal("owner/big", revision="v1", token="secret", allow_download=True)
    assert signal.meta.source == "owner/big"
    ((name, revision, token, patterns),) = calls
    assert (name, revision, token) == ("owner/big", "v1", "secret")
    assert "*.safetensors" in patterns
    assert not {"*.bin", "*.py", "*"} & set(patterns)


def test_a_missing_tokenizer_is_refused(tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="tokenizer could not be loaded"):
        rl.load_signal(tmp_path)


def test_a_model_that_does_not_behave_fails_the_quick_check():
    """A model that treats longer texts otherwise is caught before the signal is handed out."""
    model = make_model("llama")
    model.score.register_forward_hook(lambda m, a, out: out + 0.5 * (out.shape[1] > 12))
    with pytest.raises(ConformanceError, match=r"(?s)head = native.*FAILED"):
        rl.wrap_hf_model(model, make_tokenizer())


def test_too_long_is_an_error_unless_truncation_is_asked_for():
    signal = rl.wrap_hf_model(make_model("llama", max_position_embeddings=64), make_tokenizer())
    items = [("a short prompt", "fine"), ("p", "x" * 100)]
    with pytest.raises(TokenizeError, match=r"item 1 has \d+ tokens; this model reads at most 64"):
        signal.score(items)
    for side in ("left", "right"):
        ev = signal.score(items, truncate=side)
        assert list(ev.value.tokens_cut) == [0, len("User: p\nAssistant: " + "x" * 100) - 64]
    with pytest.raises(TokenizeError, match="truncate='middle'"):
        signal.score(items, truncate="middle")


def test_chat_template_has_one_bos_whoever_adds_it():
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    )
    signal = rl.wrap_hf_model(make_model("llama"), make_tokenizer(template))
    assert signal.meta.template == "chat template"
    assert signal.meta.bos == "template"
    (encoded,) = signal.encode([("q", "a")])
    bos = signal.encoder.tokenizer.bos_token_id
    assert list(encoded.ids).count(bos) == 1
    alignment = signal.encoder.align(rl.Item.of("q", "a"))
    assert alignment.text == "<bos>[user]q[assistant]a"
    assert alignment.tokens[alignment.response[0]] == "a"
    for (start, stop), token in zip(alignment.spans, alignment.tokens, strict=True):
        assert alignment.text[start:stop] == token


def test_several_turns_need_a_template():
    signal = rl.wrap_hf_model(make_model("llama"), make_tokenizer())
    turns = [{"role": r, "content": c} for r, c in
             (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))]  # fmt: skip
    with pytest.raises(TokenizeError, match="no chat template"):
        signal.score([turns])


def test_the_reference_scores_of_the_small_model(shared):
    folder = shared / "data" / "models" / "llama-small-rm"
    reference = json.loads((folder / "reference_scores.json").read_text())["scores"]
    pairs = {p.id: p for p in rl.load_pairs(shared / "data" / "pairs.jsonl")}
    ids = list(reference)[::4]
    signal = rl.load_signal(folder)
    ev = signal.score([x for i in ids for x in (pairs[i].chosen, pairs[i].rejected)])
    expected = np.array([reference[i] for i in ids]).ravel()
    np.testing.assert_allclose(ev.value, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_id_the_model_does_not_embed_is_named(family):
    signal = rl.wrap_hf_model(make_model(family), make_tokenizer())
    with pytest.raises(
        TokenizeError, match="item 1 has the id 260; this model embeds ids 0 to 259"
    ):
        signal.score([rl.Item(ids=(1, 2)), rl.Item(ids=(3, 260))])


def test_the_fingerprint_follows_every_choice(tmp_path):
    save(tmp_path)
    plain = rl.load_signal(tmp_path)
    choices = [
        {"sign": -1.0},
        {"position": "last"},
        {"bos": "add"},
        {"eos": "append"},
        {"template": "Q: {prompt} A: {response}"},
    ]
    made = [rl.load_signal(tmp_path, **c) for c in choices]
    assert len({plain.fingerprint, *(s.fingerprint for s in made)}) == len(choices) + 1
    assert rl.load_signal(tmp_path).fingerprint == plain.fingerprint
    subject = made[0].score(ITEMS).subject
    assert subject.notes["sign"] == -1.0
    np.testing.assert_array_equal(made[0].score(ITEMS).value, -plain.score(ITEMS).value)
