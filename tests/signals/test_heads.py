"""Every head convention scores as its own formula says, or is refused by the key that is wrong."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from heads_on_disk import CASES, EOS, LLAMA_3, WIDTH, by_hand, draw, edit, write

import reward_lens as rl
from reward_lens.backbone.headed import HeadedModel
from reward_lens.errors import CheckpointError, TokenizeError
from reward_lens.signals.checkpoint_model import read_checkpoint

BY_NAME = {c.name: c for c in CASES}


def parts(keep=lambda case, key: True):
    """Every case with every key of its head whose loss must be noticed."""
    return [
        pytest.param(case, key, id=f"{case.name}-{key}")
        for case in CASES
        for key in case.tensors()
        if key not in case.harmless and keep(case, key)
    ]


def file_of(case):
    return "value_head.safetensors" if case.side else "model.safetensors"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_head_scores_as_its_formula(tmp_path, case):
    base = write(tmp_path, case)
    read = read_checkpoint(tmp_path, dtype="float32")
    with torch.no_grad():
        logits = read.model(input_ids=torch.tensor([case.row])).logits
    np.testing.assert_allclose(logits[0].numpy(), by_hand(case, base), rtol=1e-5, atol=1e-5)
    assert read.convention.head == case.head
    assert read.convention.sign == case.sign
    assert not set(read.ignored_keys) & (set(case.tensors()) - set(case.harmless))
    assert set(read.ignored_keys) >= set(case.extra)
    assert read.model.config.num_labels == logits.shape[1]
    assert not read.model.training


@pytest.mark.parametrize("case", [c for c in CASES if c.composite], ids=str)
def test_a_gated_score_as_published(tmp_path, case):
    base = write(tmp_path, case)
    read = read_checkpoint(tmp_path, dtype="float32")
    expected = by_hand(case, base, case.composite)
    ids = torch.tensor([case.row])
    with torch.no_grad():
        np.testing.assert_allclose(read.model.composite(ids), expected, rtol=1e-5, atol=1e-5)
        gate = read.convention.gate
        hidden = read.model.base_model(input_ids=ids).last_hidden_state[0]
        weights = gate.coefficients(hidden[[gate.index(case.row)]])
        rows = read.model(input_ids=ids).logits
    assert weights.dtype == torch.float32
    np.testing.assert_allclose((weights * rows).sum(-1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_signal_made_of_a_head(tmp_path, case):
    """The whole way: quick check passed, the reward is the formula's with the cost's sign."""
    base = write(tmp_path, case)
    signal = rl.load_signal(tmp_path)
    item = rl.Item(ids=tuple(case.row))
    expected = case.sign * by_hand(case, base).mean()
    np.testing.assert_allclose(signal.score([item]).value, [expected], rtol=1e-5, atol=1e-5)
    assert signal.meta.quickcheck == "passed"
    assert (signal.meta.head, signal.meta.sign) == (case.head, case.sign)
    if case.composite is not None:
        gated = signal.score([item], readout="composite").value
        expected = by_hand(case, base, case.composite)
        np.testing.assert_allclose(gated, expected, rtol=1e-5, atol=1e-5)


def test_a_text_without_the_gates_pattern_is_refused(tmp_path):
    write(tmp_path, BY_NAME["ArmoRM"])
    read = read_checkpoint(tmp_path, dtype="float32")
    with pytest.raises(TokenizeError, match=r"the assistant's turn is announced.*start_header_id"):
        read.convention.gate.index([1, 2, 3])
    assert read.convention.gate.text == LLAMA_3
    assert read.convention.labels == tuple(f"objective-{k}" for k in range(4))


# Without its bias a reward_head is another head of the same convention, not a broken one.
@pytest.mark.parametrize(("case", "key"), parts(lambda case, key: key != "reward_head.bias"))
def test_a_removed_key_is_named(tmp_path, case, key):
    write(tmp_path, case)
    if len(case.tensors()) == 1 and case.side:
        (tmp_path / file_of(case)).unlink()
    else:
        edit(tmp_path, lambda t: t.pop(key), file_of(case))
    with pytest.raises(CheckpointError, match=r"missing from the checkpoint|it lacks") as error:
        read_checkpoint(tmp_path, dtype="float32")
    assert key in str(error.value).replace(".N.", ".0.")


@pytest.mark.parametrize(("case", "key"), parts())
def test_a_renamed_key_is_named(tmp_path, case, key):
    write(tmp_path, case)
    new = f"other_{key}"
    edit(tmp_path, lambda t: t.update({new: t.pop(key)}), file_of(case))
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(tmp_path, dtype="float32")
    assert new in str(error.value) or f"{key} is missing from the checkpoint" in str(error.value)


@pytest.mark.parametrize(("case", "key"), parts())
def test_a_key_of_another_shape_is_named(tmp_path, case, key):
    write(tmp_path, case)

    def widen(tensors):
        old = tensors[key]
        tensors[key] = torch.cat([old, old[..., :1]], -1)

    edit(tmp_path, widen, file_of(case))
    with pytest.raises(CheckpointError, match=rf"{key}(?s:.*)|of another shape: {key}") as error:
        read_checkpoint(tmp_path, dtype="float32")
    assert "of another shape" in str(error.value)


SINGLE = [c for c in CASES if len(c.tensors()) == 1 and c.head not in ("score", "regression_layer")]


@pytest.mark.parametrize("case", SINGLE, ids=str)
def test_a_second_row_is_refused_where_the_convention_has_one(tmp_path, case):
    (key,) = case.tensors()
    write(tmp_path, case)
    edit(tmp_path, lambda t: t.update({key: draw(2, WIDTH)}))
    with pytest.raises(CheckpointError, match=rf"{key}.*of another shape.*\[2, {WIDTH}\]"):
        read_checkpoint(tmp_path, dtype="float32")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_head_that_is_not_finite_is_named(tmp_path, case):
    write(tmp_path, case)
    key = next(k for k in case.tensors() if k not in case.harmless)
    edit(tmp_path, lambda t: t[key].view(-1)[0].fill_(float("nan")), file_of(case))
    with pytest.raises(CheckpointError, match=rf"weight {key} holds 1 values that are NaN"):
        read_checkpoint(tmp_path, dtype="float32")


@pytest.mark.parametrize("case", [BY_NAME["value_head"], BY_NAME["GRM"]], ids=str)
def test_a_missing_trunk_key_is_named(tmp_path, case):
    write(tmp_path, case)
    edit(tmp_path, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(CheckpointError, match=r"missing .*: layers.1.mlp.up_proj.weight"):
        read_checkpoint(tmp_path, dtype="float32")


def test_an_unknown_key_beside_a_known_head_is_named(tmp_path):
    write(tmp_path, BY_NAME["value_head"])
    edit(tmp_path, lambda t: t.update({"model.extra.weight": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r"used by nothing: model.extra.weight"):
        read_checkpoint(tmp_path, dtype="float32")


def test_a_batch_is_read_per_row_whatever_its_padding(tmp_path):
    """The rule is applied to each row without its padding, also where pad is a token of the text"""
    for name in ("value_head", "Starling", "OpenAssistant, mean"):
        case = BY_NAME[name]
        write(tmp_path / name, case)
        model = read_checkpoint(tmp_path / name, dtype="float32").model
        rows = [case.row, case.row[:4], [11, 12]]
        with torch.no_grad():
            alone = torch.cat([model(input_ids=torch.tensor([r])).logits for r in rows])
            for side in ("left", "right"):
                ids, mask = torch.full((3, 7), EOS), torch.zeros(3, 7, dtype=torch.long)
                for k, row in enumerate(rows):
                    span = slice(0, len(row)) if side == "right" else slice(7 - len(row), 7)
                    ids[k, span], mask[k, span] = torch.tensor(row), 1
                batched = model(input_ids=ids, attention_mask=mask).logits
                torch.testing.assert_close(batched, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["value_head", "GRM", "ArmoRM", "Beaver reward"])
def test_a_bfloat16_checkpoint_keeps_its_dtype_or_is_widened(tmp_path, name):
    case = BY_NAME[name]
    base = write(tmp_path, case, torch.bfloat16)
    kept = read_checkpoint(tmp_path).model
    assert kept.dtype == torch.bfloat16
    assert next(kept.head.parameters()).dtype == torch.bfloat16
    wide = read_checkpoint(tmp_path, dtype="float32").model
    assert {p.dtype for p in wide.parameters()} == {torch.float32}
    ids = torch.tensor([case.row])
    with torch.no_grad():
        scale = float(by_hand(case, base.float()).max() - by_hand(case, base.float()).min()) + 1.0
        torch.testing.assert_close(
            kept(input_ids=ids).logits.float(), wide(input_ids=ids).logits, rtol=0.1,
            atol=0.2 * scale,
        )  # fmt: skip


def test_a_float32_head_on_a_bfloat16_trunk_stays_float32(tmp_path):
    case = BY_NAME["value_head"]
    write(tmp_path, case, torch.bfloat16)
    edit(tmp_path, lambda t: t.update(case.tensors()))
    read = read_checkpoint(tmp_path, dtype="bfloat16")
    assert read.model.head.weight.dtype == torch.float32
    torch.testing.assert_close(read.model.head.weight, case.tensors()["value_head.weight"])
    with torch.no_grad():
        assert read.model(input_ids=torch.tensor([case.row])).logits.dtype == torch.float32


def test_a_normaliser_stays_float32_on_a_bfloat16_trunk(tmp_path):
    case = BY_NAME["Beaver reward"]
    write(tmp_path, case, torch.bfloat16)
    edit(tmp_path, lambda t: t.update({"normalizer.mean": torch.tensor([0.7])}))
    linear, normaliser = read_checkpoint(tmp_path).model.head
    assert linear.weight.dtype == torch.bfloat16
    assert normaliser.scale.dtype == torch.float32
    np.testing.assert_allclose(normaliser.shift.detach(), [-0.7 / 1.5], rtol=1e-6)


def test_mean_and_std_are_applied_only_where_the_configuration_says_so(tmp_path):
    case = BY_NAME["openrlhf score"]
    base = write(tmp_path, case)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "normalize_reward": False}))
    read = read_checkpoint(tmp_path, dtype="float32")
    raw = by_hand(case, base) * 1.5 + 0.25
    with torch.no_grad():
        logits = read.model(input_ids=torch.tensor([case.row])).logits
    np.testing.assert_allclose(logits[0], raw, rtol=1e-5, atol=1e-5)
    assert any("not applied" in n for n in read.convention.notes)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("OpenAssistant, last", {"pooling": "max"}, "config.pooling is 'max'"),
        ("Beaver reward", {"score_type": "praise"}, "config.score_type is 'praise'"),
        ("openrlhf score", {"mean": None}, "no mean and std"),
        ("QRM", {"num_quantiles": 4}, r"regression_layer.weight is \[15, 16\].*4 quantiles"),
        ("QRM", {"num_quantiles": None}, r"not 3 objectives × 1 quantile \("),
        ("ArmoRM", {"model_type": "mistral"}, "gating_token_pattern"),
    ],
)
def test_a_configuration_that_the_convention_does_not_know(tmp_path, name, change, message):
    write(tmp_path, BY_NAME[name])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(tmp_path, dtype="float32")


def test_indices_follow_the_states_device():
    """Where a device map leaves the states elsewhere than the ids, indexing must not fail."""

    class Elsewhere(torch.nn.Module):
        config = SimpleNamespace(pad_token_id=None)

        def forward(self, input_ids):
            return (torch.zeros(*input_ids.shape, 4, device="meta"),)

    model = HeadedModel(Elsewhere(), torch.nn.Linear(4, 2, device="meta"), rule="last")
    logits = model(input_ids=torch.tensor([[1, 2, 3]])).logits
    assert logits.device.type == "meta"
    assert logits.shape == (1, 2)
