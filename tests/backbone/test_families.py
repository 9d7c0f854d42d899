"""What must hold for every family: structure, exactness, and independence of the batch."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from families import EOS, FAMILIES, ITEMS, PAD, PAIRS, make_model, make_signal, make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

import reward_lens as rl
from reward_lens.backbone import Granularity, Site, Trunk
from reward_lens.data import Item
from reward_lens.errors import AnatomyError, NumericsError
from reward_lens.signals.decomposition import decompose

PARALLEL = {"gpt_neox"}
CENTRED = {"gpt2", "gpt_neox"}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def signal(family):
    return make_signal(family)


@torch.no_grad()
def native(signal, item):
    """The judge: the model's own logits for one unpadded text."""
    (encoded,) = signal.encode([item])
    ids = torch.from_numpy(encoded.ids)[None]
    return float(signal.trunk.model(input_ids=ids).logits[0, 0])


def test_the_anatomy_is_found(family, signal):
    anatomy = signal.trunk.anatomy
    assert anatomy.granularity is Granularity.HEAD, anatomy.missing
    assert len(anatomy.blocks) == 3
    assert anatomy.causal
    assert {b.sequential for b in anatomy.blocks} == {family not in PARALLEL}
    assert anatomy.final_norm.centred == (family in CENTRED)
    assert {b.attn.heads.n for b in anatomy.blocks} == {4}
    has_post_norm = {b.attn.norm is not None for b in anatomy.blocks}
    assert has_post_norm == {family == "gemma2"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_anatomy_is_found_in_half_precision(family, dtype):
    trunk = Trunk(make_model(family, dtype=dtype))
    assert trunk.anatomy.granularity is Granularity.HEAD, trunk.anatomy.missing


def test_score_is_the_models_own(signal):
    ours = signal.score(ITEMS).value.values
    theirs = np.array([native(signal, x) for x in ITEMS])
    assert np.ptp(theirs) > 0.1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.ptp(theirs))


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_score_does_not_depend_on_batch_order_or_padding(signal, data):
    order = data.draw(st.permutations(range(len(ITEMS))))
    tokens = data.draw(st.sampled_from([1, 64, 200, 4096]))
    left, right = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    alone = np.array([signal.score([x]).value.values[0] for x in ITEMS])
    encoded = signal.encode(ITEMS)
    given_ids = [Item(ids=(*[PAD] * left, *encoded[i].ids.tolist(), *[PAD] * right)) for i in order]
    scores = signal.score(given_ids, batch_tokens=tokens).value.values
    np.testing.assert_allclose(scores, alone[list(order)], rtol=0, atol=1e-5 * np.ptp(alone))


def test_left_padding_in_the_trunk_changes_nothing(signal):
    encoded = signal.encode(ITEMS)
    read = [e.native for e in encoded]
    from reward_lens.backbone import read_rows

    rows = {}
    for side in ("left", "right"):
        (batch,) = signal.trunk.batches(encoded, 10**6, side)
        states = signal.trunk.capture(batch, [Site("final_norm")], read_rows(read))
        out = np.empty(len(encoded))
        out[batch.index] = signal.readout().read(states[Site("final_norm")]).numpy()
        rows[side] = out
    gap = np.abs(rows["left"] - rows["right"]).max()
    assert gap <= 1e-5 * np.ptp(rows["right"])


def test_hooked_forward_is_bit_equal_to_the_plain_one(signal):
    (batch,) = signal.trunk.batches(signal.encode(ITEMS), 10**6)
    kinds = ("resid_pre", "attn_out", "mlp_out", "resid_post", "head_in", "head_out")
    sites = [Site(k, i) for i in range(3) for k in kinds]
    hooked = signal.trunk.capture(batch, [*sites, Site("final_norm")])[Site("final_norm")]
    with torch.no_grad():
        plain = signal.trunk.base(
            input_ids=batch.ids, attention_mask=batch.mask, position_ids=batch.positions
        ).last_hidden_state
    assert torch.equal(hooked, plain)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in signal.trunk.model.modules())


@pytest.mark.parametrize("by", ["component", "head"])
def test_writes_add_up_to_the_score(signal, by):
    encoded = signal.encode(ITEMS)
    read = signal.read_index(encoded)
    found = decompose(signal, encoded, read, signal.readout(), by=by)
    assert found.completeness <= 1e-6
    assert found.closure <= 1e-9
    np.testing.assert_allclose(found.score, signal.score(ITEMS).value.values, atol=1e-5)


def test_leaving_the_final_norm_out_does_not_add_up(signal):
    """The fault of the public peer: the same sum without the norm misses the score."""
    encoded = signal.encode(ITEMS)
    (seen,) = signal.sweep(encoded, [Site("resid_post", 2)], signal.read_index(encoded))
    raw = (seen.sites[Site("resid_post", 2)] @ signal.readout().direction).numpy()
    gap = np.abs(raw - signal.score(ITEMS).value.values[seen.index]).max()
    assert gap > 1e-2 * np.ptp(raw)


def test_sites_add_up(family, signal):
    c = signal.capture(
        ITEMS,
        [
            "L1.resid_pre",
            "L1.attn_out",
            "L1.mlp_out",
            "L1.resid_post",
            "L1.head_out",
            "L0.resid_post",
        ],
        position="all",
    )
    for k in range(len(ITEMS)):
        total = c["L1.resid_pre"][k] + c["L1.attn_out"][k] + c["L1.mlp_out"][k]
        torch.testing.assert_close(total, c["L1.resid_post"][k], rtol=1e-5, atol=1e-5)
        assert torch.equal(c["L0.resid_post"][k], c["L1.resid_pre"][k])
    if family in {"llama", "mistral", "qwen3", "mixtral"}:  # no bias after the heads
        torch.testing.assert_close(
            c["L1.head_out"][0].sum(1), c["L1.attn_out"][0], rtol=1e-4, atol=1e-5
        )


def test_resid_mid_exists_only_between_sublayers_in_sequence(family, signal):
    if family in PARALLEL:
        with pytest.raises(AnatomyError, match="read the same stream"):
            signal.capture(ITEMS[:1], ["L1.resid_mid"])
    else:
        c = signal.capture(ITEMS, ["L1.resid_mid", "L1.mlp_out", "L1.resid_post"])
        assert torch.equal(c["L1.resid_mid"] + c["L1.mlp_out"], c["L1.resid_post"])


def test_prefix_curve_is_the_score_of_the_cut_ids(signal):
    curves = signal.score_prefixes(ITEMS[:3]).value
    scale = float(np.nanmax(curves) - np.nanmin(curves))
    for k, encoded in enumerate(signal.encode(ITEMS[:3])):
        for cut in (1, 7, len(encoded.ids)):
            alone = signal.score([Item(ids=tuple(encoded.ids[:cut].tolist()))]).value.values[0]
            assert abs(alone - float(curves[k, cut - 1])) <= 1e-5 * scale
        assert np.isnan(curves[k, len(encoded.ids) :]).all()


def test_lens_ends_in_the_score(signal):
    ev = rl.lens(signal, PAIRS)
    scores = signal.score(ITEMS).value.values.reshape(-1, 2)
    margins = scores[:, 0] - scores[:, 1]
    for reading in ("frozen", "applied"):
        last = ev.value.sel(reading=reading).isel(depth=-1)
        np.testing.assert_allclose(last, margins, atol=1e-5)


def test_lens_applied_is_head_of_norm_of_the_stream(signal):
    ev = rl.lens(signal, PAIRS)
    c = signal.capture(ITEMS, ["embed", "L0.resid_post", "L1.resid_post"])
    for depth, site in enumerate(c):
        projected = signal.readout().project(c[site]).numpy().reshape(-1, 2)
        expected = projected[:, 0] - projected[:, 1]
        got = ev.value.sel(reading="applied").isel(depth=depth)
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_attribution_sums_to_the_margin(signal):
    for by in ("component", "head"):
        ev = rl.attribution(signal, PAIRS, by=by)
        scores = signal.score(ITEMS).value.values.reshape(-1, 2)
        total = ev.value.sel(side="margin").sum("write")
        np.testing.assert_allclose(total, scores[:, 0] - scores[:, 1], atol=1e-5)


def test_gradient_agrees_with_finite_differences(signal):
    item = ITEMS[:1]
    (gradient,) = signal.gradient(item, "L1.resid_post")
    (encoded,) = signal.encode(item)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(gradient.shape, generator=generator)
    direction /= direction.norm()
    tap = signal.trunk.anatomy.blocks[1].leave
    (batch,) = signal.trunk.batches([encoded], 10**6)

    def score(step):
        from reward_lens.backbone.taps import attach

        out = []
        normed = signal.trunk.anatomy.normed
        with torch.no_grad(), attach({tap: lambda t: t + step * direction, normed: out.append}):
            signal.trunk.base(input_ids=batch.ids, attention_mask=batch.mask)
        return float(signal.readout().read(out[0][0, encoded.native]))

    h = 1e-2
    numeric = (score(h) - score(-h)) / (2 * h)
    assert numeric == pytest.approx(float((gradient * direction).sum()), rel=2e-2, abs=1e-3)


def test_gradient_at_the_last_stream_is_the_frozen_direction_projected(signal):
    """At the end the gradient is zero except at the read token."""
    (gradient,) = signal.gradient(ITEMS[:1], "L2.resid_post")
    (encoded,) = signal.encode(ITEMS[:1])
    assert gradient[encoded.native].abs().max() > 0
    assert gradient[: encoded.native].abs().max() == 0


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_hessian_vector_product_agrees_with_gradients(family, kernel):
    if family == "gemma2" and kernel == "sdpa":
        pytest.skip("transformers refuses soft-capped attention under sdpa")
    model = make_model(family)
    model.set_attn_implementation(kernel)
    signal = rl.wrap_hf_model(model, make_tokenizer())
    item = ITEMS[:1]
    (gradient,) = signal.gradient(item, "L0.resid_post")
    generator = torch.Generator().manual_seed(1)
    u, v = (torch.randn(gradient.shape, generator=generator) for _ in range(2))
    (hv,) = signal.hvp(item, "L0.resid_post", [v])
    (hu,) = signal.hvp(item, "L0.resid_post", [u])
    assert hv.abs().max() > 0
    assert float((u * hv).sum()) == pytest.approx(float((v * hu).sum()), rel=1e-3, abs=1e-4)


def test_nan_weights_name_item_and_layer(family):
    model = make_model(family)
    signal = rl.wrap_hf_model(model, make_tokenizer())
    block = signal.trunk.anatomy.blocks[1].enter.module
    with torch.no_grad():
        next(p for p in block.parameters() if p.dim() == 2).fill_(float("nan"))
    with pytest.raises(NumericsError, match=r"item \d+: .* first at layer 1"):
        signal.score(ITEMS)


def test_training_mode_is_refused(family):
    signal = rl.wrap_hf_model(make_model(family), make_tokenizer())
    signal.trunk.model.train()
    with pytest.raises(rl.errors.RewardLensError, match="training mode"):
        signal.score(ITEMS)


def test_four_threads_get_the_serial_results(signal):
    from concurrent.futures import ThreadPoolExecutor

    sites = ["L0.attn_out", "L2.resid_post"]
    serial = [signal.capture([x], sites) for x in ITEMS]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            found = list(pool.map(lambda x: signal.capture([x], sites), ITEMS))
            for a, b in zip(serial, found, strict=True):
                assert all(torch.equal(a[s], b[s]) for s in sites)


def test_a_layer_that_does_not_exist(signal):
    with pytest.raises(AnatomyError, match="layers 0 to 2"):
        signal.capture(ITEMS[:1], ["L3.attn_out"])
    with pytest.raises(AnatomyError, match="is no site"):
        signal.capture(ITEMS[:1], ["L0.attention"])


def test_pad_is_eos_reads_where_transformers_reads(family):
    """Transformers skips a trailing end token that is also the pad id; both are reported."""
    model = make_model(family, pad_token_id=EOS)
    signal = rl.wrap_hf_model(model, make_tokenizer())
    ids = (*signal.encode(ITEMS[:1])[0].ids.tolist(), EOS)
    ev = signal.score([Item(ids=ids)])
    assert int(ev.value.read_index[0]) == len(ids) - 2
    assert float(ev.value[0]) == pytest.approx(native(signal, Item(ids=ids)), abs=1e-5)
    both = ev.tables["positions"].iloc[0]
    last = signal.score([Item(ids=ids)], position="last")
    assert int(last.value.read_index[0]) == len(ids) - 1
    assert both["native"] == pytest.approx(float(ev.value[0]))
    assert both["last"] == pytest.approx(float(last.value[0]))


def test_no_pad_in_the_configuration_reads_the_last_token(family):
    model = make_model(family, pad_token_id=None)
    signal = rl.wrap_hf_model(model, make_tokenizer())
    ours = signal.score(ITEMS).value.values
    np.testing.assert_allclose(ours, [native(signal, x) for x in ITEMS], atol=1e-5)


def test_fingerprint_follows_the_weights(family):
    signal = make_signal(family)
    before = signal.fingerprint
    assert before == make_signal(family).fingerprint
    assert before != make_signal(family, seed=1).fingerprint
    with torch.no_grad():
        signal.trunk.model.score.weight[0, 0] += 1e-3
    assert signal.fingerprint != before
    assert dataclasses.replace(signal.meta, position="last") != signal.meta


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_source_tokens_add_up_to_the_attention_write(family, kernel):
    if family == "gemma2" and kernel == "sdpa":
        pytest.skip("transformers refuses soft-capped attention under sdpa")
    model = make_model(family)
    model.set_attn_implementation(kernel)
    signal = rl.wrap_hf_model(model, make_tokenizer())
    ev = rl.source_attribution(signal, PAIRS)
    table = ev.tables["writes"]
    scale = table["write"].abs().max()
    assert table["rounding"].abs().max() <= 1e-5 * scale
    by_component = rl.attribution(signal, PAIRS)
    for side in ("chosen", "rejected"):
        total = ev.value.sel(side=side).sum("position").values
        constant = table[table["side"] == side]["constant"].to_numpy().reshape(total.shape)
        for layer in range(3):
            write = by_component.value.sel(side=side, write=f"L{layer}.attn_out")
            np.testing.assert_allclose(
                total[:, layer] + constant[:, layer], write, atol=1e-5 * scale
            )


def test_source_tokens_beyond_the_window_get_nothing():
    signal = make_signal("mistral")  # window 16
    ev = rl.source_attribution(signal, PAIRS)
    length = int(ev.value.tokens_chosen[0])
    first = ev.value.sel(side="chosen").isel(pair=0)
    assert float(abs(first[:, : length - 16]).max()) == 0
    assert float(abs(first[:, length - 16 : length]).max()) > 0
    assert np.isnan(first[:, length:]).all()
