"""A one-layer model small enough to compute on paper, against every observational reading.

Width 4, one head of 4 channels. The token ``p`` has embedding (1, 1, 1, 1), root mean square 1, so
norms leave it as it is (eps is 1e-12). Attention weights are zero in query and key, so attention is
the mean over tokens; the MLP is zero unless set. Everything below is arithmetic on that.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families import VOCAB, make_tokenizer
from transformers import LlamaConfig, LlamaForSequenceClassification

import reward_lens as rl
from reward_lens.data import Item

W = torch.tensor([1.0, 2.0, 3.0, 4.0])
A, B = 5, 6  # two tokens


@pytest.fixture(scope="module")
def signal():
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=4, intermediate_size=4, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, num_labels=1, pad_token_id=256,
        rms_norm_eps=1e-12, max_position_embeddings=64,
    )  # fmt: skip
    model = LlamaForSequenceClassification(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.zero_()
        embedding = model.model.embed_tokens.weight
        embedding[A] = torch.tensor([1.0, 1.0, 1.0, 1.0])
        embedding[B] = torch.tensor([2.0, 0.0, 0.0, 0.0])
        attention = model.model.layers[0].self_attn
        attention.v_proj.weight.copy_(torch.eye(4))
        attention.o_proj.weight.copy_(torch.eye(4))
        model.score.weight.copy_(W[None])
    # Nothing mixes positions per query here, so the search for heads has nothing to find: the
    # quick check is not what is tested.
    return rl.wrap_hf_model(model, make_tokenizer(), conformance_quickcheck=False)


def test_score_on_paper(signal):
    """One token A: norm(A) = A, attention adds A, the stream is 2A, the final norm gives A."""
    ev = signal.score([Item(ids=(A,))])
    assert float(ev.value[0]) == pytest.approx(float(W.sum()), abs=1e-5)


def test_score_of_two_tokens_on_paper(signal):
    """Read at A after B: norm(B) = B (rms 1); attention adds (A + B)/2; the stream is the sum."""
    stream = np.array([1.0, 1, 1, 1]) + np.array([1.5, 0.5, 0.5, 0.5])
    expected = (stream / np.sqrt((stream**2).mean())) @ W.numpy()
    assert float(signal.score([Item(ids=(B, A))]).value[0]) == pytest.approx(expected, abs=1e-5)


def test_attribution_on_paper(signal):
    """Writes through the frozen norm: each divided by the stream's root mean square."""
    pair = [{"input_ids_chosen": [B, A], "input_ids_rejected": [A]}]
    ev = rl.attribution(signal, pair)
    stream = np.array([2.5, 1.5, 1.5, 1.5])
    rms = np.sqrt((stream**2).mean())
    chosen = ev.value.sel(side="chosen").isel(pair=0)
    assert float(chosen.sel(write="embed")) == pytest.approx(10 / rms, rel=1e-6)
    attention = (1.5 * 1 + 0.5 * (2 + 3 + 4)) / rms
    assert float(chosen.sel(write="L0.attn_out")) == pytest.approx(attention, rel=1e-6)
    assert float(chosen.sel(write="L0.mlp_out")) == 0
    rejected = ev.value.sel(side="rejected").isel(pair=0)
    # Token A alone: stream 2A, rms 2; embed and attention give half of 10 each.
    assert float(rejected.sel(write="embed")) == pytest.approx(5, rel=1e-6)
    assert float(rejected.sel(write="L0.attn_out")) == pytest.approx(5, rel=1e-6)


def test_lens_on_paper(signal):
    pair = [{"input_ids_chosen": [B, A], "input_ids_rejected": [A]}]
    ev = rl.lens(signal, pair)
    stream = np.array([2.5, 1.5, 1.5, 1.5])
    rms = np.sqrt((stream**2).mean())
    score = stream @ W.numpy() / rms
    frozen = ev.value.sel(reading="frozen").isel(pair=0)
    applied = ev.value.sel(reading="applied").isel(pair=0)
    np.testing.assert_allclose(frozen, [10 / rms - 5, score - 10], rtol=1e-5)
    np.testing.assert_allclose(applied, [0, score - 10], atol=1e-5)


def test_identical_sides_have_no_crossing_and_are_counted(signal):
    pair = [{"input_ids_chosen": [B, A], "input_ids_rejected": [B, A]}]
    ev = rl.lens(signal, pair)
    assert (ev.value == 0).all()
    table = ev.tables["crystallization"]
    assert list(table["degenerate"]) == [1, 1]
    assert ev.tables["curve"]["median_share"].isna().all()
    assert table["median_first"].isna().all()


@pytest.mark.parametrize(
    ("curve", "first", "stable", "flips"),
    [
        ([0, 1, 2, 4], 2, 2, 0),
        ([3, 1, 2, 4], 0, 2, 0),
        ([3, -1, 3, 4], 0, 2, 1),
        ([-3, -1, -1, -4], 0, 3, 0),
        ([4, 4, 4, 4], 0, 0, 0),
        ([0, 0, 0, 1], 3, 3, 0),
    ],
)
def test_crossings_on_paper(curve, first, stable, flips):
    from reward_lens.instruments.layer_lens import crossing_depths

    found = crossing_depths(np.array([curve], dtype=float), np.array([False]))
    assert [found[k][0] for k in ("first", "stable", "flips")] == [first, stable, flips]
