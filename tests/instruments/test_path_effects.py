"""Path effects: identities, single paths by plain hooks, the frozen direct path by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_kit import FULL, grain, plain_reception
from families import FAMILIES, PAIRS, make_signal
from zoo import make, tokenizer_for

from reward_lens import wrap_hf_model
from reward_lens.backbone import MEAN, Receiver, Reception, write_sites
from reward_lens.errors import AnatomyError, CapabilityError, DataError
from reward_lens.evidence import Evidence, Tier, Units
from reward_lens.instruments.patching_grid import patch_grid
from reward_lens.instruments.paths import path_effects

TYPES = [*FAMILIES, "phi", "falcon", "minicpm3", "helium", "jamba", "bloom"]
SENDERS = ["embed", "L0.attn_out", "L0.H1", "L1.mlp_out"]
# Sides that end in different tokens, and differ at tokens that are aligned.
TWO = [("Say hi.", "Hi! a", "No. b"), ("Name a colour.", "Blue", "A colour is light.")]
ALL_ITEMS = [(p, r) for p, a, b in (*PAIRS, *TWO) for r in (a, b)]
SAME = [("Say hi.", "Hi!", "Hi!"), ("Say hi.", "Hi!", "No.")]


def made(name, **changes):
    changes = {"initializer_range": 0.1, **changes}
    return wrap_hf_model(make(name, **changes), tokenizer_for(name), conformance_quickcheck=False)


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama", initializer_range=0.2)


@pytest.fixture(scope="module")
def llama(signal):
    """Both sides of the pairs: ids, states at the read token, scores."""
    items = [(p, r) for p, a, b in PAIRS for r in (a, b)]
    sites = ["embed", "L0.attn_out", "L0.head_in", "L1.mlp_out", "L2.resid_post", "final_norm"]
    return {
        "ids": [torch.from_numpy(e.ids)[None] for e in signal.encode(items)],
        "score": signal.score(items).value.values.astype(float).reshape(-1, 2),
        **{k: v.reshape(-1, 2, v.shape[-1]) for k, v in signal.capture(items, sites).items()},
    }


def effect(evidence, **where):
    return evidence.value.sel(quantity="effect", **where).values


def close(found, expected, signal, items=None):
    """To 1e-5 of the largest effect, or to float32's rounding of the scores."""
    rounding = grain(signal, items or ALL_ITEMS)
    scale = max(1e-5 * np.abs(expected).max(), rounding)
    np.testing.assert_allclose(found, expected, rtol=0, atol=scale)


@pytest.mark.parametrize("positions", ["final", "aligned"])
@pytest.mark.parametrize("name", TYPES)
def test_all_paths_together_are_the_senders_own_effect(name, positions):
    signal = made(name)
    anatomy = signal.trunk.anatomy
    senders = [s for s in SENDERS if ".H" not in s or anatomy.blocks[0].attn.heads]
    if anatomy.blocks[1].mlp is None:
        senders.remove("L1.mlp_out")
    joint = path_effects(signal, TWO, senders=senders, positions=positions, joint=True)
    # A head is no component of the grid by component.
    heads = [s for s in senders if ".H" in s]
    grids = [patch_grid(signal, TWO, positions=positions, by=by, components=some)
             for by, some in (("component", [s for s in senders if s not in heads]),
                              ("head", heads)) if some]  # fmt: skip
    for grid in grids:
        for sender in grid.value["component"].values:
            own = effect(grid, component=sender)
            close(effect(joint, sender=sender, receiver="joint"), own, signal)
            nodes = joint.tables["nodes"].set_index(["sender", "direction"])["mean"]
            np.testing.assert_allclose(nodes[str(sender)].reindex(["noise", "denoise"]),
                                       own.mean(1), atol=1e-4)  # fmt: skip
            assert np.abs(own).max() > 1e-4


@pytest.mark.parametrize("positions", ["final", "aligned"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "mixtral", "falcon", "minicpm3"])
def test_what_runs_is_the_full_forward(name, positions):
    signal = made(name)
    heads = [] if name == "falcon" else ["L2.H1.q", "L2.H0.k", "L2.H3.v", "L2.H0"]
    ends = ["L2.attn_in", "L2.mlp_in", *heads, "L2.resid_pre", "L2.resid_post", "readout"]
    options = {"senders": SENDERS, "receivers": ends, "positions": positions}
    fast = path_effects(signal, TWO, **options)
    slow = path_effects(signal, TWO, executor=FULL, **options)
    close(effect(fast), effect(slow), signal)
    assert slow.tables["engine"]["executor"].tolist() == [FULL]
    ran = fast.tables["engine"]["executor"].tolist()
    assert ran == ["tree row" if positions == "final" else "joining batch"]
    assert fast.provenance.cost_forwards < slow.provenance.cost_forwards


@pytest.mark.parametrize("receiver", ["L1.attn_in", "L1.mlp_in", "L2.mlp_in", "L1.H2", "L2.H3.q",
                                      "L1.H0.k", "L2.H1.v"])  # fmt: skip
@pytest.mark.parametrize("sender", ["embed", "L0.attn_out", "L0.H1"])
def test_one_path_by_plain_hooks(signal, llama, sender, receiver):
    """Noise and denoise, with signs; what a head sends is its part of the last map."""
    found = path_effects(signal, PAIRS, senders=sender, receivers=receiver)
    layer, part, *which = receiver[1:].split(".")
    head = int(part[1]) if part[0] == "H" else None
    role = "mlp" if part == "mlp_in" else "attn"
    parsed = Receiver(int(layer), role, head, which[0] if which else None)
    states = llama[{"L0.H1": "L0.head_in"}.get(sender, sender)]
    if sender == "L0.H1":
        weight = signal.trunk.model.model.layers[0].self_attn.o_proj.weight
        states = (states[..., 8:16] @ weight[:, 8:16].T).detach()
    for k in range(len(PAIRS)):
        for side, direction in enumerate(("noise", "denoise")):
            ids = llama["ids"][2 * k + side]
            change = (states[k, 1 - side] - states[k, side])[None]
            run = [Reception(parsed, (ids.shape[1] - 1,), change)]
            moved = plain_reception(signal.trunk.model, ids, run) - llama["score"][k, side]
            got = float(effect(found, direction=direction).ravel()[k])
            assert got == pytest.approx(moved if side else -moved, abs=2e-5)


@pytest.mark.parametrize("sender", ["embed", "L0.attn_out", "L1.mlp_out"])
def test_the_stream_and_the_readout_as_receivers(signal, llama, sender):
    """What is added to the last state, read with the norm applied to it."""
    model, pairs = signal.trunk.model, range(len(PAIRS))
    found = path_effects(signal, PAIRS, senders=sender, receivers=["L2.resid_post", "readout"])
    for side, direction in enumerate(("noise", "denoise")):
        change = llama[sender][:, 1 - side] - llama[sender][:, side]
        with torch.no_grad():
            moved = model.score(model.model.norm(llama["L2.resid_post"][:, side] + change))
        moved = moved[:, 0].numpy() - llama["score"][:, side]
        expected = moved if side else -moved
        for receiver in ("L2.resid_post", "readout"):
            got = effect(found, direction=direction, receiver=receiver)[list(pairs), 0]
            np.testing.assert_allclose(got, expected, atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_frozen_direct_path_is_the_write_through_the_clean_norm(name):
    """By the formula of the norm, at the clean run's own size: not a difference of attributions."""
    signal = made(name)
    norm = signal.trunk.model.model.norm if name == "llama" else signal.trunk.model.transformer.ln_f
    items = [(p, r) for p, a, b in PAIRS for r in (a, b)]
    senders = ["embed", *map(str, write_sites(signal.trunk.anatomy))]
    states = signal.capture(items, [*senders, "L2.resid_post"])
    states = {k: v.double().reshape(-1, 2, 32) for k, v in states.items()}
    found = path_effects(signal, PAIRS, senders=senders, receivers="readout", norm="frozen")
    w = signal.trunk.model.score.weight.detach()[0].double() * norm.weight.detach().double()
    for side, direction in enumerate(("noise", "denoise")):
        last = states["L2.resid_post"][:, side]
        last = last - last.mean(-1, keepdim=True) if name == "gpt2" else last
        size = (last.pow(2).mean(-1) + 1e-6 * (10 if name == "gpt2" else 1)).sqrt()
        for sender in senders:
            change = states[sender][:, 1 - side] - states[sender][:, side]
            change = change - change.mean(-1, keepdim=True) if name == "gpt2" else change
            moved = ((change @ w) / size).numpy()
            got = effect(found, direction=direction, sender=sender, receiver="readout")
            np.testing.assert_allclose(got, moved if side else -moved, rtol=1e-4, atol=1e-6)
    applied = path_effects(signal, PAIRS, senders="embed", receivers="readout")
    assert np.abs(effect(applied)[:, :, 0] - effect(found, sender="embed")).max() > 1e-3


@pytest.mark.parametrize("name", ["eurobert, mean", "modernbert, mean"])
def test_a_head_that_reads_a_mean_takes_all_tokens(name):
    signal = made(name)
    pairs = [("ab", "cde", "fgh"), ("x", "yz", "wv")]
    assert signal.encode([("a", "b")])[0].native == MEAN
    joint = path_effects(signal, pairs, senders="L0.mlp_out", positions="all", joint=True)
    grid = patch_grid(signal, pairs, positions="all", components=["L0.mlp_out"])
    items = [(p, r) for p, a, b in pairs for r in (a, b)]
    close(effect(joint)[..., 0], effect(grid), signal, items)
    with pytest.raises(CapabilityError, match="mean over all tokens"):
        path_effects(signal, pairs, senders="L0.mlp_out")

    # The direct path, linear in the change: by finite steps of the last state, the norm's size
    # and centre taken out by hand.
    last = signal.meta.n_layers - 1
    options = {"senders": f"L{last}.mlp_out", "receivers": "readout", "positions": "all"}
    frozen = path_effects(signal, pairs, norm="frozen", **options)
    sites = [f"L{last}.mlp_out", f"L{last}.resid_post", "final_norm"]
    states = signal.capture(items, sites, position="all")
    write, stream, normed = ([t.double() for t in states[s]] for s in sites)
    head = signal.readout().head
    norm = signal.trunk.anatomy.final_norm.module
    epsilon = getattr(norm, "eps", None) or norm.variance_epsilon
    for k in range(len(pairs)):
        a, b = 2 * k, 2 * k + 1
        mean = normed[a].mean(0, keepdim=True).float().requires_grad_(True)
        score = (head.features(mean) @ signal.readout().direction).sum()
        (slope,) = torch.autograd.grad(score, mean)
        x = stream[a] - (stream[a].mean(-1, keepdim=True) if "modern" in name else 0)
        size = (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt()
        change, slope = write[b] - write[a], slope.detach()
        change = change - (change.mean(-1, keepdim=True) if "modern" in name else 0)
        moved = (change / size * norm.weight.detach().double()).mean(0) @ slope[0].double()
        got = float(effect(frozen, direction="noise")[k, 0, 0])
        assert got == pytest.approx(-float(moved), rel=1e-3)
        assert abs(got) > 1e-5


def test_together_nothing_is_heard_twice(signal):
    """Where the stream itself is changed, what reads it later hears of it from there."""
    options = {"senders": "L0.mlp_out", "positions": "aligned"}

    def joint(*receivers):
        return effect(path_effects(signal, TWO, receivers=receivers, joint=True, **options))

    alone = joint("L2.resid_pre")
    for more in (["L2.attn_in", "readout"], ["L2.mlp_in", "L2.H1.q"], ["L2.resid_pre"],
                 ["L2.resid_mid", "L2.resid_post"]):  # fmt: skip
        np.testing.assert_allclose(joint("L2.resid_pre", *more), alone, atol=1e-5)
    with_earlier = joint("L1.attn_in", "L2.resid_pre")
    assert np.abs(with_earlier - alone).max() > 1e-3
    np.testing.assert_allclose(joint("L2.resid_pre", "readout", "L1.attn_in"), with_earlier,
                               atol=1e-5)  # fmt: skip
    whole = joint("L2.H1")
    np.testing.assert_allclose(joint("L2.H1.q", "L2.H1.k", "L2.H1.v"), whole, atol=1e-5)
    np.testing.assert_allclose(joint("L2.H1", "L2.H1.k"), whole, atol=1e-5)
    np.testing.assert_allclose(joint("L2.attn_in", "L2.H1"), joint("L2.attn_in"), atol=1e-5)
    assert np.abs(joint("L2.H1.k") - whole).max() > 1e-5


def test_together_by_default_every_sender_is_heard_by_all_that_come_after_it(signal):
    """Whatever other senders are asked for."""
    both = path_effects(signal, TWO, senders=["embed", "L2.attn_out"], joint=True)
    for sender in ("embed", "L2.attn_out"):
        alone = path_effects(signal, TWO, senders=sender, joint=True)
        np.testing.assert_allclose(effect(both, sender=sender), effect(alone, sender=sender),
                                   atol=1e-5)  # fmt: skip
    assert both.subject.interventions[0].endswith("every receiver after it, together")


def test_value_tables_and_record(signal):
    found = path_effects(signal, PAIRS, senders=["L0.attn_out", "L1.mlp_out"])
    assert found.tier is Tier.CAUSAL
    assert dict(found.quantity_units) == {"effect": Units.REWARD, "share": Units.SHARE}
    ends = ["L0.attn_in", "L0.mlp_in", "L1.attn_in", "L1.mlp_in", "L2.attn_in", "L2.mlp_in"]
    assert found.value["receiver"].values.tolist() == [*ends, "readout"]
    missing = np.isnan(effect(found, direction="noise"))[0]
    assert missing.tolist() == [[True, *[False] * 6], [*[True] * 4, *[False] * 3]]
    s = signal.score([(p, r) for p, a, b in PAIRS for r in (a, b)]).value.values.astype(float)
    share = found.value.sel(quantity="share").transpose("pair", ...).values
    np.testing.assert_allclose(share * (s[::2] - s[1::2])[:, None, None, None],
                               np.moveaxis(effect(found), 1, 0), rtol=1e-3, atol=1e-6)  # fmt: skip
    table = found.tables["paths"].set_index(["direction", "sender", "receiver"])
    row = table.loc["denoise", "L0.attn_out", "L2.mlp_in"]
    each = effect(found, direction="denoise", sender="L0.attn_out", receiver="L2.mlp_in")
    assert row["mean"] == pytest.approx(each.mean())
    assert row["low"] < row["mean"] < row["high"]
    assert ("noise", "L1.mlp_out", "L0.attn_in") not in table.index  # no path
    assert Evidence.from_dict(found.to_dict()).id == found.id


def test_by_default_the_largest_components_send(signal):
    found = path_effects(signal, TWO, top=2, direction="noise", receivers="readout")
    grid = patch_grid(signal, TWO, direction="noise")
    sizes = np.abs(effect(grid)).mean((0, 1))
    largest = set(grid.value["component"].values[np.argsort(sizes)[-2:]])
    assert set(found.value["sender"].values) == largest
    assert found.provenance.parents == (grid.id,)
    assert found.provenance.cost_forwards > grid.provenance.cost_forwards


@pytest.mark.parametrize("executor", [None, FULL])
@pytest.mark.parametrize("norm", ["applied", "frozen"])
def test_identical_sides_have_no_effect_and_no_share(signal, norm, executor):
    found = path_effects(signal, SAME, senders=["embed", "L1.mlp_out"], norm=norm,
                         executor=executor)  # fmt: skip
    assert (np.nan_to_num(effect(found)[:, 0]) == 0).all()
    reached = ~np.isnan(effect(found)[:, 1])
    np.testing.assert_array_equal(~np.isnan(effect(found)[:, 0]), reached)
    shares = found.value.sel(quantity="share").values
    assert np.isnan(shares[:, 0]).all()
    assert not np.isnan(shares[:, 1][reached]).any()


def test_a_pair_without_such_tokens_has_no_effect(signal):
    pairs = [
        {"input_ids_chosen": [9, 5, 6], "input_ids_rejected": [19, 15, 12, 17]},
        {"input_ids_chosen": [9, 5, 6], "input_ids_rejected": [9, 15, 12, 6]},
    ]
    found = path_effects(signal, pairs, senders=["embed"], positions="aligned")
    assert np.isnan(effect(found)[:, 0]).all()
    assert not np.isnan(effect(found)[:, 1]).any()
    assert (found.tables["paths"]["pairs"] == 1).all()
    chosen = path_effects(signal, pairs, top=1, positions="aligned", receivers="readout")
    grid = patch_grid(signal, pairs, positions="aligned")
    best = np.abs(effect(grid)[:, 1]).mean(0).argmax()
    assert chosen.value["sender"].values.tolist() == [grid.value["component"].values[best]]


def test_one_token_on_each_side(signal):
    pairs = [{"input_ids_chosen": [9], "input_ids_rejected": [12]}]
    joint = path_effects(signal, pairs, senders=["embed", "L1.mlp_out"], joint=True)
    grid = patch_grid(signal, pairs, components=["embed", "L1.mlp_out"])
    np.testing.assert_allclose(effect(joint)[..., 0], effect(grid), atol=1e-5)
    np.testing.assert_allclose(effect(grid, component="embed"), grid.tables["pairs"]["margin"][0],
                               rtol=1e-5)  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"senders": "L1.mlp_out", "receivers": "L1.attn_in"}, AnatomyError,
         "no path from L1.mlp_out to L1.attn_in"),
        ({"senders": "L1.attn_out", "receivers": "L1.H2.k"}, AnatomyError, "come after its sender"),
        ({"senders": "L2.mlp_out", "receivers": "L2.resid_mid"}, AnatomyError, "no path"),
        ({"senders": "L3.mlp_out"}, AnatomyError, "layers 0 to 2; there is no such layer"),
        ({"senders": "L1.H4"}, AnatomyError, "layer 1 has heads 0 to 3"),
        ({"senders": "L1.resid_pre"}, AnatomyError, "writes nothing of its own"),
        ({"senders": "final_norm"}, AnatomyError, "writes nothing of its own"),
        ({"senders": "nothing"}, AnatomyError, "is no site"),
        ({"senders": []}, CapabilityError, "senders is empty"),
        ({"senders": "embed", "receivers": []}, CapabilityError, "receivers is empty"),
        ({"senders": "embed", "receivers": "L3.attn_in"}, AnatomyError, "layers 0 to 2"),
        ({"senders": "embed", "receivers": "L1.H4.q"}, AnatomyError, "heads 0 to 3"),
        ({"senders": "embed", "receivers": "L1.H2.w"}, AnatomyError, "is no receiver; receivers"),
        ({"senders": "embed", "receivers": "L1.mlp_out"}, AnatomyError, "is no receiver"),
        ({"senders": "embed", "direction": "sideways"}, CapabilityError, "direction='sideways'"),
        ({"senders": "embed", "norm": "thawed"}, CapabilityError, "norm='thawed'"),
        ({"senders": "embed", "norm": "frozen", "joint": True}, CapabilityError, "leave joint out"),
        ({"senders": "embed", "positions": "all"}, DataError, "equal length"),
        ({"senders": "embed", "executor": "fast"}, CapabilityError, "does not run here"),
        ({"top": 0}, DataError, "top=0: give a whole number, 1 or more"),
    ],
)  # fmt: skip
def test_wrong_use(signal, options, error, said):
    with pytest.raises(error, match=said):
        path_effects(signal, TWO, **options)


def test_no_pairs(signal):
    with pytest.raises(DataError):
        path_effects(signal, [], senders="embed")


@pytest.mark.parametrize(
    ("name", "said"),
    [("bert", "layer 0 norms the stream"), ("minimax, scaled residual", "layer 0 .* the stream")],
)
def test_a_stream_that_is_not_only_added_to_is_refused(name, said):
    with pytest.raises(CapabilityError, match=said):
        path_effects(made(name), [("ab", "cd", "ef")], senders="embed")
