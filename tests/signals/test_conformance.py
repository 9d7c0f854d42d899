"""Every check passes on a sound signal, and a sabotage of its kind fails it by name."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from families import FAMILIES, make_model, make_signal, make_tokenizer
from torch import nn

import reward_lens as rl
from reward_lens.backbone import Encoded, batching, row_choice, trunk
from reward_lens.backbone.inputs import Inputs
from reward_lens.errors import RewardLensError

NAMES = [
    "tokenizer fits", "checkpoint keys", "template round trip", "determinism", "batch = alone",
    "padding side", "head = native", "composite = native", "read position",
    "prefix curve", "completeness", "hooked = plain", "patch engine", "finite", "four threads",
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_sound_signal_conforms(family, dtype):
    report = rl.run_conformance(rl.wrap_hf_model(make_model(family, dtype=dtype), make_tokenizer()))
    assert report.passed, str(report)
    assert [c.name for c in report.checks] == NAMES
    for check in report.checks:
        assert check.measured
        assert check.allowed
    assert f"ok     {NAMES[0]}" in str(report)


def failed(signal):
    return rl.run_conformance(signal).failed


def change(signal, **changes):
    signal.trunk.anatomy = dataclasses.replace(signal.trunk.anatomy, **changes)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_dropped_final_norm(family):
    signal = make_signal(family)
    change(signal, final_norm=None, normed=signal.trunk.anatomy.blocks[-1].leave)
    assert "head = native" in failed(signal)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_read_index_shifted_by_one(family, monkeypatch):
    signal = make_signal(family)
    monkeypatch.setattr(Encoded, "read", lambda self, position: self.native - 1)
    assert "read position" in failed(signal)


def test_position_ids_that_are_not_passed(monkeypatch):
    signal = make_signal("gpt2")  # absolute positions: relative ones do not mind
    honest = Inputs.of_batch

    def of_batch(self, batch):
        return {k: v for k, v in honest(self, batch).items() if k != "position_ids"}

    monkeypatch.setattr(Inputs, "of_batch", of_batch)
    assert failed(signal) == ["padding side"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_randomised_head(family):
    signal = make_signal(family)
    torch.manual_seed(1)
    head = signal.trunk.anatomy.head
    step = dataclasses.replace(head.steps[0], module=nn.Linear(32, 1, bias=False))
    change(signal, head=dataclasses.replace(head, steps=(step,)))
    assert "head = native" in failed(signal)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_read_that_assumes_padding_on_the_right(family, monkeypatch):
    signal = make_signal(family)
    honest = row_choice.read_rows

    def read_rows(read):
        def select(batch, tensor):
            return honest(read)(dataclasses.replace(batch, offset=0 * batch.offset), tensor)

        return select

    monkeypatch.setattr("reward_lens.signals.probed.read_rows", read_rows)
    assert failed(signal) == ["padding side"]


def test_a_mask_that_is_all_ones(monkeypatch):
    signal = make_signal("llama")
    honest = batching.collate

    def collate(*args):
        batch = honest(*args)
        return dataclasses.replace(batch, mask=torch.ones_like(batch.mask))

    monkeypatch.setattr(trunk, "collate", collate)
    assert "padding side" in failed(signal)


def test_dropout_left_on():
    signal = make_signal("gpt2")
    for module in signal.trunk.model.modules():
        if isinstance(module, nn.Dropout):
            module.training = True  # as a careless train() of one part would
    with pytest.raises(RewardLensError, match="a part of it, is in training mode"):
        failed(signal)


def test_noise_that_is_no_dropout():
    signal = make_signal("gpt2")
    block = signal.trunk.anatomy.blocks[0].enter.module
    block.mlp.register_forward_hook(lambda m, given, out: out + 0.1 * torch.randn_like(out))
    assert "determinism" in failed(signal)


def test_a_write_that_was_not_found():
    signal = make_signal("llama")
    blocks = list(signal.trunk.anatomy.blocks)
    blocks[1] = dataclasses.replace(blocks[1], mlp=blocks[0].mlp)
    change(signal, blocks=tuple(blocks))
    assert failed(signal) == ["completeness"]


def test_hooks_that_change_what_they_see(monkeypatch):
    signal = make_signal("llama")
    honest = trunk.attach
    monkeypatch.setattr(
        trunk,
        "attach",
        lambda handlers: honest(
            {t: lambda x, h=h: (h(x), x + 1e-3)[1] for t, h in handlers.items()}
        ),
    )
    assert "hooked = plain" in failed(signal)


def test_a_batch_that_leaks():
    """A trunk that adds the batch's mean to every row depends on what else is in the batch."""
    model = make_model("llama")
    signal = rl.wrap_hf_model(model, make_tokenizer())
    block = signal.trunk.anatomy.blocks[0].leave.module
    block.register_forward_hook(lambda m, a, out: out + out.mean(0, keepdim=True))
    assert "batch = alone" in failed(signal)


def test_a_trunk_that_looks_ahead():
    model = make_model("llama")
    signal = rl.wrap_hf_model(model, make_tokenizer())
    block = signal.trunk.anatomy.blocks[0].leave.module
    block.register_forward_hook(lambda m, a, out: out + 0.1 * out.flip(1))
    assert "prefix curve" in failed(signal)


def test_two_bos(monkeypatch):
    signal = make_signal("llama")
    bos = signal.encoder.tokenizer.bos_token_id
    signal = signal.with_meta(bos="template")
    monkeypatch.setattr(signal.encoder, "_one_bos", lambda ids: [bos, bos, *ids])
    assert "template round trip" in failed(signal)


def test_offsets_that_lie(monkeypatch):
    signal = make_signal("llama")
    monkeypatch.setattr(signal.encoder, "_spans", lambda *a: None)
    assert "template round trip" in failed(signal)


def test_a_tokenizer_of_another_model():
    signal = make_signal("llama")
    signal.encoder.tokenizer.add_tokens(["<far>", "<further>"])
    assert failed(signal) == ["tokenizer fits"]


def test_weights_that_are_not_the_files(tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    signal = rl.load_signal(tmp_path)
    assert rl.run_conformance(signal).passed
    with torch.no_grad():
        signal.trunk.model.score.weight[0, 0] += 1
    report = rl.run_conformance(signal)
    assert report.failed == ["checkpoint keys"]
    assert "first score.weight" in report["checkpoint keys"].measured


def test_a_shared_buffer_between_threads(monkeypatch):
    """Hooks without regard for the thread mix up two texts' activations."""
    from types import SimpleNamespace

    signal = make_signal("llama")
    careless = SimpleNamespace(get_ident=lambda: 1)
    monkeypatch.setattr("reward_lens.backbone.taps.threading", careless)
    for _ in range(20):
        try:
            if "four threads" in failed(signal):
                return
        except (KeyError, IndexError, RuntimeError):  # mixed-up hooks may also just break
            return
    pytest.fail("threads were never mixed up")


def test_weights_that_overflow():
    model = make_model("llama")
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(1e6)
    report = rl.run_conformance(rl.wrap_hf_model(model, make_tokenizer()))
    assert "float16 NOT FINITE" in report["finite"].measured


def test_the_table_says_what_a_failure_means():
    signal = make_signal("llama")
    torch.manual_seed(1)
    head = signal.trunk.anatomy.head
    step = dataclasses.replace(head.steps[0], module=nn.Linear(32, 1, bias=False))
    change(signal, head=dataclasses.replace(head, steps=(step,)))
    report = rl.run_conformance(signal)
    assert "our score is not the model's own" in str(report)
    with pytest.raises(rl.errors.ConformanceError, match="does not behave as its checkpoint"):
        report.raise_if_failed()
