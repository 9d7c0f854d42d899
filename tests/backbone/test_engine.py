"""The engine of changed runs: against plain hooks, against the full forward, and wrong use."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_kit import (
    FULL,
    JOINING,
    TREE,
    PlainHooks,
    all_targets,
    assert_effects,
    change,
    clean_lot,
    drawn,
    grain,
    ids_item,
)
from families import FAMILIES, PAD, PAIRS, make_signal
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo import make, tokenizer_for

from reward_lens import wrap_hf_model
from reward_lens.backbone import Change, Receiver, Reception, Target
from reward_lens.data import Item
from reward_lens.errors import AnatomyError, CapabilityError, DataError, NumericsError
from reward_lens.instruments.patching_grid import patch_grid

# Longer than the sliding windows of 16, of different lengths, one with padding in the middle, and
# one that is read before its last token.
TEXTS = [ids_item(1, 25), ids_item(2, 19), ids_item(3, 18),
         Item(ids=(9, 8, PAD, 5, 11, PAD, 7, 3)), ids_item(4, 7)]  # fmt: skip
READ = [24, 18, 17, 7, 4]
EFFECTIVE = {"initializer_range": 0.2}  # attention that looks at something


@pytest.fixture(scope="module")
def signals():
    return {family: make_signal(family, **EFFECTIVE) for family in FAMILIES}


@pytest.fixture(scope="module")
def signal(signals):
    return signals["llama"]


TREE_ROW = [
    "llama", "qwen3", "gemma2", "mistral", "mixtral", "gpt2", "gpt_neox", "phi", "falcon",
    "gpt_oss", "deepseek_v3",
]  # fmt: skip


@pytest.mark.parametrize("name", [*TREE_ROW, "bloom", "mpt"])
def test_what_ran_and_that_it_is_what_plain_hooks_give(name):
    """Every kind of target at the read token, replaced and added to, alone and all together."""
    model = make(name, **EFFECTIVE)
    signal = wrap_hf_model(model, tokenizer_for(name), conformance_quickcheck=False)
    grid = patch_grid(signal, PAIRS[:2], direction="noise")
    assert grid.tables["engine"]["executor"].tolist() == [TREE if name in TREE_ROW else FULL]

    hooks = PlainHooks(model, name)
    names = [t for t in all_targets(signal) if "resid_mid" not in t and t != "final_norm"]
    items = TEXTS[1:3]  # of about one length: they share a batch
    rounding = grain(signal, items)
    lot = clean_lot(signal, items, names)
    wanted = {}
    for i in (0, 1):
        at = (lot.read[i],)
        changes = [change(signal, lot, t, at, 1 - i) for t in names]
        changes += [drawn(signal, t, at, k, add=True) for k, t in enumerate(names)]
        together = [c for c in changes if c.target.site.kind in ("head_in", "mlp_out")]
        wanted[i] = [*((c,) for c in changes), tuple(together)]
    for i, out in lot.run(wanted).items():
        ids = lot.encoded[i].ids
        expected = [hooks.logits(ids, run) for run in wanted[i]]
        assert lot.score[i] == pytest.approx(hooks.logits(ids), abs=rounding)
        assert_effects(out.scores, expected, lot.score[i], rounding)
    assert lot.executors == {TREE if name in TREE_ROW else FULL}


@pytest.mark.parametrize("family", FAMILIES)
def test_runs_of_several_changes_at_any_tokens_are_what_plain_hooks_give(signals, family):
    """Changes drawn at random; later tokens than the read one are among them."""
    signal = signals[family]
    hooks = PlainHooks(signal.trunk.model, family)
    names = [t for t in all_targets(signal) if "resid_mid" not in t and t != "final_norm"]
    generator = np.random.default_rng(5)
    lots = [clean_lot(signal, TEXTS, [], read=READ, whole=True, executor=e) for e in (None, FULL)]
    wanted = {i: [] for i in range(len(TEXTS))}
    for i, text in enumerate(TEXTS):
        for _ in range(6):
            wanted[i].append(tuple(
                drawn(signal, str(name), np.sort(generator.choice(len(text.ids),
                      generator.integers(1, 4), replace=False)).tolist(),
                      int(generator.integers(99)), add=bool(generator.integers(2)))
                for name in generator.choice(names, generator.integers(1, 5))
            ))  # fmt: skip
    fast, full = (lot.run(wanted) for lot in lots)
    rounding = grain(signal, TEXTS)
    for i, text in enumerate(TEXTS):
        if READ[i] == len(text.ids) - 1:
            plain = [hooks.logits(text.ids, run) for run in wanted[i]]
            assert_effects(full[i].scores, plain, lots[0].score[i], rounding)
        assert_effects(fast[i].scores, full[i].scores, lots[0].score[i], rounding)
    assert lots[0].executors >= {JOINING}
    assert lots[1].executors == {FULL}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_putting_back_what_was_there_changes_no_bit(family, dtype):
    signal = wrap_hf_model(make(family, dtype=dtype), tokenizer_for(family),
                           conformance_quickcheck=False)  # fmt: skip
    names = all_targets(signal)
    # One text and one run: the two forwards have the same shape, so sums have the same order.
    lot = clean_lot(signal, TEXTS[1:2], names, whole=True, executor=FULL)
    n = len(TEXTS[1].ids)
    for at in ((n - 1,), tuple(range(n))):
        for name in names:
            out = lot.run({0: [(change(signal, lot, name, at, 0),)]})[0]
            assert out.scores[0] == lot.score[0], name
            assert out.flips[0] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_agrees_as_far_as_batching_lets_it(family):
    """The full forward differs from itself by what else is in the batch: that is the unit."""
    signal = wrap_hf_model(make(family, dtype=torch.bfloat16, **EFFECTIVE), tokenizer_for(family),
                           conformance_quickcheck=False)  # fmt: skip
    names = all_targets(signal, heads=False)
    runs, scores = {}, {}
    for key, options in {
        "fast": {}, "full": {"executor": FULL}, "alone": {"executor": FULL, "batch_tokens": 1},
    }.items():  # fmt: skip
        lot = clean_lot(signal, TEXTS[:2], names, whole=True, **options)
        at = (len(TEXTS[0].ids) - 1,)
        runs[key] = [(drawn(signal, t, at, k, add=True),) for k, t in enumerate(names)]
        scores[key] = lot.run({0: runs[key]})[0].scores
    largest = np.abs(scores["full"] - scores["full"].mean()).max()
    noise = np.abs(scores["alone"] - scores["full"]).max()
    assert np.abs(scores["fast"] - scores["full"]).max() <= 4 * noise + 0.02 * largest


def test_a_token_after_the_read_one_changes_nothing(signals):
    for family in FAMILIES:
        signal = signals[family]
        for executor in (None, FULL):
            lot = clean_lot(signal, TEXTS[4:], [], read=READ[4:], whole=True, executor=executor)
            late = drawn(signal, "L1.mlp_out", (5, 6), 0)
            both = drawn(signal, "L1.mlp_out", (4, 6), 1)
            kept = Change(both.target, (4,), both.value[:1])
            out = lot.run({0: [(late,), (late, drawn(signal, "embed", (6,), 2)), (both,), (kept,),
                               (), (late, kept)]})[0]  # fmt: skip
            clean = lot.score[0]
            np.testing.assert_allclose(out.scores[[0, 1, 4]], clean, atol=2e-6 * abs(clean))
            assert abs(out.scores[2] - clean) > 1e-3
            np.testing.assert_allclose(out.scores[[2, 5]], out.scores[3], atol=2e-6 * abs(clean))


def test_a_run_of_nothing_is_the_clean_run(signal):
    nothing = Change(Target.parse("L0.mlp_out"), (), torch.zeros(0, 32))
    heard = Reception(Receiver(1, "attn"), (), torch.zeros(0, 32))
    for executor in (None, FULL, JOINING):
        lot = clean_lot(signal, TEXTS[:2], [], whole=True, executor=executor)
        out = lot.run({0: [(), (nothing,), (nothing, heard)], 1: []})
        np.testing.assert_allclose(out[0].scores, lot.score[0], atol=1e-5)
        assert out[1].scores.shape == (0,)
    final = clean_lot(signal, TEXTS[:2], [])
    moved = drawn(signal, "L1.mlp_out", (24,), 0)
    scores = final.run({0: [(nothing, moved), (moved,), ()]})[0].scores
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert scores[2] == pytest.approx(final.score[0], abs=1e-5)


def test_changes_of_one_tensor_act_in_order_and_of_several_in_that_of_the_forward(signal):
    """Whichever way a run names them, what leaves a block is changed before what enters the next,
    and the stream between the sublayers after what it is made of."""
    model, last = signal.trunk.model.model, 24
    a, b = (drawn(signal, "L1.resid_post", (last,), k) for k in (0, 1))
    enters = drawn(signal, "L2.resid_pre", (last,), 2)
    mid = drawn(signal, "L2.resid_mid", (last,), 3)
    attn = drawn(signal, "L2.attn_out", (last,), 4, add=True)
    block = model.layers[2]
    with torch.no_grad():
        between = mid.value + block.mlp(block.post_attention_layernorm(mid.value))
        expected = float(signal.trunk.model.score(model.norm(between)))
    for executor in (None, FULL, JOINING):
        lot = clean_lot(signal, TEXTS[:1], [], whole=True, executor=executor)
        out = lot.run({0: [(a, b), (b,), (a, enters), (enters, a), (enters,), (mid, enters),
                           (mid, attn), (enters, mid, a), (mid,)]})[0].scores  # fmt: skip
        assert out[0] == pytest.approx(out[1], abs=1e-5)
        np.testing.assert_allclose(out[[2, 3]], out[4], atol=1e-5)
        np.testing.assert_allclose(out[5:], expected, atol=1e-5 * abs(expected))


def test_what_the_head_reads_can_be_changed_where_one_layer_is_all_there_is():
    """Also where no norm follows it: what leaves the layer must not be changed twice."""
    for name in ("llama", "opt, norm after"):
        model = make(name, num_hidden_layers=1)
        signal = wrap_hf_model(model, tokenizer_for(name), conformance_quickcheck=False)
        moved = drawn(signal, "final_norm", (24,), 0, add=True)
        step = float(signal.readout().direction @ moved.value[0])
        for executor in (None, FULL):
            lot = clean_lot(signal, TEXTS[:1], [], executor=executor)
            out = lot.run({0: [(moved,)]})[0]
            assert out.scores[0] - lot.score[0] == pytest.approx(step, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "at", "value", "error", "said"),
    [
        ("L3.mlp_out", (2,), (1, 32), AnatomyError, "layers 0 to 2; there is no such layer"),
        ("L1.H4", (2,), (1, 8), AnatomyError, "layer 1 has heads 0 to 3"),
        ("L1.mlp_out", (25,), (1, 32), DataError, "token 25 .* tokens are 0 to 24"),
        ("L1.mlp_out", (-1,), (1, 32), DataError, "token -1 .* tokens are 0 to 24"),
        ("L1.mlp_out", (2, 2), (2, 32), DataError, "named twice"),
        ("L1.mlp_out", (2, 3), (1, 32), DataError, r"shape \(2, 32\), not \(1, 32\)"),
        ("L1.H2", (2,), (1, 32), DataError, r"shape \(1, 8\), not \(1, 32\)"),
    ],
)
@pytest.mark.parametrize("executor", [None, FULL])
def test_what_does_not_exist_is_refused(signal, name, at, value, error, said, executor):
    lot = clean_lot(signal, TEXTS[:1], [], whole=True, executor=executor)
    with pytest.raises(error, match=said):
        lot.run({0: [(Change(Target.parse(name), at, torch.zeros(value)),)]})


@pytest.mark.parametrize("name", ["L1", "L1.H", "L1.head_out", "H2", "L1.mlp", "", "L-1.H2"])
def test_no_target_is_guessed(name):
    with pytest.raises(AnatomyError):
        Target.parse(name)


def test_a_name_is_given_back():
    for name in ("embed", "final_norm", "L1.attn_out", "L2.H3", "L0.resid_mid"):
        assert str(Target.parse(name)) == name
        assert Target.parse(Target.parse(name)) == Target.parse(name)


def test_a_score_that_is_no_number_is_refused(signal):
    lot = clean_lot(signal, TEXTS[:2], [])
    huge = Change(Target.parse("L1.mlp_out"), (18,), torch.full((1, 32), torch.inf))
    with pytest.raises(NumericsError, match="item 1: its score is nan .* L1.mlp_out"):
        lot.run({1: [(), (huge,)]})
    broken = make("llama")
    with torch.no_grad():
        broken.model.layers[1].mlp.down_proj.weight[0, 0] = torch.nan
    silent = wrap_hf_model(make("llama"), tokenizer_for("llama"), conformance_quickcheck=False)
    silent.trunk.model.load_state_dict(broken.state_dict())
    with pytest.raises(NumericsError, match="item 0: .* first at layer 1"):
        clean_lot(silent, TEXTS[:1], [])


def test_an_executor_that_is_not_there_is_refused(signal):
    with pytest.raises(CapabilityError, match="'quick' does not run here: there are full forward"):
        clean_lot(signal, TEXTS[:1], [], executor="quick")
    encoder = wrap_hf_model(make("bert"), tokenizer_for("bert"), conformance_quickcheck=False)
    with pytest.raises(CapabilityError, match="depends on later tokens"):
        clean_lot(encoder, [("a", "b")], [], executor=TREE)


_TARGETS = ["embed", "L0.H1", "L1.mlp_out", "L1.resid_mid", "L2.resid_post"]
_DRAWN = st.tuples(st.sampled_from(_TARGETS),
                   st.lists(st.integers(0, 17), min_size=1, max_size=3, unique=True),
                   st.integers(0, 9), st.booleans())  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.lists(_DRAWN, max_size=2), min_size=1, max_size=4),
    st.sampled_from([1, 30, 64, 4096]),
    st.permutations([0, 1, 2]),
    st.randoms(use_true_random=False),
    st.sampled_from(["llama", "mixtral"]),
)
def test_nothing_depends_on_batches_or_order(signals, drawn_runs, tokens, order, random, family):
    signal = signals[family]
    runs = [tuple(drawn(signal, t, at, seed, add) for t, at, seed, add in run)
            for run in drawn_runs]  # fmt: skip
    shuffled = random.sample(range(len(runs)), len(runs))
    plain = clean_lot(signal, TEXTS[:3], [], whole=True).run(dict.fromkeys(range(3), runs))
    mixed = clean_lot(signal, [TEXTS[i] for i in order], [], whole=True, batch_tokens=tokens)
    found = mixed.run({k: [runs[j] for j in shuffled] for k in range(3)})
    for k, i in enumerate(order):
        scores, flips = plain[i].scores[shuffled], plain[i].flips[shuffled]
        np.testing.assert_allclose(found[k].scores, scores, atol=2e-5)
        np.testing.assert_array_equal(found[k].flips, flips)
