"""Precision: exact in float32, measured and honest in half precision, ranked by a float32 read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from families import BOS, EOS, FAMILIES, ITEMS, PAD, PAIRS, VOCAB, make_model, make_tokenizer
from fault_subjects import DTYPES, WHOLE, assert_same, each_row, fresh, native, reference
from fault_subjects import subject as shared_subject
from transformers import AutoModelForSequenceClassification, Olmo2Config

import reward_lens as rl
from reward_lens.audit_checks import batch_effect
from reward_lens.backbone import Site
from reward_lens.data import Item
from reward_lens.evidence import read_jsonl, write_jsonl

HALF = DTYPES[1:]
every_family = pytest.mark.parametrize("family", FAMILIES)


@every_family
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_attention_kernel_is_recorded(family, dtype):
    signal = shared_subject(family, 1, dtype)
    kernel = signal.trunk.model.config._attn_implementation
    assert kernel in ("eager", "sdpa")
    assert signal.meta.kernel == kernel
    ev = signal.score(ITEMS[:2])
    assert ev.provenance.kernel == kernel
    assert ev.provenance.dtype == dtype
    assert kernel in ev.receipt()


def test_soft_caps_are_never_run_under_a_kernel_that_drops_them():
    """The fused kernel has no soft cap: the default runs without it, and asking for it raises."""
    assert shared_subject("gemma2").meta.kernel == "eager"
    with pytest.raises(ValueError, match="scaled_dot_product_attention"):
        make_model("gemma2").set_attn_implementation("sdpa")


@every_family
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_float32_agrees_under_either_kernel(family, kernel):
    if family == "gemma2" and kernel == "sdpa":
        pytest.skip("transformers refuses soft-capped attention under sdpa")
    model = make_model(family)
    model.set_attn_implementation(kernel)
    signal = rl.wrap_hf_model(model, make_tokenizer(), conformance_quickcheck=False)
    assert signal.meta.kernel == kernel
    assert_same(each_row(signal, ITEMS, batch_tokens=WHOLE), reference(family), kernel)


@every_family
@pytest.mark.parametrize("dtype", HALF)
def test_the_batchs_effect_in_half_precision_is_measured(family, dtype):
    signal = shared_subject(family, 1, dtype)
    pairs = rl.Pairs(rl.load_pairs(PAIRS))
    options = {"readout": "reward", "truncate": "error", "batch_tokens": WHOLE}
    scores = rl.preference(signal, pairs, **options)
    found = batch_effect(signal, pairs, scores, **options)
    alone = np.array(
        [[float(signal.score([(p, r)]).value[0]) for r in (a, b)] for p, a, b in PAIRS]
    )
    margins = alone[:, 0] - alone[:, 1]
    gap = scores.value.sel(side="margin").values - margins
    np.testing.assert_allclose(found.value, gap, atol=1e-6)
    summary = found.tables["summary"].iloc[0]
    scale = np.median(np.abs(margins))
    assert summary["largest_share"] == pytest.approx(np.abs(gap).max() / scale, abs=1e-6)
    assert summary["sign_changes"] == (np.sign(gap + margins) != np.sign(margins)).sum()
    assert summary["could_flip"] == (np.abs(margins) <= np.abs(gap).max()).sum()


@every_family
@pytest.mark.parametrize("dtype", DTYPES)
def test_where_alone_and_batched_first_part(family, dtype):
    """Layer by layer: equal at the start, and from then on apart by rounding of that dtype only."""
    signal = shared_subject(family, 1, dtype)
    sites = ["embed", *(f"L{k}.resid_post" for k in range(3))]
    together = signal.capture(ITEMS, sites, batch_tokens=WHOLE)
    alone = signal.capture(ITEMS, sites, batch_tokens=1)
    gap = [
        float(((together[s] - alone[s]).abs().max() / alone[s].abs().max()).float()) for s in sites
    ]
    assert gap[0] == 0  # an embedding knows nothing of the batch
    assert max(gap) <= 50 * torch.finfo(getattr(torch, dtype)).eps


@every_family
@pytest.mark.parametrize("dtype", HALF)
def test_hooked_and_plain_forward_are_bit_equal_in_half_precision(family, dtype):
    signal = shared_subject(family, 1, dtype)
    (batch,) = signal.trunk.batches(signal.encode(ITEMS), WHOLE)
    kinds = ("resid_pre", "attn_out", "mlp_out", "resid_post", "head_in")
    sites = [Site(k, i) for i in range(3) for k in kinds]
    hooked = signal.trunk.capture(batch, [*sites, Site("final_norm")])
    with torch.no_grad():
        plain = signal.trunk.base(
            input_ids=batch.ids, attention_mask=batch.mask, position_ids=batch.positions
        ).last_hidden_state
    assert torch.equal(hooked[Site("final_norm")], plain)
    assert {t.dtype for t in hooked.values()} == {getattr(torch, dtype)}


def olmo2(dtype: str) -> Any:
    """A family that norms what its sublayers hand out, before it is added."""
    config = Olmo2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, num_labels=1, max_position_embeddings=256,
        pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_config(config)
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() == 1:
                    p += 0.1 * torch.randn(p.shape)
            model.score.weight.normal_()
    model = model.to(getattr(torch, dtype)).eval()
    return rl.wrap_hf_model(model, make_tokenizer())


@pytest.mark.parametrize("family", [*FAMILIES, "olmo2"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norms_of_every_order_are_the_models_own_in_its_dtype(family, dtype):
    """Our state is the model's to the bit, so the score differs by the head's rounding only."""
    signal = olmo2(dtype) if family == "olmo2" else shared_subject(family, 1, dtype)
    weight = signal.trunk.model.score.weight.detach().float()
    for encoded, item in zip(signal.encode(ITEMS), ITEMS, strict=True):
        with torch.no_grad():
            ids = torch.as_tensor(encoded.ids)[None]
            mask = torch.ones_like(ids)
            state = signal.trunk.base(input_ids=ids, attention_mask=mask).last_hidden_state[0, -1]
        expected = float((weight[0] @ state.float()).double())
        size = float(weight[0].abs() @ state.float().abs())
        got = float(signal.score([item]).value[0])
        assert abs(got - expected) <= 1e-6 * size
        loss = 2 * torch.finfo(state.dtype).eps * size
        assert abs(got - float(native(signal, encoded.ids)[0])) <= loss


@every_family
def test_ties_of_a_bfloat16_head_are_not_ours(family):
    """Near 9 a bfloat16 logit moves in steps of 1/16: texts tie there that a float32 read ranks."""
    signal = fresh(family, 1, "bfloat16")
    head = signal.trunk.model.score
    items = [Item(ids=(BOS, *range(k, k + 4))) for k in range(0, 160, 2)]
    states = signal.capture(items, ["final_norm"])["final_norm"]
    scores = signal.score(items).value.values
    with torch.no_grad():
        logits = head(states)[:, 0]
    assert logits.dtype == torch.bfloat16
    assert len(torch.unique(logits)) < len(items)  # the model's own head ties some
    assert scores.dtype == np.float32
    assert len(np.unique(scores)) == len(items)
    exact = (states.double() @ head.weight.detach().double()[0]).numpy()
    assert (np.argsort(scores) == np.argsort(exact)).all()


@every_family
@pytest.mark.parametrize("dtype", HALF)
def test_directions_stay_float32_beside_a_half_precision_trunk(family, dtype, tmp_path):
    signal = shared_subject(family, 3, dtype)
    assert {r.direction.dtype for r in signal.readouts()} == {torch.float32}
    ev = signal.score(ITEMS[:3])
    write_jsonl(tmp_path / "e.jsonl", [ev])
    (again,) = read_jsonl(tmp_path / "e.jsonl")
    assert again.value.dtype == ev.value.dtype == np.float32
    np.testing.assert_array_equal(again.value, ev.value)
