"""Attribution and structure: parts add up, gradients are there, heads and experts are whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families import FAMILIES, ITEMS, PAIRS, make_model, make_tokenizer
from fault_subjects import DTYPES, ROWS, WHOLE, fresh
from fault_subjects import subject as shared_subject
from torch import nn

import reward_lens as rl
from reward_lens.backbone.taps import attach
from reward_lens.data import Item
from reward_lens.signals.decomposition import decompose

every_family = pytest.mark.parametrize("family", FAMILIES)
GROUPED = [f for f in FAMILIES if f not in ("gpt2", "gpt_neox")]  # 4 query heads, 2 of keys


@every_family
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("by", ["component", "head"])
def test_parts_add_up_for_every_row_of_the_head(family, rows, by):
    signal = shared_subject(family, rows)
    encoded = signal.encode(ITEMS)
    for readout in signal.readouts():
        found = decompose(signal, encoded, signal.read_index(encoded), readout, by=by)
        assert found.completeness <= 1e-6
        scores = signal.score(ITEMS, readout=readout.name).value.values
        np.testing.assert_allclose(found.shares.sum(-1), scores, atol=1e-5)


@every_family
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_what_half_precision_loses_is_a_part_of_its_own(family, dtype):
    signal = shared_subject(family, 1, dtype)
    encoded = signal.encode(ITEMS)
    found = decompose(signal, encoded, signal.read_index(encoded), signal.readout())
    assert found.names[-1] == "rounding"
    assert found.closure <= 1e-9
    assert np.abs(found.shares[:, -1]).max() > 0


@every_family
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
def test_gradients_reach_every_layer(family, dtype, rows):
    """A forward that detaches, or reads an argmax, would give zeros without a word."""
    signal = shared_subject(family, rows, dtype)
    for readout in signal.readouts():
        for site in ("embed", "L0.attn_out", "L1.mlp_out", "L2.resid_post"):
            (gradient,) = signal.gradient(ITEMS[:1], site, readout=readout.name)
            assert torch.isfinite(gradient).all()
            assert gradient.abs().max() > 0
            if site == "L0.attn_out":  # and every earlier token that attention can reach
                assert (gradient.abs().amax(-1)[-8:] > 0).all()


@every_family
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_a_padded_batch_are_finite_and_those_of_each_text(family, dtype):
    signal = shared_subject(family, 1, dtype)
    items = [Item(ids=(7,)), *ITEMS[:3]]
    together = signal.gradient(items, "L0.resid_post", batch_tokens=WHOLE)
    tolerance = 1e-4 if dtype == "float32" else 0.2
    for item, found in zip(items, together, strict=True):
        (alone,) = signal.gradient([item], "L0.resid_post")
        assert torch.isfinite(found).all()
        gap = (found.float() - alone.float()).abs().max()
        assert gap <= tolerance * alone.float().abs().max()


@pytest.mark.parametrize("family", GROUPED)
def test_a_query_head_under_grouped_keys(family):
    """Four query heads share two of keys: what the last map takes in is split by query head."""
    signal = shared_subject(family)
    attention = signal.trunk.model.config
    assert (attention.num_attention_heads, attention.num_key_value_heads) == (4, 2)
    heads = signal.trunk.anatomy.blocks[1].attn.heads
    assert heads.n == 4
    encoded = signal.encode(ITEMS[:1])
    (batch,) = signal.trunk.batches(encoded, WHOLE)
    last = len(encoded[0].ids) - 1
    plain = signal.capture(ITEMS[:1], ["L1.head_in", "L1.head_out", "L1.attn_raw"])
    weight = signal.trunk.model.model.layers[1].self_attn.o_proj.weight.detach()
    width = weight.shape[1] // 4
    for k in range(4):
        seen = []
        part = slice(k * width, (k + 1) * width)

        def silence(x, part=part):
            x = x.clone()
            x[..., part] = 0
            return x

        raw = signal.trunk.anatomy.blocks[1].attn
        after = raw.norm_input or raw.tap
        with torch.no_grad(), attach({heads.mixed: silence, after: seen.append}):
            signal.trunk.base(input_ids=batch.ids, attention_mask=batch.mask)
        lost = plain["L1.attn_raw"][0] - seen[0][0, last]
        own = weight[:, part] @ plain["L1.head_in"][0].reshape(-1)[part]
        torch.testing.assert_close(lost, own, rtol=1e-4, atol=1e-5)
        assert own.abs().max() > 1e-3


@pytest.mark.parametrize("family", GROUPED)
def test_values_of_a_group_serve_its_query_heads(family):
    """With one key group's values silenced, exactly the two query heads that share it go quiet."""
    group = 1
    model = make_model(family)
    values = model.model.layers[1].self_attn.v_proj
    width = values.weight.shape[0] // 2
    with torch.no_grad():
        values.weight[group * width : (group + 1) * width] = 0
        if values.bias is not None:
            values.bias[group * width : (group + 1) * width] = 0
    signal = rl.wrap_hf_model(model, make_tokenizer(), conformance_quickcheck=False)
    mixed = signal.capture(ITEMS[:2], ["L1.head_in"])["L1.head_in"].reshape(2, 4, -1)
    quiet = (mixed.abs().amax((0, 2)) == 0).tolist()
    assert quiet == [h // 2 == group for h in range(4)]


class Packed(nn.Module):
    """A linear map kept as whole numbers and a scale, as quantised checkpoints do.

    Its ``weight`` has the shape of a matrix and is not the matrix.
    """

    def __init__(self, linear):
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x):
        matrix = self.weight.to(self.scale.dtype) * self.scale
        return nn.functional.linear(x, matrix.to(x.dtype), self.bias)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gpt_neox"])
@pytest.mark.parametrize("by", ["component", "head"])
def test_packed_weights_are_used_as_they_act(family, by):
    model = make_model(family)
    for module in list(model.base_model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Packed(child))
    signal = rl.wrap_hf_model(model.eval(), make_tokenizer())
    assert signal.meta.granularity == "head"
    encoded = signal.encode(ITEMS)
    found = decompose(signal, encoded, signal.read_index(encoded), signal.readout(), by=by)
    assert found.completeness <= 1e-6
    plain = shared_subject(family).score(ITEMS).value.values
    gap = np.abs(signal.score(ITEMS).value.values - plain).max()
    assert 0 < gap < np.ptp(plain)  # packing changes the scores a little, so it was used


@every_family
def test_a_difference_of_two_texts_is_complete(family):
    ev = rl.attribution(shared_subject(family), PAIRS, by="head")
    scores = shared_subject(family).score(ITEMS).value.values.astype(float).reshape(-1, 2)
    total = ev.value.sel(side="margin").sum("write").values
    np.testing.assert_allclose(total, scores[:, 0] - scores[:, 1], atol=1e-5)
    assert ev.tables["completeness"]["completeness"][0] <= 1e-6


def test_the_same_text_on_both_sides_differs_in_nothing():
    signal = fresh("gemma2")
    same = [(p, a, a) for p, a, _ in PAIRS]
    ev = rl.attribution(signal, same)
    assert float(np.abs(ev.value.sel(side="margin")).max()) == 0
    assert float(np.abs(ev.value.sel(side="chosen")).max()) > 0
