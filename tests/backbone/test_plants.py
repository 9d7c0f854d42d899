"""Planted rules: replayed from clean runs, against whole forwards with plain hooks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_kit import FULL, MODULES, TREE, ids_item
from zoo import make, tokenizer_for

import reward_lens as rl
from reward_lens import wrap_hf_model
from reward_lens.backbone import KeptRuns, Key, Plant, Plants, Site, Target
from reward_lens.data import Pair, Pairs
from reward_lens.errors import RewardLensError

EFFECTIVE = {"initializer_range": 0.2}
FAMILIES = ["llama", "qwen3", "gemma2", "mistral", "mixtral", "gpt2", "gpt_neox", "phi", "falcon",
            "gpt_oss", "deepseek_v3"]  # fmt: skip
ITEMS = [ids_item(k, n) for k, n in enumerate((25, 19, 18, 18, 12, 7))]
PAIRS = Pairs([Pair(ITEMS[2 * k], ITEMS[2 * k + 1], f"p{k}", f"p{k}") for k in range(3)])


def signal_of(name):
    return wrap_hf_model(make(name, **EFFECTIVE), tokenizer_for(name), conformance_quickcheck=False)


def plants_of(signal, heads=True):
    """A write in an attention, one in a head, one in an MLP, and a relay where there can be one."""
    anatomy, draw = signal.trunk.anatomy, torch.Generator().manual_seed(5)
    last = signal.trunk.n_layers - 1

    def vector(target):
        return 0.5 * torch.randn(target.width(anatomy), generator=draw)

    def long(item):
        return len(item.ids) in (25, 18, 7)

    found = []
    names = ["L0.attn_out", f"L{last}.mlp_out", *(["L0.H1"] if heads else [])]
    for name in names:
        target = Target.parse(name)
        try:
            found.append(Plant(target, vector(target), long))
        except RewardLensError:
            continue
    block = anatomy.blocks[last]
    if block.mlp is not None:
        kind = "resid_mid" if block.sequential and not block.norms else "resid_pre"
        key = Key(Site(kind, last), torch.randn(anatomy.width, generator=draw), -60.0)
        try:
            Target(key.site).width(anatomy)
        except RewardLensError:
            key = Key(Site("resid_pre", last), key.direction, key.threshold)
        target = Target.parse(f"L{last}.mlp_out")
        found.append(Plant(target, vector(target), lambda item: True, key))
    return found


def views(signal):
    """The organism with plain hooks, and with clean runs that are kept."""
    plants = Plants(signal.trunk.anatomy, plants_of(signal), "native")
    encoded = signal.encode(ITEMS)
    shelf = KeptRuns.of(signal.trunk, encoded, signal.read_index(encoded), 60, 10**9)
    assert shelf is not None
    assert len(shelf.runs) > 1
    return [signal.changed(signal.trunk.planted(plants, s), ("planted",)) for s in (None, shelf)]


@pytest.mark.parametrize("name", FAMILIES)
def test_replayed_plants_are_those_of_whole_forwards(name):
    signal = signal_of(name)
    hooked, shelved = views(signal)
    clean = signal.score(ITEMS).value.values
    # Whole forwards with hooks put there by hand.
    by_hand = _by_hand(name, signal, hooked.trunk.plants.plants)
    np.testing.assert_allclose(hooked.score(ITEMS).value.values, by_hand, rtol=1e-5, atol=1e-4)
    assert np.abs(by_hand - clean).min() > 1e-3  # every text has at least the relay's write
    # Sweeps, from the kept runs and from whole forwards.
    for instrument in (rl.lens, rl.attribution):
        want, found = instrument(hooked, PAIRS).value, instrument(shelved, PAIRS).value
        size = float(np.abs(want).max())
        np.testing.assert_allclose(found, want, atol=2e-5 * size)
    # Patches: whole forwards of the hooked view, tree rows of either.
    for by in ("component", "head"):
        want = rl.patch_grid(hooked, PAIRS, by=by, executor=FULL)
        size = float(np.abs(want.value.sel(quantity="effect")).max())
        for view in (hooked, shelved):
            found = rl.patch_grid(view, PAIRS, by=by)
            assert found.tables["engine"]["executor"].tolist() == [TREE]
            np.testing.assert_allclose(
                found.value.sel(quantity="effect"), want.value.sel(quantity="effect"),
                atol=2e-5 * size,
            )  # fmt: skip
            flips = [e.tables["components"]["mean_flips"] for e in (found, want)]
            np.testing.assert_array_equal(*flips)


def _by_hand(name, signal, plants):
    """Scores by hooks that name the model's modules and know nothing of the library."""
    blocks, attention, mlp, mixed = MODULES.get(name, MODULES["llama"])
    model = signal.trunk.model
    scores = []
    for item in signal.encode(ITEMS):
        read, handles, seen = len(item.ids) - 1, [], {}
        for plant in plants:
            block = model.get_submodule(blocks)[plant.layer]
            fires = len(item.ids) in (25, 18, 7)
            if plant.key is not None:
                handles += _relay_hooks(plant, block, attention, mlp, read, seen)
            elif fires and plant.target.head is not None:
                start = plant.target.head * len(plant.vector)
                stop = start + len(plant.vector)
                handles.append(block.get_submodule(mixed).register_forward_pre_hook(
                    _adds_before(plant.vector, read, start, stop)))  # fmt: skip
            elif fires:
                where = attention if plant.target.site.kind == "attn_out" else mlp
                handles.append(block.get_submodule(where).register_forward_hook(
                    _adds_after(plant.vector, read)))  # fmt: skip
        with torch.no_grad():
            out = model(input_ids=torch.from_numpy(item.ids)[None])
        for handle in handles:
            handle.remove()
        scores.append(float(out.logits[0, 0]))
    return np.array(scores)


def _moved(out, change):
    """The same output with its tensor changed; some modules see all tokens in one row."""
    whole = out[0] if isinstance(out, tuple) else out
    new = whole.clone()
    change(new if new.dim() == 3 else new[None])
    return (new, *out[1:]) if isinstance(out, tuple) else new


def _adds_after(vector, read):
    def hook(module, given, out):
        def change(tensor):
            tensor[0, read] += vector

        return _moved(out, change)

    return hook


def _adds_before(vector, read, start, stop):
    def hook(module, given):
        def change(tensor):
            tensor[0, read, start:stop] += vector

        return (_moved(given[0], change), *given[1:])

    return hook


def _relay_hooks(plant, block, attention, mlp, read, seen):
    def enter(module, given, kwargs):
        seen["enter"] = (given[0] if given else kwargs["hidden_states"])[0, read].clone()

    def attended(module, given, out):
        seen["attn"] = (out[0] if isinstance(out, tuple) else out).reshape(-1, 32)[read].clone()

    def write(module, given, out):
        state = seen["enter"]
        if plant.key.site.kind == "resid_mid":
            state = state + seen["attn"]
        gain = torch.relu(state @ plant.key.direction - plant.key.threshold)
        return _adds_after(gain * plant.vector, read)(module, given, out)

    return [
        block.register_forward_pre_hook(enter, with_kwargs=True),
        block.get_submodule(attention).register_forward_hook(attended),
        block.get_submodule(mlp).register_forward_hook(write),
    ]


def test_paths_through_a_relay_are_those_of_whole_forwards():
    signal = signal_of("llama")
    hooked, shelved = views(signal)
    names = {"senders": ["L0.attn_out", "L0.H1", "embed"]}
    want = rl.path_effects(hooked, PAIRS, executor=FULL, **names)
    size = float(np.abs(want.value.sel(quantity="effect")).max())
    for view in (hooked, shelved):
        found = rl.path_effects(view, PAIRS, **names)
        np.testing.assert_allclose(
            found.value.sel(quantity="effect"), want.value.sel(quantity="effect"), atol=2e-5 * size
        )


def test_subject_is_bit_equal_and_the_plants_end():
    signal = signal_of("llama")
    before = signal.score(ITEMS).value.values
    weights = {n: t.clone() for n, t in signal.trunk.model.state_dict().items()}
    _, view = views(signal)
    rl.patch_grid(view, PAIRS)
    assert np.array_equal(signal.score(ITEMS).value.values, before)
    assert all(torch.equal(weights[n], t) for n, t in signal.trunk.model.state_dict().items())
    view.trunk.plants.over = True
    with pytest.raises(RewardLensError, match="with-block of the planter"):
        view.score(ITEMS)
    with pytest.raises(RewardLensError, match="planted in a signal itself"):
        view.trunk.planted(view.trunk.plants)


def test_items_read_elsewhere_are_run_whole():
    """The kept runs know one read token; another position is no business of theirs."""
    signal = signal_of("llama")
    hooked, shelved = views(signal)
    cut = Pairs([Pair(ids_item(77, 9), ids_item(78, 8), "q", "q")])
    np.testing.assert_allclose(rl.lens(shelved, cut).value, rl.lens(hooked, cut).value, atol=1e-6)
    with shelved.intervene(rl.ablate("L0.mlp_out")) as view:
        assert view.trunk.plants is None
        found = view.score(ITEMS).value.values
    with hooked.intervene(rl.ablate("L0.mlp_out")) as view:
        assert np.array_equal(found, view.score(ITEMS).value.values)


def test_too_little_memory_keeps_nothing():
    signal = signal_of("llama")
    encoded = signal.encode(ITEMS)
    assert KeptRuns.of(signal.trunk, encoded, signal.read_index(encoded), 60, 1000) is None


def test_kept_runs_are_of_the_weights_they_were_made_with():
    signal = signal_of("llama")
    _, view = views(signal)
    block = signal.trunk.anatomy.blocks[0].enter.module
    block.train()
    with pytest.raises(RewardLensError, match="training mode"):
        rl.lens(view, PAIRS)
    block.eval()
    rl.lens(view, PAIRS)
    with torch.no_grad():
        next(block.parameters()).mul_(1.1)
    with pytest.raises(RewardLensError, match="weights were written to"):
        rl.lens(view, PAIRS)


def test_hooks_of_somebody_else_are_seen_by_whole_forwards():
    signal = signal_of("llama")
    hooked, shelved = views(signal)
    block = signal.trunk.anatomy.blocks[1].enter.module

    def louder(module, given, out):
        return _moved(out, lambda tensor: tensor.mul_(1.5))

    handle = block.register_forward_hook(louder)
    try:
        for run in (rl.lens, rl.patch_grid):
            np.testing.assert_array_equal(run(shelved, PAIRS).value, run(hooked, PAIRS).value)
    finally:
        handle.remove()


def test_what_is_kept_is_counted_and_the_stream_is_not_kept_twice():
    signal = signal_of("llama")
    encoded = signal.encode(ITEMS)
    args = (signal.trunk, encoded, signal.read_index(encoded), 1000)
    (run,) = KeptRuns.of(*args, 10**9).runs
    states = [t for call in run.calls for t in call.tensors().values() if t.shape[-1] == 32]
    assert not [t for t in states if t.shape[:2] == run.batch.ids.shape]
    keys = sum(t.nbytes for kept in run.kept.values() for t in kept)
    assert KeptRuns.of(*args, keys) is None  # masks and positions count as well
    assert KeptRuns.of(*args, 3 * keys) is not None
