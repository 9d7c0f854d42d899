"""Gradients at many sites: against autograd through a forward written out here, and differences."""

from __future__ import annotations

import copy
import functools
import gc

import numpy as np
import pytest
import torch
import zoo
from engine_kit import PlainHooks, ids_item
from families import FAMILIES, ITEMS
from families import make_signal as new_signal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reward_lens import wrap_hf_model
from reward_lens.backbone import Change, Site, Target
from reward_lens.backbone.batching import collate
from reward_lens.backbone.gradients import score_gradients
from reward_lens.errors import AnatomyError, NumericsError
from reward_lens.signals.derivatives import row_score
from reward_lens.signals.gradient_sweep import gradient_sweep, quadrature

STEP = 0.02  # of a tensor's spread
make_signal = functools.cache(new_signal)  # nothing here changes a model
EMBED, LAYERS = Site("embed"), range(3)
SITES = [EMBED, *(Site(k, n) for n in LAYERS for k in ("head_in", "attn_unscaled", "mlp_unscaled"))]


def gradients(signal, items, sites=SITES, *, read=None, embedded=None):
    """One batch of items, in their order."""
    encoded = signal.encode(items)
    read = signal.read_index(encoded) if read is None else read
    batch = collate(encoded, range(len(items)), signal.trunk.pad_id, signal.trunk.device)
    score = row_score(signal.bound("reward", encoded), read)
    return score_gradients(signal.trunk, batch, sites, score, embedded)


def swept(signal, items, order, batch_tokens, sites=SITES):
    """The same by a sweep: item -> what it gave."""
    encoded = signal.encode(items)
    found = gradient_sweep(
        signal, encoded, order, sites, signal.bound("reward", encoded), signal.read_index(encoded),
        batch_tokens,
    )  # fmt: skip
    return {one.item: one for one in found}


# A llama as a function of what is added to the tensors that its sublayers hand over.


def rms(x, norm):
    return x * (x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt() * norm.weight


def turned(x, theta=10000.0):
    """Rotary positions: ``[head, token, width]``."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1]).double()[:, None] * theta ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def mixed(attn, x):
    """What the heads of an attention put out: ``[token, heads * width]``."""
    q, k, v = (
        p(x).reshape(len(x), -1, attn.head_dim).transpose(0, 1)
        for p in (attn.q_proj, attn.k_proj, attn.v_proj)
    )
    k, v = (t.repeat_interleave(len(q) // len(t), 0) for t in (k, v))
    logits = turned(q) @ turned(k).transpose(1, 2) / attn.head_dim**0.5
    later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    weights = logits.masked_fill(later, -torch.inf).softmax(-1)
    return (weights @ v).transpose(0, 1).reshape(len(x), -1)


def written_out(model, ids, added):
    """The score of a llama, and the tensors at the sites; ``added`` at each of them."""
    seen = {EMBED: model.model.embed_tokens(torch.tensor(ids)) + added[EMBED]}
    x = seen[EMBED]
    for n, block in enumerate(model.model.layers):
        heads, attn, mlp = (Site(k, n) for k in ("head_in", "attn_unscaled", "mlp_unscaled"))
        normed = rms(x, block.input_layernorm)
        seen[heads] = mixed(block.self_attn, normed) + added[heads]
        seen[attn] = block.self_attn.o_proj(seen[heads]) + added[attn]
        x = x + seen[attn]
        inner = rms(x, block.post_attention_layernorm)
        gate = torch.nn.functional.silu(block.mlp.gate_proj(inner))
        seen[mlp] = block.mlp.down_proj(gate * block.mlp.up_proj(inner)) + added[mlp]
        x = x + seen[mlp]
    return model.score(rms(x, model.model.norm))[-1, 0], seen


def test_values_and_gradients_are_those_of_the_forward_written_out():
    signal = make_signal("llama")
    model = copy.deepcopy(signal.trunk.model).double()
    items = [ids_item(0, 12), ids_item(1, 7)]
    found = gradients(signal, items)
    for row, item in enumerate(items):
        n = len(item.ids)
        added = {s: torch.zeros(n, 32, dtype=torch.float64, requires_grad=True) for s in SITES}
        score, seen = written_out(model, item.ids, added)
        slopes = torch.autograd.grad(score, list(added.values()))
        assert float(found.score[row]) == pytest.approx(float(score.detach()), rel=1e-5)
        for site, slope in zip(added, slopes, strict=True):
            for mine, right in ((found.values, seen[site].detach()), (found.slopes, slope)):
                limit = 1e-5 * float(right.abs().max())
                mine = mine[site][row, :n].double()
                torch.testing.assert_close(mine, right, rtol=0, atol=limit)
            assert slope.abs().max() > 1e-3
            assert (found.slopes[site][row, n:] == 0).all()  # padding


@pytest.mark.parametrize("family", [*FAMILIES, "falcon"])
def test_gradients_are_differences_of_scores(family):
    """Central differences of fourth order by plain hooks on the model, along a random direction.

    Falcon adds to what its sublayers put out in place.
    """
    # All experts: where a router changes its choice the score jumps, and has no slope.
    changes = {"num_experts_per_tok": 4} if family == "mixtral" else {}
    if family in FAMILIES:
        signal = make_signal(family, **changes)
    else:
        signal = wrap_hf_model(zoo.make(family), zoo.tokenizer_for(family))
    plain = PlainHooks(signal.trunk.model, family)
    items = [ids_item(8, 9), ids_item(9, 14)]
    found = gradients(signal, items)
    seen = signal.capture(items, list(map(str, SITES)), position="all")
    generator = torch.Generator().manual_seed(0)
    names = ["embed"] + [f"L{n}.{x}" for n in LAYERS for x in (f"H{n}", "attn_out", "mlp_out")]
    for row, item in enumerate(items):
        at = (1, 4, len(item.ids) - 1)
        for site in SITES:
            value = found.values[site][row, : len(item.ids)]
            torch.testing.assert_close(value, seen[str(site)][row], rtol=1e-5, atol=1e-5)
        for name in names:
            target = Target.parse(name)
            width = target.width(signal.trunk.anatomy)
            v = torch.randn(len(at), width, generator=generator)
            v *= STEP * float(found.values[target.source][row].std())
            expected = sum(
                weight * plain.logits(item.ids, [Change(target, at, k * v, add=True)])
                for k, weight in ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))
            )
            slope = target.of(found.slopes[target.source][row], signal.trunk.anatomy)[list(at)]
            size = float((slope * v).abs().sum())
            assert float((slope * v).sum()) == pytest.approx(expected, abs=2e-3 * size), name


def test_a_site_after_the_read_token_has_no_gradient():
    signal = make_signal("llama")
    found = gradients(signal, [ids_item(0, 9), ids_item(1, 9)], read=[3, 8])
    for site in SITES:
        assert (found.slopes[site][0, 4:] == 0).all()
        assert (found.slopes[site][0, 3] != 0).any()
        assert (found.slopes[site][1, 8] != 0).any()
    last = found.slopes[Site("mlp_unscaled", 2)]
    assert (last[0, :3] == 0).all()  # nothing reads the last write elsewhere
    assert (last[1, :8] == 0).all()


def test_padding_has_no_gradient_even_where_a_score_reads_it():
    signal = make_signal("llama")
    items = [ids_item(0, 9), ids_item(1, 5)]
    batch = collate(signal.encode(items), [0, 1], signal.trunk.pad_id, signal.trunk.device)
    score = lambda _, normed: normed.pow(3).sum((1, 2))  # noqa: E731
    found = score_gradients(signal.trunk, batch, SITES, score)
    for slope in found.slopes.values():
        assert (slope[1, 5:] == 0).all()
        assert (slope[1, 4] != 0).any()


def test_scores_are_the_signals_own_and_need_no_site():
    signal = make_signal("qwen3")
    expected = signal.score(ITEMS).value.values
    found = gradients(signal, ITEMS)
    np.testing.assert_allclose(found.score, expected, rtol=0, atol=1e-5 * np.ptp(expected))
    none = gradients(signal, ITEMS, sites=[])
    assert (none.values, none.slopes) == ({}, {})
    assert torch.equal(none.score, found.score)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forward_from_another_embedding(family):
    """From the other text's embedding comes the other text's score, and its gradients."""
    signal = make_signal(family)
    items = [ids_item(4, 10), ids_item(5, 10)]
    clean = gradients(signal, items)
    crossed = gradients(signal, items, embedded=clean.values[EMBED].flip(0))
    torch.testing.assert_close(crossed.score, clean.score.flip(0), rtol=1e-5, atol=1e-6)
    for site in SITES:
        expected = clean.slopes[site].flip(0)
        limit = 1e-4 * float(expected.abs().max())
        torch.testing.assert_close(crossed.slopes[site], expected, rtol=0, atol=limit)
    assert abs(float(clean.score[0] - clean.score[1])) > 1e-3
    same = gradients(signal, items, embedded=clean.values[EMBED])
    assert torch.equal(same.score, clean.score)


def test_nothing_is_left_behind():
    signal = make_signal("gpt2")
    model = signal.trunk.model
    before = {n: p.clone() for n, p in model.named_parameters()}
    gradients(signal, [ids_item(0, 6)])
    assert all(p.grad is None and torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert torch.is_grad_enabled()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    with torch.no_grad():
        found = gradients(signal, [ids_item(0, 6)])
        assert not torch.is_grad_enabled()
    given = found.values[EMBED].clone()
    gradients(signal, [ids_item(0, 6)], embedded=given)
    assert torch.equal(given, found.values[EMBED])
    assert not any(t.requires_grad for t in (given, found.score, *found.values.values()))
    assert not any(t.requires_grad for t in found.slopes.values())


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_bfloat16_stays_bfloat16(family):
    items = [ids_item(6, 11), ids_item(7, 8)]
    full = gradients(make_signal(family), items)
    half = gradients(make_signal(family, dtype=torch.bfloat16), items)
    assert half.score.dtype == torch.float64
    for site in SITES:
        assert half.slopes[site].dtype == half.values[site].dtype == torch.bfloat16
        a, b = (g.slopes[site].double().flatten() for g in (full, half))
        assert float(torch.cosine_similarity(a, b, 0)) > 0.98


@pytest.fixture(scope="module")
def alone():
    signal = make_signal("mistral")
    return signal, swept(signal, ITEMS, range(len(ITEMS)), 1)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.permutations(range(len(ITEMS))), st.integers(1, len(ITEMS)), st.integers(1, 500))
def test_neither_batch_nor_order_matters(alone, order, count, batch_tokens):
    signal, expected = alone
    found = swept(signal, ITEMS, order[:count], batch_tokens)
    assert set(found) == set(order[:count])
    for item, one in found.items():
        assert one.score == pytest.approx(expected[item].score, rel=1e-5, abs=1e-5)
        for site in SITES:
            slope = expected[item].slopes[site]
            limit = 1e-5 * float(slope.abs().max())
            torch.testing.assert_close(one.slopes[site], slope, rtol=0, atol=limit)
            assert (
                one.values[site].shape == slope.shape == (len(signal.encode(ITEMS)[item].ids), 32)
            )


def test_memory_is_that_of_a_batch():
    signal = make_signal("llama")

    def live(n):
        """Numbers in all tensors when the last of n texts is handed over."""
        encoded = signal.encode([ids_item(k, 20) for k in range(n)])
        read, chosen = signal.read_index(encoded), signal.bound("reward", encoded)
        sweep = gradient_sweep(signal, encoded, range(n), SITES, chosen, read, 80)
        for _, one in zip(range(n), sweep, strict=True):
            kept = one
        assert kept.item == n - 1
        gc.collect()
        tensors = (o for o in gc.get_objects() if issubclass(type(o), torch.Tensor))
        return sum(t.numel() for t in tensors)

    first = live(8)  # two batches
    assert abs(live(32) - first) < 0.02 * first


def test_what_is_no_tensor_of_the_forward_is_refused():
    cases = [
        ("llama", Site("head_out", 0), "L0.head_out is not one tensor .* ask for L0.head_in"),
        ("gemma2", Site("head_out", 1), "ask for L1.head_in"),
        ("llama", Site("attn_out", 2), "ask for L2.attn_unscaled"),
        ("llama", Site("mlp_out", 9), "layer 9|L9"),
        ("gpt_neox", Site("resid_mid", 0), "does not exist"),
    ]
    for family, site, said in cases:
        with pytest.raises(AnatomyError, match=said):
            gradients(make_signal(family), [ids_item(0, 5)], sites=[site])


def test_a_number_that_is_not_finite_names_the_item():
    signal = make_signal("llama")
    items = [ids_item(0, 6), ids_item(1, 6)]
    embedded = gradients(signal, items).values[EMBED].clone()
    embedded[1, 2] = torch.inf
    with pytest.raises(NumericsError, match="item 1: the score is NaN.*float32"):
        gradients(signal, items, embedded=embedded)
    batch = collate(signal.encode(items), [0, 1], signal.trunk.pad_id, signal.trunk.device)
    weight = torch.tensor([1.0, 0.0])[:, None]  # the root of nothing has no slope
    with pytest.raises(NumericsError, match="item 1: the gradient at embed is NaN"):
        score_gradients(
            signal.trunk, batch, [EMBED], lambda _, x: (x[:, 0] * weight).pow(2).sum(-1).sqrt()
        )


def test_points_of_a_way():
    """n points integrate polynomials of degree 2 n - 1 exactly."""
    for steps in (1, 2, 5):
        for power in range(2 * steps):
            total = sum(weight * x**power for x, weight in quadrature(steps))
            assert total == pytest.approx(1 / (power + 1), abs=1e-12)
    assert sum(w * x**2 for x, w in quadrature(1)) != pytest.approx(1 / 3, abs=0.05)
