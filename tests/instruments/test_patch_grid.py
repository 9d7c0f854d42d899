"""The patch grid: identities over families, single cells by plain hooks, and wrong use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import zoo
from families import FAMILIES, PAIRS, make_signal
from patch_kit import hooked

import reward_lens as rl
from reward_lens.backbone import Change, Target, write_sites
from reward_lens.data import as_pairs
from reward_lens.errors import AnatomyError, CapabilityError, DataError
from reward_lens.evidence import Evidence, Tier, Units
from reward_lens.instruments.patching_grid import patch_grid
from reward_lens.instruments.sides import Sides
from reward_lens.instruments.token_alignment import patched_tokens
from reward_lens.signals.patching import clean_runs

FULL = "full forward"
#: Sides of equal length, so that every token can be patched.
EQUAL = [
    {"input_ids_chosen": [9, 5, 6, 7, 8, 3], "input_ids_rejected": [9, 5, 2, 7, 4, 1]},
    {"input_ids_chosen": [11, 12, 13], "input_ids_rejected": [14, 12, 15]},
]


@pytest.fixture(scope="module")
def signals():
    return {family: make_signal(family) for family in FAMILIES}


@pytest.fixture(scope="module")
def signal(signals):
    return signals["llama"]


def joint(signal, pairs, names, positions, executor=None):
    """Patch several targets together: ``[direction, pair]`` scores, and ``[2, pair]`` clean."""
    given = as_pairs(pairs)
    sides = Sides.of(signal, given, None, "error")
    targets, n = [Target.parse(name) for name in names], len(given)
    tokens = patched_tokens(sides, positions)
    readout = signal.bound("reward", sides.encoded)
    clean, out = np.empty(2 * n), np.empty(2 * n)
    held = clean_runs(
        signal, sides.encoded, sides.read, readout, [[k, n + k] for k in range(n)],
        list(dict.fromkeys(t.source for t in targets)), whole=positions != "final",
        executor=executor,
    )  # fmt: skip
    for lot in held:
        for i in lot.index:
            other = (i + n) % (2 * n)
            at, theirs = tokens[i % n].chosen, tokens[i % n].rejected
            at, theirs = (at, theirs) if i < n else (theirs, at)
            run = []
            for t in targets:
                state = lot.state(t.source, other)
                rows = state[None] if positions == "final" else state[list(theirs)]
                run.append(Change(t, at, t.of(rows, signal.trunk.anatomy)))
            clean[i] = lot.score[i]
            out[i] = lot.run({i: [run]})[i].scores[0]
    return out.reshape(2, n), clean.reshape(2, n)


def all_writes(signal):
    return ["embed", *map(str, write_sites(signal.trunk.anatomy))]


def assert_swapped(found, clean, rel=1e-5):
    scale = rel * np.abs(clean[0] - clean[1]).max()
    np.testing.assert_allclose(found, clean[::-1], atol=max(scale, 2e-6))


@pytest.mark.parametrize("executor", [None, FULL])
@pytest.mark.parametrize("family", FAMILIES)
def test_all_writes_at_the_read_position_are_the_other_sides_score(signals, family, executor):
    signal = signals[family]
    assert_swapped(*joint(signal, PAIRS, all_writes(signal), "final", executor))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_stream_at_all_positions_is_the_other_sides_score(signals, family):
    signal = signals[family]
    for layer in range(signal.meta.n_layers):
        assert_swapped(*joint(signal, EQUAL, [f"L{layer}.resid_post"], "all"))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_stream_alone_does_it_and_one_earlier_layer_does_not(signals, family):
    signal = signals[family]
    grid = patch_grid(signal, PAIRS, by="layer_position", site="resid_post")
    margins = grid.tables["pairs"]["margin"].to_numpy()
    last = grid.value.sel(quantity="effect", layer=2, position="final")
    tolerance = 1e-5 * np.abs(margins).max()
    np.testing.assert_allclose(last, [margins, margins], atol=tolerance)
    np.testing.assert_allclose(grid.value.sel(quantity="share", layer=2), 1, atol=1e-4)
    found, clean = joint(signal, PAIRS, ["L0.attn_out", "L0.mlp_out"], "final")
    assert (np.abs(found - clean[::-1]) > 1e-3 * np.abs(margins)).all()


def test_an_encoder_runs_by_the_full_forward():
    signal = rl.wrap_hf_model(zoo.make("bert"), zoo.tokenizer_for("bert"))
    pairs = [*PAIRS[:2], ("one", "the same", "the same")]
    grid = patch_grid(signal, pairs, by="layer_position", site="resid_post")
    effect = grid.value.sel(quantity="effect")
    margin = grid.tables["pairs"]["margin"].to_numpy()
    np.testing.assert_allclose(effect.isel(layer=-1, position=0), [margin, margin], atol=1e-5)
    assert (effect.isel(pair=2) == 0).all()
    assert grid.tables["engine"]["executor"][0] == FULL


@pytest.mark.parametrize(
    ("by", "positions"), [("component", "final"), ("head", "final"), ("component", "aligned")]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_runs_is_the_full_forward(signals, family, by, positions):
    fast = patch_grid(signals[family], PAIRS[:2], by=by, positions=positions)
    slow = patch_grid(signals[family], PAIRS[:2], by=by, positions=positions, executor=FULL)
    a, b = (ev.value.sel(quantity="effect").values for ev in (fast, slow))
    # Random networks: scores can be far larger than effects, and float32 rounds at their size.
    rounding = 1e-6 * slow.tables["pairs"][["score_chosen", "score_rejected"]].abs().max().max()
    np.testing.assert_allclose(a, b, atol=max(1e-5 * np.abs(b).max(), rounding))
    assert slow.tables["engine"]["executor"][0] == FULL
    fastest = "tree row" if positions == "final" else "joining batch"
    assert fast.tables["engine"]["executor"][0] == fastest
    assert fast.provenance.cost_forwards < slow.provenance.cost_forwards


@pytest.mark.parametrize("name", ["L1.mlp_out", "L0.attn_out", "L1.H2", "embed"])
def test_one_cell_by_plain_hooks(signal, name):
    """Noise and denoise, with signs, against a forward that knows nothing of the library."""
    model = signal.trunk.model.model
    layer = model.layers[int(name[1])] if name != "embed" else None
    module, columns, site = {
        "L1.mlp_out": lambda: (layer.mlp, slice(None), name),
        "L0.attn_out": lambda: (layer.self_attn, slice(None), name),
        "L1.H2": lambda: (layer.self_attn.o_proj, slice(16, 24), "L1.head_in"),
        "embed": lambda: (model.embed_tokens, slice(None), "embed"),
    }[name]()
    by = "head" if ".H" in name else "component"
    grid = patch_grid(signal, PAIRS, by=by, components=[name])
    assert list(grid.value["component"].values) == [name]
    for k, (prompt, a, b) in enumerate(PAIRS):
        chosen, rejected = (prompt, a), (prompt, b)
        values = signal.capture([chosen, rejected], [site])[site][:, columns]
        s = signal.score([chosen, rejected]).value.values
        noise = s[0] - hooked(signal, chosen, module, columns, values[1], -1)
        denoise = hooked(signal, rejected, module, columns, values[0], -1) - s[1]
        got = grid.value.sel(quantity="effect", component=name).isel(pair=k)
        assert float(got.sel(direction="noise")) == pytest.approx(noise, abs=2e-5)
        assert float(got.sel(direction="denoise")) == pytest.approx(denoise, abs=2e-5)


def test_value_shares_and_tables_agree(signal):
    grid = patch_grid(signal, PAIRS)
    effect, share = (grid.value.sel(quantity=q) for q in ("effect", "share"))
    pairs = grid.tables["pairs"].set_index("pair")
    s = signal.score([(p, r) for p, a, b in PAIRS for r in (a, b)]).value.values
    np.testing.assert_allclose(pairs["margin"], s[::2] - s[1::2], atol=1e-5)
    np.testing.assert_allclose(share * pairs["margin"].to_numpy()[:, None], effect, atol=1e-12)
    table = grid.tables["components"].set_index(["direction", "component"])
    margins = pairs["margin"].to_numpy()
    for direction in ("noise", "denoise"):
        for name in grid.value["component"].values:
            each = effect.sel(direction=direction, component=name).values
            row = table.loc[direction, name]
            assert row["mean"] == pytest.approx(each.mean())
            assert row["mean_size"] == pytest.approx(np.abs(each).mean())
            signed = (each * np.sign(margins)).sum() / np.abs(margins).sum()
            assert row["share_of_margin"] == pytest.approx(signed)
            assert row["low"] <= row["mean"] <= row["high"]
            assert row["mean_flips"] == 0
    assert list(grid.value["component"].values) == all_writes(signal)


def test_the_record_says_what_was_done(signal):
    grid = patch_grid(signal, PAIRS, direction="noise")
    assert grid.tier is Tier.CAUSAL
    assert dict(grid.quantity_units) == {"effect": Units.REWARD, "share": Units.SHARE}
    assert grid.subject.interventions == (
        "each component at final: chosen side takes the rejected side's activation",
    )
    assert grid.provenance.parameters["positions"] == "final"
    again = Evidence.from_dict(grid.to_dict())
    assert again.id == grid.id
    assert patch_grid(signal, PAIRS, direction="noise").value.equals(grid.value)


def test_directions_are_what_both_has(signal):
    both = patch_grid(signal, PAIRS)
    for direction in ("noise", "denoise"):
        one = patch_grid(signal, PAIRS, direction=direction)
        assert list(one.value["direction"].values) == [direction]
        np.testing.assert_allclose(
            one.value.sel(direction=direction), both.value.sel(direction=direction), atol=1e-5
        )


def test_layers_and_components_restrict(signal):
    whole = patch_grid(signal, PAIRS)
    part = patch_grid(signal, PAIRS, layers=[1])
    assert list(part.value["component"].values) == ["L1.attn_out", "L1.mlp_out"]
    np.testing.assert_allclose(
        part.value, whole.value.sel(component=part.value["component"]), atol=1e-5
    )
    one = patch_grid(signal, PAIRS, by="head", components=["L2.H3", "L0.H0"])
    assert list(one.value["component"].values) == ["L0.H0", "L2.H3"]


def test_untouched_tokens_are_counted(signal):
    table = patch_grid(signal, PAIRS, positions="aligned", layers=[0]).tables["pairs"]
    for side in ("chosen", "rejected"):
        total = table[f"patched_{side}"] + table[f"untouched_{side}"]
        assert (total == table[f"tokens_{side}"]).all()
    assert (table["patched_chosen"] == table["patched_rejected"]).all()
    assert (table["untouched_chosen"] > 0).any()
    assert (table["shared_prefix"] >= len("User: Say hi.\nAssistant: ")).all()
    assert (table["shared_prefix"] <= table["patched_same_id"]).all()


def test_sides_with_nothing_aligned_have_no_effect_and_are_counted(signal):
    pairs = [{"input_ids_chosen": [1, 2], "input_ids_rejected": [3, 4, 5]}, EQUAL[0]]
    grid = patch_grid(signal, pairs, positions="aligned")
    assert grid.value.isel(pair=0).isnull().all()
    assert grid.value.isel(pair=1).notnull().all()
    assert (grid.tables["components"]["pairs"] == 1).all()
    nothing = patch_grid(signal, pairs[:1], positions="aligned").tables["components"]
    assert (nothing["pairs"] == 0).all()
    assert nothing["mean"].isna().all()
    assert set(nothing["note"]) == {"no pair has these tokens"}


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_layers_and_positions_one_at_a_time(signals, family):
    """Each cell is the joint patch of its one token; cells of the shared beginning are 0."""
    signal = signals[family]
    grid = patch_grid(signal, EQUAL, by="layer_position", positions="all")
    effect = grid.value.sel(quantity="effect")
    assert dict(effect.sizes) == {"direction": 2, "pair": 2, "layer": 3, "position": 6}
    assert effect.isel(pair=1, position=slice(3, None)).isnull().all()
    assert (effect.isel(pair=0, position=slice(0, 2)) == 0).all()
    slow = patch_grid(signal, EQUAL, by="layer_position", positions="all", executor=FULL)
    tolerance = 1e-5 * float(np.abs(effect).max())
    np.testing.assert_allclose(slow.value.sel(quantity="effect"), effect, atol=tolerance)
    assert grid.tables["engine"]["runs_not_needed"][0] == 2 * 3 * 2
    found, clean = joint(signal, EQUAL[:1], ["L1.resid_pre"], (2, 3))
    noise, denoise = effect.isel(pair=0).sel(layer=1, position=2).values
    assert noise == pytest.approx(clean[0, 0] - found[0, 0], abs=tolerance)
    assert denoise == pytest.approx(found[1, 0] - clean[1, 0], abs=tolerance)


def test_a_span_keeps_its_own_labels(signal):
    grid = patch_grid(signal, EQUAL, by="layer_position", positions=(-2, None))
    assert list(grid.value["position"].values) == [-2, -1]
    whole = patch_grid(signal, EQUAL, by="layer_position", positions="all").value
    last = grid.value.sel(position=-1)
    np.testing.assert_allclose(last.isel(pair=0), whole.isel(pair=0, position=5), atol=1e-5)
    np.testing.assert_allclose(last.isel(pair=1), whole.isel(pair=1, position=2), atol=1e-5)


@pytest.mark.parametrize("by", ["component", "head"])
@pytest.mark.parametrize("executor", [None, FULL])
def test_identical_sides_have_no_effect_and_no_share(signal, by, executor):
    pairs = [("one", "the same", "the same"), PAIRS[0]]
    for positions in ("final", "aligned"):
        grid = patch_grid(signal, pairs, by=by, positions=positions, executor=executor)
        effect, share = (grid.value.sel(quantity=q) for q in ("effect", "share"))
        assert (effect.isel(pair=0) == 0).all()
        assert share.isel(pair=0).isnull().all()
        assert share.isel(pair=1).notnull().all()
        assert list(grid.tables["pairs"]["degenerate"]) == [True, False]
        assert list(grid.tables["components"]["pairs"].unique()) == [2]


def test_only_identical_sides(signal):
    grid = patch_grid(signal, [("one", "the same", "the same")])
    assert grid.tables["components"]["share_of_margin"].isna().all()
    assert grid.tables["engine"]["executor"][0] == "none"


def test_items_of_one_token(signal):
    pairs = [{"input_ids_chosen": [1], "input_ids_rejected": [2]}]
    for positions in ("final", "aligned", "all", 0):
        grid = patch_grid(signal, pairs, positions=positions, components=["embed"])
        margin = float(grid.tables["pairs"]["margin"][0])
        np.testing.assert_allclose(grid.value.sel(quantity="effect"), margin, atol=2e-6)


def test_tokens_after_the_read_one_change_nothing(signal):
    grid = patch_grid(signal, EQUAL[1:], by="layer_position", positions="all", position="first")
    effect = grid.value.sel(quantity="effect").isel(pair=0)
    assert (effect.isel(position=slice(1, None)) == 0).all()
    margin = float(grid.tables["pairs"]["margin"][0])
    np.testing.assert_allclose(effect.isel(position=0), margin, atol=1e-5)


def test_expert_choices_that_change_are_counted(signals):
    mixed = patch_grid(signals["mixtral"], PAIRS, components=["embed", "L2.mlp_out"])
    table = mixed.tables["components"].set_index(["direction", "component"])["mean_flips"]
    assert table["noise", "embed"] > 0
    assert table["noise", "L2.mlp_out"] == 0  # nothing is chosen after the last MLP
    slow = patch_grid(signals["mixtral"], PAIRS, components=["embed"], executor=FULL)
    counts = slow.tables["components"]["mean_flips"].tolist()
    assert counts == [table["noise", "embed"], table["denoise", "embed"]]


# Wrong use, and heads that read a mean


def test_no_pairs(signal):
    with pytest.raises(DataError, match="there are no pairs"):
        patch_grid(signal, [])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"by": "neuron"}, CapabilityError, "by='neuron': choose one of component, head"),
        ({"direction": "up"}, CapabilityError, "choose 'both', 'noise' or 'denoise'"),
        ({"site": "attn_raw", "by": "layer_position"}, CapabilityError, "choose one of resid_pre"),
        ({"ablation": "knockout"}, CapabilityError, "choose one of zero, mean, resample"),
        ({"ablation": "zero", "direction": "noise"}, CapabilityError, "leave direction out"),
        ({"reference": [("a", "b")]}, CapabilityError, "ablation='mean' or 'resample'"),
        ({"executor": "magic"}, CapabilityError, "executor='magic'"),
        ({"layers": [3]}, AnatomyError, "layer 3 does not exist: this model has layers 0 to 2"),
        ({"layers": []}, CapabilityError, "nothing is left to patch"),
        ({"components": ["L9.mlp_out"]}, AnatomyError, "'L9.mlp_out' is no part .* L2.mlp_out"),
        ({"by": "head", "components": "L0.H4"}, AnatomyError, "'L0.H4' is no part .*L0.H3"),
        ({"positions": "all"}, DataError, "needs sides of equal length"),
        ({"positions": (0, 500)}, DataError, "reaches beyond them"),
    ],
)
def test_wrong_options_say_what_to_do(signal, options, error, message):
    with pytest.raises(error, match=message):
        patch_grid(signal, PAIRS, **options)


def test_what_did_not_verify_is_refused_with_its_reason():
    signal = make_signal("llama")
    anatomy = signal.trunk.anatomy
    block = anatomy.blocks[1]
    headless = replace(block, attn=replace(block.attn, heads=None))
    missing = {"L1.head": "the channels of this layer mix"}
    signal.trunk.anatomy = replace(
        anatomy, blocks=(anatomy.blocks[0], headless, anatomy.blocks[2]), missing=missing
    )
    with pytest.raises(AnatomyError, match=r"L1\.head_in .* the channels of this layer mix"):
        patch_grid(signal, PAIRS, by="head")
    assert patch_grid(signal, PAIRS, by="head", layers=[0, 2]).value.notnull().all()
    signal.trunk.anatomy = replace(anatomy, blocks=())
    with pytest.raises(CapabilityError, match="patch_grid needs ACTIVATIONS"):
        patch_grid(signal, PAIRS)


def test_a_head_that_reads_a_mean_is_patched_at_other_positions(signal):
    with pytest.raises(CapabilityError, match="there is no one token .* positions='aligned'"):
        patch_grid(signal, PAIRS, position="mean")
    grid = patch_grid(signal, EQUAL, position="mean", positions="all", components=["embed"])
    margin = grid.tables["pairs"]["margin"].to_numpy()
    np.testing.assert_allclose(
        grid.value.sel(quantity="effect", component="embed"), [margin, margin], atol=1e-5
    )
