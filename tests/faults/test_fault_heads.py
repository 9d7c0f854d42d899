"""Heads and weights: loaded whole, the same in every process, never rewritten, never squashed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from families import FAMILIES, ITEMS, PAIRS, make_model, make_signal, make_tokenizer
from fault_subjects import (
    DTYPES,
    ROWS,
    SOME,
    WHOLE,
    assert_same,
    each_row,
    fresh,
    native,
    reference,
)
from fault_subjects import subject as shared_subject
from safetensors.torch import load_file, save_file

import reward_lens as rl
from reward_lens.errors import CheckpointError, LoadError
from reward_lens.signals.conformance import PROBES

every_family = pytest.mark.parametrize("family", FAMILIES)
both_heads = pytest.mark.parametrize("rows", ROWS)


def save(folder, family, rows=1, dtype="float32", **changes):
    model = make_model(family, dtype=getattr(torch, dtype), num_labels=rows, **changes)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return model


def rename(folder, change):
    """Give every tensor of a checkpoint the name that ``change`` makes of its own."""
    path = folder / "model.safetensors"
    tensors = {change(k): v for k, v in load_file(path).items()}
    save_file({k: v for k, v in tensors.items() if k}, path, metadata={"format": "pt"})


def load_or_refusal(folder):
    """The signal, or what the refusal says; anything else than these two is an error."""
    try:
        return rl.load_signal(folder, conformance_quickcheck=False), ""
    except LoadError as error:
        return None, str(error)


def digest(model):
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize("family", SOME)
@both_heads
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_head_that_is_loaded_is_the_one_in_the_file(tmp_path, family, rows, dtype):
    save(tmp_path, family, rows, dtype)
    stored = load_file(tmp_path / "model.safetensors")["score.weight"]
    signal = rl.load_signal(tmp_path, dtype=dtype, conformance_quickcheck=False)
    found, _ = signal.head()
    assert found.shape == (rows, 32)
    assert torch.equal(found, stored.float())
    named = [r for r in signal.readouts() if len(r.rows) == 1]
    assert torch.equal(torch.stack([r.direction for r in named]), stored.float())


_SCORE = """
import sys
import reward_lens as rl
from families import ITEMS
for folder in sys.argv[1:]:
    dtype = folder.rsplit("-", 1)[1]
    signal = rl.load_signal(folder, dtype=dtype, conformance_quickcheck=False)
    for readout in signal.readouts():
        scores = signal.score(ITEMS, readout=readout.name).value.values
        print(folder, readout.name, scores.tobytes().hex())
"""


def test_three_processes_give_the_same_bits(tmp_path):
    """Two fresh ones and this one: a head left random would differ in each."""
    wanted = [("llama", 3, "float32"), ("gpt2", 1, "float32"), ("mixtral", 1, "bfloat16")]
    folders, here = [], []
    for family, rows, dtype in wanted:
        folder = tmp_path / f"{family}-{dtype}"
        save(folder, family, rows)
        folders.append(str(folder))
        signal = rl.load_signal(folder, dtype=dtype, conformance_quickcheck=False)
        for readout in signal.readouts():
            scores = signal.score(ITEMS, readout=readout.name).value.values
            assert np.ptp(scores) > 0.1
            here.append(f"{folder} {readout.name} {scores.tobytes().hex()}")
        if dtype == "float32":
            assert_same(each_row(signal, ITEMS), reference(family, rows), family)
    command = [sys.executable, "-c", _SCORE, *folders]
    where = {"cwd": Path(__file__).parents[1], "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, **where) for _ in range(2)]
    printed = [p.communicate(timeout=120)[0].splitlines() for p in running]
    assert [p.returncode for p in running] == [0, 0]
    assert printed[0] == printed[1] == here
    assert len(here) == (1 + 3) + 1 + 1


@pytest.mark.parametrize("rows", ROWS)
def test_every_key_is_needed_and_named_when_it_is_gone(tmp_path, rows):
    """Not the head alone: any tensor that would be left random is an error that names it."""
    save(tmp_path, "llama", rows)
    whole = load_file(tmp_path / "model.safetensors")
    for gone in whole:
        kept = {k: v for k, v in whole.items() if k != gone}
        save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match=gone.replace(".", r"\.")):
            rl.load_signal(tmp_path, conformance_quickcheck=False)


@pytest.mark.parametrize("prefix", ["module.", "base_model.model.", "_orig_mod.", "transformer."])
@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_a_wrappers_prefix_is_understood_or_refused(tmp_path, family, prefix):
    """Either the weights are found under it, or the load is refused; never random ones."""
    save(tmp_path, family)
    if prefix == "transformer." and family == "gpt2":
        prefix = "model.transformer."
    rename(tmp_path, lambda k: prefix + k)
    signal, refusal = load_or_refusal(tmp_path)
    if signal is None:
        assert prefix in refusal
    else:
        assert_same(each_row(signal, ITEMS), reference(family), prefix)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_trunk_without_its_prefix_is_understood_or_refused(tmp_path, family):
    """Saved from the base model: the trunk's keys lack the name of the part they belong to."""
    save(tmp_path, family)
    rename(tmp_path, lambda k: k.removeprefix("model.").removeprefix("transformer."))
    signal, refusal = load_or_refusal(tmp_path)
    if signal is None:
        assert "layers.0" in refusal or "h.0" in refusal
    else:
        assert_same(each_row(signal, ITEMS), reference(family))


@every_family
@both_heads
def test_a_sound_model_passes_the_quick_check_with_any_number_of_rows(family, rows):
    assert make_signal(family, num_labels=rows).meta.quickcheck == "passed"


@every_family
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_weight_is_ever_rewritten(family, dtype):
    """No folding, no centring, no module swapped: the bits and the modules stay as they were."""
    signal = fresh(family, 1, dtype)
    model = signal.trunk.model
    untouched = make_model(family, dtype=getattr(torch, dtype))
    assert digest(model) == digest(untouched)
    kinds = [type(m) for m in model.modules()]
    signal.score(ITEMS[:2])
    signal.score_prefixes(ITEMS[:2])
    signal.capture(ITEMS[:2], ["L1.attn_out", "L1.head_out", "final_norm"])
    signal.gradient(ITEMS[:2], "L0.resid_post")
    rl.lens(signal, PAIRS[:2])
    if dtype == "float32":
        rl.attribution(signal, PAIRS[:2], by="head")
        rl.run_conformance(signal, PROBES[:2])
    assert digest(model) == digest(untouched)
    assert [type(m) for m in model.modules()] == kinds == [type(m) for m in untouched.modules()]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


@every_family
@both_heads
@pytest.mark.parametrize(
    "problem", [None, "regression", "single_label_classification", "multi_label_classification"]
)
def test_the_score_is_the_raw_logit(family, rows, problem, monkeypatch):
    """No softmax (over one label it is always 1), no sigmoid, whatever the configuration names."""
    signal = shared_subject(family, rows)
    monkeypatch.setattr(signal.trunk.model.config, "problem_type", problem)
    expected = np.stack([native(signal, e.ids) for e in signal.encode(ITEMS)])
    assert_same(each_row(signal, ITEMS, batch_tokens=WHOLE), expected, str(problem))
    assert (np.abs(expected) > 1).any()


@every_family
def test_the_read_token_is_printed_with_its_index(family):
    signal = shared_subject(family)
    ev = signal.score(ITEMS)
    for k, encoded in enumerate(signal.encode(ITEMS)):
        read = int(ev.value.read_index[k])
        token = signal.encoder.tokenizer.decode([int(encoded.ids[read])])
        assert str(ev.value.read_token.values[k]) == token
        assert int(ev.value.n_tokens[k]) == len(encoded.ids)
    frame = ev.to_dataframe()
    assert {"read_index", "read_token", "n_tokens"} <= set(frame.columns)


@pytest.mark.parametrize("family", SOME)
@pytest.mark.parametrize("field", ["output_router_logits", "output_hidden_states", "use_cache"])
def test_switches_of_the_configuration_do_not_change_the_score(family, field):
    """Router logits, states or a cache on the side are never asked for, so none can interfere."""
    signal = fresh(family, **{field: True})  # its own model: transformers hooks it for some
    assert getattr(signal.trunk.model.config, field) is True
    assert_same(each_row(signal, ITEMS), reference(family), field)
    rl.lens(signal, PAIRS[:2])
    rl.attribution(signal, PAIRS[:2])
