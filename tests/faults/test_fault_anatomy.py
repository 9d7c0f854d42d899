"""Anatomies that look right on a short plain text and are wrong elsewhere: found, or refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo
from families import EOS, FAMILIES, PAIRS, VOCAB, make_model, make_tokenizer
from torch import nn
from transformers import AutoModelForCausalLM, BigBirdConfig, BigBirdForSequenceClassification
from transformers import LlamaForSequenceClassification as Llama
from transformers.modeling_outputs import SequenceClassifierOutput

import reward_lens as rl
from reward_lens.backbone.taps import Tap, attach
from reward_lens.errors import AnatomyError, CapabilityError

WIDTH = 32


class ReadsAt(Llama):
    """A Llama classifier whose own class reads another token than transformers does."""

    place = -1

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **kwargs):
        states = self.model(input_ids, attention_mask, position_ids, use_cache=False)[0]
        return SequenceClassifierOutput(logits=self.score(states)[:, self.place])


def read_at(place, pad):
    model = make_model("llama", pad_token_id=pad)
    model.__class__ = type("ReadsAt", (ReadsAt,), {"place": place})
    return model


@pytest.mark.parametrize("pad", [EOS, 256])
def test_the_read_rule_is_measured_on_the_model(pad):
    """pad = eos, texts that end in eos: the last token and the last that is not pad differ."""
    signal = rl.wrap_hf_model(read_at(-1, pad), make_tokenizer())
    assert signal.meta.reads == "last"
    ids = (5, 6, EOS, 7, 8, EOS)
    with torch.no_grad():
        expected = float(signal.trunk.model(input_ids=torch.tensor([ids])).logits)
    assert float(signal.score([rl.Item(ids=ids)]).value[0]) == pytest.approx(expected, rel=1e-5)
    native = rl.wrap_hf_model(make_model("llama", pad_token_id=pad), make_tokenizer())
    assert native.meta.reads == "rightmost_non_pad"


def test_a_token_that_no_rule_reads_is_refused():
    with pytest.raises(AnatomyError, match=r"no way|none of the tokens"):
        rl.wrap_hf_model(read_at(-3, 256), make_tokenizer())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_activation_that_does_nothing_on_the_probe_is_kept(seed):
    model = zoo.make("distilbert", seed=seed)
    with torch.no_grad():
        model.pre_classifier.bias.fill_(1.8)  # the ReLU after it passes every traced value on
    signal = rl.wrap_hf_model(model, zoo.tokenizer_for("distilbert"))
    assert not signal.trunk.anatomy.head.affine
    assert "relu" in signal.trunk.anatomy.head.through


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_activation_is_kept_in_half_precision(dtype):
    model = zoo.make("roberta", seed=1)
    with torch.no_grad():
        model.classifier.dense.weight.mul_(0.07)
        model.classifier.dense.bias.mul_(0.07)  # tanh is nearly the identity there
    signal = rl.wrap_hf_model(model.to(dtype), zoo.tokenizer_for("roberta"))
    assert not signal.trunk.anatomy.head.affine
    assert "tanh" in signal.trunk.anatomy.head.through


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_that_are_clamped_are_refused(family):
    model = make_model(family)
    model.score.register_forward_hook(lambda m, a, out: out.clamp(-25, 25))
    with torch.no_grad():
        largest = float(model(input_ids=torch.tensor([[5, 6, 7]])).logits.abs().max())
    assert largest < 25  # nothing is clamped on a text
    with pytest.raises(AnatomyError, match="no way from the trunk"):
        rl.wrap_hf_model(model, make_tokenizer())


SCALED = ["minicpm3", "minimax, scaled residual", "doge", "opt", "falcon", "llama"]


@pytest.mark.parametrize("kind", ["attn_out", "mlp_out"])
@pytest.mark.parametrize("name", SCALED)
def test_gradients_are_with_respect_to_what_is_added(name, kind):
    """Finite differences of the stream after the block: there a write counts as it is added."""
    signal = rl.wrap_hf_model(zoo.make(name), zoo.tokenizer_for(name))
    last = signal.meta.n_layers - 1
    item = PAIRS[0][:2]
    (gradient,) = signal.gradient([item], f"L{last}.{kind}")
    (encoded,) = signal.encode([item])
    block, direction = signal.trunk.anatomy.blocks[last], torch.zeros_like(gradient)
    direction[-1] = torch.randn(WIDTH, generator=torch.Generator().manual_seed(0))
    write = block.attn if kind == "attn_out" else block.mlp
    scale = 1.0 if write.scale is None else write.scale

    def score(step):
        def add(tensor):
            return tensor + (step * direction / scale).to(tensor).view_as(tensor)

        with attach({Tap(write.tap.module, write.tap.nth, write.tap.path): add}), torch.no_grad():
            return float(signal.trunk.model(input_ids=torch.from_numpy(encoded.ids)[None]).logits)

    expected = (score(1e-2) - score(-1e-2)) / 2e-2
    found = float((gradient * direction).sum())
    assert found == pytest.approx(expected, rel=2e-2, abs=1e-3 * float(gradient.norm()))


@pytest.mark.parametrize("name", ["minicpm3", "minimax, scaled residual", "doge"])
def test_hessian_products_at_scaled_writes_agree_with_gradients(name):
    signal = rl.wrap_hf_model(zoo.make(name), zoo.tokenizer_for(name))
    item, site = PAIRS[0][:2], "L0.attn_out"
    (v,) = (1e-3 * torch.randn_like(g) for g in signal.gradient([item], site))
    (product,) = signal.hvp([item], site, [v])
    write = signal.trunk.anatomy.blocks[0].attn

    def gradient(sign):
        def add(tensor):
            return tensor + (sign * v / write.scale).to(tensor).view_as(tensor)

        handle = write.tap.module.register_forward_hook(
            lambda m, a, out: (add(out[0]), *out[1:]) if isinstance(out, tuple) else add(out)
        )
        try:
            return signal.gradient([item], site)[0]
        finally:
            handle.remove()

    expected = (gradient(1) - gradient(-1)) / 2
    assert float((product - expected).norm()) <= 0.05 * float(expected.norm()) + 1e-6


@pytest.mark.parametrize("name", ["zamba", "zamba2"])
def test_an_embedding_that_enters_twice_has_no_gradient_of_its_own(name):
    signal = rl.wrap_hf_model(zoo.make(name), zoo.tokenizer_for(name))
    with pytest.raises(AnatomyError, match="also enters block"):
        signal.gradient([PAIRS[0][:2]], "embed")
    assert torch.isfinite(signal.gradient([PAIRS[0][:2]], "L0.resid_post")[0]).all()


def test_a_model_that_looking_would_change_is_refused():
    config = BigBirdConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, num_labels=1, pad_token_id=256, max_position_embeddings=128,
    )  # fmt: skip
    model = BigBirdForSequenceClassification(config).eval()
    with pytest.raises(AnatomyError, match="block_sparse"):
        rl.wrap_hf_model(model, zoo.make_pair_tokenizer())
    assert model.bert.encoder.attention_type == "block_sparse"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", [1, 3])
def test_tokens_that_compete_across_a_batch_are_found_in_any_dtype(dtype, seed):
    model = zoo.make("doge, experts", seed=seed).to(dtype)
    signal = rl.wrap_hf_model(model, zoo.tokenizer_for("doge"), conformance_quickcheck=False)
    assert signal.trunk.alone_beyond == 0
    assert any("run alone" in note for note in signal.meta.notes)


class Decoy(nn.Module):
    """A norm followed by a list of maps that could pass for blocks."""

    def __init__(self, norm, n, identity):
        super().__init__()
        make = nn.Identity if identity else (lambda: nn.Linear(WIDTH, WIDTH))
        self.norm, self.maps = norm, nn.ModuleList(make() for _ in range(n))

    def forward(self, x):
        x = self.norm(x)
        for m in self.maps:
            x = m(x)
        return x


@pytest.mark.parametrize("n", [5, 6])
@pytest.mark.parametrize("identity", [True, False])
def test_a_list_of_other_modules_is_not_taken_for_the_blocks(n, identity):
    torch.manual_seed(0)
    model = make_model("llama")
    model.model.norm = Decoy(model.model.norm, n, identity)
    try:
        signal = rl.wrap_hf_model(model.eval(), make_tokenizer())
    except AnatomyError:
        return  # refused with a reason is right as well
    assert signal.meta.n_layers == 3


@pytest.mark.parametrize("scale", [1e-2, 1e-3, 1e-4])  # below 1e-5 it changes no score
def test_weak_attention_over_later_tokens_is_not_causal(scale):
    model = zoo.make("modernbert")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.attn.Wo.weight.mul_(scale)
    signal = rl.wrap_hf_model(model, zoo.tokenizer_for("modernbert"), conformance_quickcheck=False)
    assert not signal.trunk.anatomy.causal


@pytest.mark.parametrize("labels", [("1", "2", "3"), ("a", "a", "b")])
def test_a_label_that_means_two_rows_is_refused(labels):
    model = make_model("llama", num_labels=3)
    model.config.id2label = dict(enumerate(labels))
    signal = rl.wrap_hf_model(model, make_tokenizer())
    with pytest.raises(CapabilityError, match="means several rows"):
        signal.readout(f"criterion:{labels[0]}")


def test_a_label_names_its_row():
    model = make_model("llama", num_labels=3)
    model.config.id2label = {0: "helpful", 1: "correct", 2: "brief"}
    signal = rl.wrap_hf_model(model, make_tokenizer())
    by_label, by_number = signal.readout("criterion:correct"), signal.readout("criterion:1")
    assert by_label.name == by_number.name == "criterion:1"
    assert torch.equal(by_label.direction, model.score.weight[1])
    assert by_label.note == "the row named correct"


def test_a_language_model_is_no_classifier():
    config = make_model("llama").config
    with pytest.raises(AnatomyError, match=r"logits \[batch, rows\]"):
        rl.wrap_hf_model(AutoModelForCausalLM.from_config(config).eval(), make_tokenizer())


def test_plain_refusals():
    model = make_model("llama")
    model.config.is_encoder_decoder = True
    with pytest.raises(AnatomyError, match="encoder-decoder"):
        rl.wrap_hf_model(model, make_tokenizer())
    compiled = make_model("llama")
    compiled.__dict__["_orig_mod"] = None  # what torch.compile puts around a model has
    with pytest.raises(AnatomyError, match="compiled"):
        rl.wrap_hf_model(compiled, make_tokenizer())
    model = make_model("gpt2")
    model.forward = lambda *a, **k: (_ for _ in ()).throw(ValueError("needs pictures"))
    with pytest.raises(AnatomyError, match=r"does not run on a text of 9 ids.*needs pictures"):
        rl.wrap_hf_model(model, make_tokenizer())


@pytest.mark.parametrize("family", ["gpt2", "llama", "mixtral"])
def test_a_pad_id_that_is_no_id(family):
    model = make_model(family)
    for pad in (-1, VOCAB + 7):
        model.config.pad_token_id = pad
        signal = rl.wrap_hf_model(model, make_tokenizer())
        items = [p[:2] for p in PAIRS]
        alone = [float(signal.score([i]).value[0]) for i in items]
        np.testing.assert_allclose(signal.score(items).value, alone, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_in_float64_conforms(family):
    if family in ("mixtral", "gemma2"):
        pytest.skip("in transformers' own code experts refuse float64, and soft-capped attention "
                    "overflows a float64 mask in float32")  # fmt: skip
    signal = rl.wrap_hf_model(make_model(family, dtype=torch.float64), make_tokenizer())
    assert signal.meta.dtype == "float64"
    report = rl.run_conformance(signal)
    assert report.passed, str(report)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_head_of_zeros_has_nothing_to_miss(family):
    model = make_model(family)
    with torch.no_grad():
        model.score.weight.zero_()
    signal = rl.wrap_hf_model(model, make_tokenizer(), conformance_quickcheck=False)
    assert rl.attribution(signal, PAIRS).tables["completeness"]["completeness"][0] == 0
