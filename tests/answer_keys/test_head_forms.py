"""Heads that are not linear, means over tokens, post-norm and scaled streams: the right values.

The judges are the model's own logits and modules, called by hand.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import zoo

import reward_lens as rl
from reward_lens.backbone import MEAN
from reward_lens.backbone.taps import Tap, attach

PAIRS = [
    ("Why is the sky blue?", "Air scatters blue light most.", "It just is."),
    ("Name a colour.", "Blue.", "A colour is a property of light, and there are many of them."),
    ("Say hi.", "Hi!", "No, ask somebody else, please."),
]
CURVED = ["bert", "distilbert", "electra", "deberta-v2", "albert", "modernbert", "modernbert, mean",
          "eurobert, mean", "modernbert-decoder"]  # fmt: skip
STREAMS = ["openai-gpt", "minimax, scaled residual", "minicpm3", "doge", "opt, norm after",
           "bloom, residual after the norm"]  # fmt: skip


@functools.cache
def signal_of(name):
    return rl.wrap_hf_model(zoo.make(name), zoo.tokenizer_for(name))


def items_of(pairs):
    return [(p, a) for p, a, _ in pairs], [(p, b) for p, _, b in pairs]


@pytest.mark.parametrize("name", [*CURVED, "eurobert", *STREAMS])
def test_writes_add_up_to_the_models_own_margin(name):
    signal = signal_of(name)
    ev = rl.attribution(signal, PAIRS)
    sums = ev.value.sum("write").values
    chosen, rejected = (zoo.native_scores(name, signal.trunk.model, i) for i in items_of(PAIRS))
    scale = max(np.ptp([*chosen, *rejected]), 1e-6)
    np.testing.assert_allclose(sums[0] / scale, chosen / scale, atol=1e-5)
    np.testing.assert_allclose(sums[1] / scale, rejected / scale, atol=1e-5)
    np.testing.assert_allclose(sums[2] / scale, (chosen - rejected) / scale, atol=1e-5)


@pytest.mark.parametrize("name", CURVED)
def test_the_mean_gradient_leaves_almost_nothing_of_a_margin(name):
    ev = rl.attribution(signal_of(name), PAIRS)
    left = ev.value.sel(side="margin", write="head_constant").values
    size = np.abs(ev.value.sel(side="margin").values).sum(1)
    smooth = name != "distilbert"  # its head has a ReLU: quadrature over a kink is coarser
    assert np.abs(left / size).max() < (1e-7 if smooth else 2e-2)
    alone = ev.value.sel(side="chosen", write="head_constant").values
    assert np.abs(alone).max() > 1e-3 * np.abs(left).max()


@pytest.mark.parametrize("name", ["llama", *STREAMS])
def test_a_linear_head_has_no_constant_of_its_own(name):
    assert "head_constant" not in rl.attribution(signal_of(name), PAIRS).value["write"]


@pytest.mark.parametrize("name", [*CURVED, "eurobert", *STREAMS])
def test_gradient_agrees_with_finite_differences(name):
    signal = signal_of(name)
    item = (PAIRS[0][0], PAIRS[0][1])
    (gradient,) = signal.gradient([item], "L0.resid_post")
    tap = signal.trunk.anatomy.blocks[0].leave
    (encoded,) = signal.encode([item])
    step = 1e-3
    direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0))

    def score(sign):
        with attach({Tap(tap.module, tap.nth, tap.path): lambda x: x + sign * step * direction}):
            ids = torch.from_numpy(encoded.ids)[None]
            more = {} if encoded.types is None else {
                "token_type_ids": torch.from_numpy(encoded.types)[None]}  # fmt: skip
            with torch.no_grad():
                return float(signal.trunk.model(input_ids=ids, **more).logits)

    expected = (score(1) - score(-1)) / (2 * step)
    found = float((gradient * direction).sum())
    assert found == pytest.approx(expected, rel=0.02, abs=2e-3 * float(gradient.norm()))


def by_hand_at_depth(name, model, states, mask):
    """The head of a few types on a stream ``[1, length, width]``, written out."""
    if name == "bert":
        return model.classifier(torch.tanh(model.bert.pooler.dense(states[:, 0])))
    if name == "distilbert":
        return model.classifier(torch.relu(model.pre_classifier(states[:, 0])))
    if name.startswith("modernbert"):
        normed = model.model.final_norm(states)
        pooled = normed.mean(1) if name.endswith("mean") else normed[:, 0]
        return model.classifier(model.head(pooled))
    if name == "eurobert, mean":
        pooled = model.model.norm(states).mean(1)
        return model.classifier(torch.nn.functional.gelu(model.dense(pooled)))
    assert name == "eurobert"
    normed = model.model.norm(states)
    return model.classifier(torch.nn.functional.gelu(model.dense(normed))).mean(1)


@pytest.mark.parametrize(
    "name", ["bert", "distilbert", "modernbert", "modernbert, mean", "eurobert, mean", "eurobert"]
)
def test_the_lens_applies_the_whole_head_at_depth(name):
    signal = signal_of(name)
    model = signal.trunk.model
    ev = rl.lens(signal, PAIRS)
    for k, (p, a, b) in enumerate(PAIRS):
        expected = []
        for item in ((p, a), (p, b)):
            (encoded,) = signal.encode([item])
            seen = {}
            taps = {bl.leave: functools.partial(seen.__setitem__, i)
                    for i, bl in enumerate(signal.trunk.anatomy.blocks)}  # fmt: skip
            more = {} if encoded.types is None else {
                "token_type_ids": torch.from_numpy(encoded.types)[None]}  # fmt: skip
            with torch.no_grad(), attach(taps):
                model(input_ids=torch.from_numpy(encoded.ids)[None], **more)
                expected.append([float(by_hand_at_depth(name, model, seen[i], None)) for i in seen])
        margins = np.array(expected[0]) - np.array(expected[1])
        found = ev.value.sel(reading="applied").values[k, 1:]
        np.testing.assert_allclose(found, margins, atol=2e-5 * np.abs(margins).max())
    last = ev.value.isel(depth=-1)
    np.testing.assert_allclose(last.sel(reading="frozen"), last.sel(reading="applied"), atol=1e-4)


def frozen(norm, x):
    """LayerNorm held at ``x``: the matrix that its input is multiplied by, and its bias."""
    n = len(x)
    centre = torch.eye(n, dtype=torch.float64) - 1.0 / n
    scale = ((centre @ x).pow(2).mean() + norm.eps) ** -0.5
    return torch.diag(norm.weight.detach().double()) @ centre * scale, norm.bias.detach().double()


def test_writes_of_a_post_norm_block_by_matrices_written_out():
    """BERT's last block: attention is seen through two frozen norms, the MLP through one."""
    signal = signal_of("bert")
    model, item = signal.trunk.model, (PAIRS[0][0], PAIRS[0][1])
    (encoded,) = signal.encode([item])
    layer = model.bert.encoder.layer[-1]
    places = {
        "attn": Tap(layer.attention.output.dense, 0, ("out",)),
        "sum1": Tap(layer.attention.output.LayerNorm, 0, ("args", 0)),
        "mlp": Tap(layer.output.dense, 0, ("out",)),
        "sum2": Tap(layer.output.LayerNorm, 0, ("args", 0)),
    }
    seen = {}
    ids = torch.from_numpy(encoded.ids)[None]
    types = torch.from_numpy(encoded.types)[None]
    taps = {tap: functools.partial(seen.__setitem__, name) for name, tap in places.items()}
    with torch.no_grad(), attach(taps):
        model(input_ids=ids, token_type_ids=types)
    seen = {k: v[0, 0].double() for k, v in seen.items()}
    first, _ = frozen(layer.attention.output.LayerNorm, seen["sum1"])
    second, shift = frozen(layer.output.LayerNorm, seen["sum2"])
    last = (second @ seen["sum2"] + shift).detach().requires_grad_(True)
    dense = model.bert.pooler.dense
    pooled = torch.tanh(dense.weight.double() @ last + dense.bias.double())
    (model.classifier.weight.double() @ pooled).sum().backward()
    g = last.grad
    ev = rl.attribution(signal, PAIRS[:1]).value.sel(side="chosen").isel(pair=0)
    n = len(model.bert.encoder.layer) - 1
    attn, mlp = (float(ev.sel(write=f"L{n}.{kind}")) for kind in ("attn_out", "mlp_out"))
    assert attn == pytest.approx(float(g @ second @ first @ seen["attn"]), rel=1e-5)
    assert mlp == pytest.approx(float(g @ second @ seen["mlp"]), rel=1e-5)


@pytest.mark.parametrize("name", ["modernbert, mean", "eurobert, mean", "eurobert"])
def test_a_mean_over_tokens_says_so(name):
    ev = signal_of(name).score([(PAIRS[0][0], PAIRS[0][1])])
    assert int(ev.value["read_index"][0]) == MEAN
    assert str(ev.value["read_token"].values[0]) == "(mean of all tokens)"
    with pytest.raises(rl.errors.CapabilityError, match="mean over all of them"):
        rl.source_attribution(signal_of(name), PAIRS)


@pytest.mark.parametrize("name", ["bert", "distilbert", "modernbert-decoder", "openai-gpt"])
def test_heads_of_a_block_add_up_to_its_attention(name):
    signal = signal_of(name)
    whole = rl.attribution(signal, PAIRS).value
    split = rl.attribution(signal, PAIRS, by="head").value
    for layer in range(signal.meta.n_layers):
        mine = [w for w in split["write"].values if w.startswith(f"L{layer}.H")]
        total = split.sel(write=[*mine, f"L{layer}.attn_bias"]).sum("write")
        expected = whole.sel(write=f"L{layer}.attn_out")
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(total / scale, expected / scale, atol=1e-5)
