"""One receiver's reading of the stream is changed: against plain hooks on a llama's projections.

Two query heads share each key and value here.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_kit import (
    FULL,
    JOINING,
    TREE,
    assert_effects,
    clean_lot,
    drawn,
    grain,
    ids_item,
    plain_reception,
)
from families import make_signal
from zoo import make, tokenizer_for

from reward_lens import wrap_hf_model
from reward_lens.backbone import Receiver, Reception, check_receiver
from reward_lens.errors import AnatomyError, CapabilityError, DataError

TEXTS = [ids_item(1, 21), ids_item(2, 17)]
LAST = 20
EXECUTORS = [None, FULL, JOINING]


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama", initializer_range=0.3)


def delta(at, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(at), 32, generator=generator)


def reception(layer, role, head=None, part=None, at=(LAST,), seed=0):
    return Reception(Receiver(layer, role, head, part), at, delta(at, seed))


RECEIVERS = [
    (1, "attn"), (2, "attn"), (1, "mlp"), (2, "mlp"), (0, "attn"), (1, "attn", 0), (2, "attn", 3),
    *[(layer, "attn", head, part) for layer, head in ((1, 0), (1, 1), (2, 2)) for part in "qkv"],
]  # fmt: skip


@pytest.mark.parametrize("at", [(LAST,), (9,), (4, 11, 12, LAST), tuple(range(LAST + 1))])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_receiver_is_what_plain_hooks_give(signal, executor, at):
    lot = clean_lot(signal, TEXTS, [], whole=True, executor=executor)
    runs = [(reception(*r, at=at, seed=k),) for k, r in enumerate(RECEIVERS)]
    out = lot.run({0: runs})[0]
    ids = torch.from_numpy(lot.encoded[0].ids)[None]
    expected = [plain_reception(signal.trunk.model, ids, run) for run in runs]
    assert_effects(out.scores, expected, lot.score[0], grain(signal, TEXTS))
    # In the last layer only keys and values of an earlier token are heard at the read one.
    effects = np.abs(np.array(expected) - lot.score[0])
    own = np.array([r[0] == 2 and (r[1] == "mlp" or r[3:] == ("q",)) for r in RECEIVERS])
    assert (effects[~own] > 1e-4).all()
    assert (effects[own] > 1e-4).all() == (LAST in at)
    fast = TREE if at == (LAST,) else JOINING
    assert lot.executors == {executor or fast}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_tree_rows_of_several_texts_take_receptions_too(signal, executor):
    lot = clean_lot(signal, TEXTS, [], executor=None if executor == JOINING else executor)
    runs = {}
    for i, text in enumerate(TEXTS):
        at = (len(text.ids) - 1,)
        runs[i] = [(reception(*r, at=at, seed=k),) for k, r in enumerate(RECEIVERS)]
    for i, out in lot.run(runs).items():
        ids = torch.from_numpy(lot.encoded[i].ids)[None]
        expected = [plain_reception(signal.trunk.model, ids, run) for run in runs[i]]
        assert_effects(out.scores, expected, lot.score[i], grain(signal, TEXTS))


@pytest.mark.parametrize("at", [(LAST,), (5, 9)])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_several_inputs_of_one_head_are_changed_together(signal, executor, at):
    """In one run a head is given its query, key and value, whichever of them are changed."""
    lot = clean_lot(signal, TEXTS, [], whole=True, executor=executor)
    runs, one = [], []
    for parts in ("q", "k", "v", "qk", "qv", "kv", "vk", "qkv", "kqv"):
        runs.append(tuple(reception(2, "attn", 1, p, at=at) for p in parts))
        one.append((reception(2, "attn", 1, "".join(sorted(parts)), at=at),))
    runs.append((reception(2, "attn", 1, None, at=at),))
    runs.append((reception(2, "attn", 1, None, at=at), reception(2, "attn", 1, "k", at=at)))
    out = lot.run({0: runs})[0].scores
    ids = torch.from_numpy(lot.encoded[0].ids)[None]
    expected = [plain_reception(signal.trunk.model, ids, run) for run in [*one, runs[-2], runs[-2]]]
    assert_effects(out, expected, lot.score[0], grain(signal, TEXTS))
    np.testing.assert_allclose(out[[7, 8, 10]], out[9], atol=1e-5)
    # Not the sum of the three: the head is no linear function of its inputs.
    assert abs(out[:3].sum() - 2 * lot.score[0] - out[9]) > 1e-4 or at != (LAST,)


@pytest.mark.parametrize("at", [(LAST,), (3, 14)])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_later_receivers_see_what_earlier_ones_make_of_it(signal, executor, at):
    model = signal.trunk.model
    step = drawn(signal, "L0.mlp_out", at, 7)
    chains = [
        (reception(1, "attn", at=at), reception(2, "mlp", at=at, seed=1)),
        (reception(1, "mlp", at=at), reception(2, "attn", 2, "k", at=at, seed=1)),
        (reception(1, "attn", 0, "v", at=at), reception(1, "mlp", at=at, seed=1)),
        (reception(1, "attn", 0, "q", at=at), reception(1, "attn", 3, "v", at=at, seed=1)),
        (reception(0, "attn", at=at), reception(0, "mlp", at=at), reception(1, "attn", at=at)),
    ]
    changed = [(step, *chain) for chain in chains[:3]]
    unordered = [chain[::-1] for chain in chains]
    lot = clean_lot(signal, TEXTS, [], whole=True, executor=executor)
    out = lot.run({0: [*chains, *changed, *unordered]})[0].scores
    ids = torch.from_numpy(lot.encoded[0].ids)[None]

    def write(x):
        new = x.clone()
        new[0, list(at)] = step.value
        return new

    own = [(model.model.layers[0].mlp, write, True)]
    expected = [plain_reception(model, ids, chain) for chain in chains]
    expected += [plain_reception(model, ids, chain, own) for chain in chains[:3]]
    assert_effects(out, expected + expected[: len(chains)], lot.score[0], grain(signal, TEXTS))


@pytest.mark.parametrize("name", ["phi", "gpt2", "gemma2", "deepseek_v3", "falcon"])
def test_a_heads_inputs_in_other_families(name):
    """Parallel blocks, post-norms, latent keys, one key for all: both executors, and all parts."""
    model = make(name, initializer_range=0.2)
    signal = wrap_hf_model(model, tokenizer_for(name), conformance_quickcheck=False)
    lots = [clean_lot(signal, TEXTS, [], whole=True, executor=e) for e in (None, FULL)]
    runs = [
        (Reception(Receiver(1, *r), at, delta(at, k)),)
        for at in ((LAST,), (7,))
        for k, r in enumerate([("attn",), ("mlp",), *(("attn", 1, p) for p in (None, *"qkv"))])
    ]
    fast, full = (lot.run({0: runs})[0].scores for lot in lots)
    assert_effects(fast, full, lots[0].score[0], grain(signal, TEXTS))
    assert (np.abs(full - lots[0].score[0])[:6] > 0).all()
    assert len(np.unique(full[2:6])) == 4


def test_a_head_whose_keys_go_to_no_cache_is_taken_whole_or_refused():
    signal = wrap_hf_model(make("openai-gpt"), tokenizer_for("openai-gpt"),
                           conformance_quickcheck=False)  # fmt: skip
    lot = clean_lot(signal, TEXTS, [])
    out = lot.run({0: [(reception(1, "attn", 2),), (reception(1, "attn"),)]})[0]
    assert (np.abs(out.scores - lot.score[0]) > 0).all()
    with pytest.raises(CapabilityError, match=r"L1.H2.k: .* ask for the whole head, L1.H2"):
        lot.run({0: [(reception(1, "attn", 2, "k"),)]})


@pytest.mark.parametrize(
    ("name", "offered"),
    [("jamba", False), ("qwen3_next", False), ("axk2", False), ("zamba2", True), ("bloom", True),
     ("bert", True)],
)  # fmt: skip
def test_with_another_cache_a_part_is_right_or_refused(name, offered):
    signal = wrap_hf_model(make(name), tokenizer_for(name), conformance_quickcheck=False)
    items = [("a", "bc")] if name == "bert" else TEXTS[:1]
    lot = clean_lot(signal, items, [])
    at = (lot.read[0],)
    layers = [k for k, b in enumerate(signal.trunk.anatomy.blocks)
              if b.attn is not None and b.attn.heads is not None]  # fmt: skip
    for layer in layers:
        parts = [reception(layer, "attn", 1, p, at=at) for p in "qkv"]
        whole = lot.run({0: [(reception(layer, "attn", 1, at=at),)]})[0].scores[0]
        if offered:
            out = lot.run({0: [(p,) for p in parts] + [tuple(parts)]})[0].scores
            assert out[3] == pytest.approx(whole, abs=1e-5)
            assert len({*out, lot.score[0]}) == 5
        else:
            with pytest.raises(CapabilityError, match="ask for the whole head"):
                lot.run({0: [(parts[0],)]})


@pytest.mark.parametrize(
    ("receiver", "said"),
    [
        (Receiver(3, "attn"), "layers 0 to 2"),
        (Receiver(1, "attn", 4), "heads 0 to 3"),
        (Receiver(7, "mlp"), "layers 0 to 2"),
    ],
)
def test_a_receiver_that_does_not_exist_is_refused(signal, receiver, said):
    with pytest.raises(AnatomyError, match=said):
        check_receiver(signal.trunk.anatomy, receiver)
    lot = clean_lot(signal, TEXTS, [])
    with pytest.raises(AnatomyError, match=said):
        lot.run({0: [(Reception(receiver, (LAST,), delta((LAST,))),)]})


def test_two_different_changes_of_one_receiver_are_refused(signal):
    lot = clean_lot(signal, TEXTS, [])
    with pytest.raises(DataError, match="L1.H0.q gets two different changes in one run"):
        lot.run({0: [(reception(1, "attn", 0, "q"), reception(1, "attn", 0, "k", seed=1))]})
