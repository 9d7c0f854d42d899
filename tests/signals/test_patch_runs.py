"""What changed runs leave behind, share between threads and count."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from engine_kit import FULL, JOINING, PlainHooks, clean_lot, drawn, ids_item
from families import ITEMS, PAIRS, make_signal

from reward_lens.instruments.patching_grid import patch_grid
from reward_lens.instruments.paths import path_effects
from reward_lens.signals.intervening import ablate
from reward_lens.signals.patching import clean_runs

TEXTS = [ids_item(1, 25), ids_item(2, 19), ids_item(3, 18)]


@pytest.fixture(scope="module")
def signals():
    return {f: make_signal(f, initializer_range=0.2) for f in ("llama", "mixtral", "gemma2")}


def hooks_on(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("family", ["llama", "mixtral", "gemma2"])
def test_four_threads_patch_and_score_one_signal(signals, family):
    signal = signals[family]

    def scored():
        return signal.score(ITEMS).value.values

    def changed():
        with signal.intervene(ablate("L1.H2")) as view:
            return view.score(ITEMS).value.values

    works = [
        lambda: patch_grid(signal, PAIRS).value.values,
        lambda: patch_grid(signal, PAIRS, by="head", positions="aligned").value.values,
        lambda: path_effects(signal, PAIRS[:2], senders=["embed", "L0.H1"]).value.values,
        scored,
        changed,
        lambda: patch_grid(signal, PAIRS[:2], executor=FULL).value.values,
    ]
    serial = [work() for work in works]
    before = hooks_on(signal.trunk.model)
    with ThreadPoolExecutor(4) as pool:
        together = [pool.submit(work) for _ in range(3) for work in works]
        for k, work in enumerate(together):
            np.testing.assert_array_equal(work.result(), serial[k % len(works)])
    assert hooks_on(signal.trunk.model) == before == 0


def test_the_first_call_may_be_made_by_several_threads_at_once():
    signal = make_signal("qwen2")
    fresh = signal.with_meta(source="again")  # the same trunk
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(patch_grid, fresh, PAIRS[:2]) for _ in range(4)]
        values = [run.result().value.values for run in runs]
    for value in values:
        np.testing.assert_array_equal(value, values[0])


def alive():
    gc.collect()
    return sum(type(o) is torch.Tensor for o in gc.get_objects())


@pytest.mark.parametrize("executor", [None, FULL, JOINING])
def test_patches_leave_no_tensor_behind(signals, executor):
    signal = signals["mixtral"]
    lot = clean_lot(signal, TEXTS, ["L1.mlp_out"], whole=True, executor=executor)
    runs = [(drawn(signal, "L1.mlp_out", (17,), k),) for k in range(5)]
    lot.run({0: runs})
    before = alive()
    for _ in range(10):
        lot.run({0: runs, 2: runs})
    assert alive() <= before


def test_only_one_lot_is_held_whatever_the_caller_keeps(signals):
    signal = signals["llama"]
    encoded = signal.encode(ITEMS)
    read, n = signal.read_index(encoded), len(encoded)
    groups = [[k, k + 1] for k in range(0, n, 2)]
    site = drawn(signal, "L1.mlp_out", (0,), 0).target.source
    kept, states = [], []
    readout = signal.bound("reward", encoded)
    for lot in clean_runs(signal, encoded, read, readout, groups, [site], batch_tokens=1):
        lot.run({lot.index[0]: [(drawn(signal, "L0.mlp_out", (read[lot.index[0]],), 1),)]})
        assert all(state() is None for state in states)
        kept.append(lot)
        states.append(weakref.ref(lot.state(site, lot.index[0])._base))
        assert states[-1]() is not None
    assert len(kept) == n // 2
    with pytest.raises(KeyError):
        kept[0].state(site, kept[0].index[0])
    assert sorted(i for lot in kept for i in lot.score) == list(range(n))


def test_a_large_job_goes_in_lots_and_gives_the_same(signals):
    signal = signals["llama"]
    done = []
    grid = patch_grid(signal, PAIRS, batch_tokens=100, progress=done.append)
    assert len(done) > 1
    assert sum(done) == 2 * len(PAIRS)
    np.testing.assert_allclose(grid.value, patch_grid(signal, PAIRS).value, rtol=1e-5, atol=2e-5)


class Choices:
    """The two experts of every token and layer, by hooks on a mixtral's gates."""

    def __init__(self, model):
        self.model, self.seen = model, []

    def __enter__(self):
        def look(module, args, out):
            logits = out[0] if isinstance(out, tuple) else out
            self.seen.append(logits.reshape(-1, 4).topk(2).indices.sort(-1).values)

        gates = [layer.mlp.gate for layer in self.model.model.layers]
        self.handles = [gate.register_forward_hook(look) for gate in gates]
        return self.seen

    def __exit__(self, *_):
        for handle in self.handles:
            handle.remove()


@pytest.mark.parametrize("read", [24, 15])
@pytest.mark.parametrize("executor", [None, FULL, JOINING])
def test_flips_are_the_router_choices_that_differ(signals, executor, read):
    """Counted over layers and tokens up to the read one, against two forwards with hooks."""
    signal = signals["mixtral"]
    hooks, text = PlainHooks(signal.trunk.model, "mixtral"), TEXTS[0]
    lot = clean_lot(signal, [text], [], read=[read], whole=True, executor=executor)
    runs = [()]
    for at in ((read,), (3,), (2, 8, read)):
        for k, name in enumerate(("embed", "L0.H1", "L0.mlp_out", "L1.attn_out", "L1.resid_post")):
            value = drawn(signal, name, at, k)
            runs.append((type(value)(value.target, at, 10 * value.value),))
    out = lot.run({0: runs})[0]
    with Choices(signal.trunk.model) as clean:
        hooks.logits(text.ids)
    expected = []
    for run in runs:
        with Choices(signal.trunk.model) as seen:
            hooks.logits(text.ids, run)
        differs = [(a != b)[: read + 1].any(-1).sum() for a, b in zip(clean, seen, strict=True)]
        expected.append(int(sum(differs)))
    assert out.flips.tolist() == expected
    assert out.flips[0] == 0
    assert max(expected[1:6]) >= 2
    assert max(expected) > 5


def test_a_dense_model_has_no_choices(signals):
    lot = clean_lot(signals["llama"], TEXTS[:1], [])
    assert lot.run({0: [(drawn(signals["llama"], "embed", (24,), 0),)]})[0].flips.tolist() == [0]
