"""Concept dose-response, where the right curve is known by hand."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
import zoo
from families import FAMILIES, PAIRS, VOCAB, make_model, make_signal, make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

import reward_lens as rl
from reward_lens.backbone import Site
from reward_lens.data import Pairs
from reward_lens.errors import AnatomyError, CapabilityError, DataError
from reward_lens.evidence import Evidence, GaugeStatus, Tier, Units
from reward_lens.instruments.concepts import fit_concept
from reward_lens.instruments.dose_curves import (
    BEND,
    linear_range,
    mirrored,
    random_band,
    random_units,
    slopes,
    within,
)
from reward_lens.instruments.dose_response import DOSES, concept_dose_response

# The concepts here are fitted to a handful of texts: their doubt is tested on its own, below.
pytestmark = pytest.mark.filterwarnings("ignore:the direction was fitted to")

WIDTH = 32
LOUD = 1e4  # one channel so loud that nothing moves the norm's scale: the network is linear
SIDES = [(p, r) for k in (1, 2) for p, r in ((x[0], x[k]) for x in PAIRS)]


@cache
def signal_of(family):
    return make_signal(family)


@pytest.fixture(scope="module")
def signal():
    return signal_of("llama")


@pytest.fixture(scope="module")
def linear():
    """Blocks that write nothing, a norm whose scale stands still, a head w: score = w · state."""
    model = make_model("llama", num_hidden_layers=2)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.o_proj.weight.zero_()
            block.mlp.down_proj.weight.zero_()
        embedding = torch.randn(VOCAB, WIDTH, generator=generator)
        embedding[:, 0] = LOUD
        model.model.embed_tokens.weight.copy_(embedding)
        model.model.norm.weight.fill_(LOUD / math.sqrt(WIDTH))
        head = torch.randn(WIDTH, generator=generator)
        head[0] = 0.0
        model.score.weight.copy_(head[None])
    made = rl.wrap_hf_model(model, make_tokenizer(), conformance_quickcheck=False)
    return made, head.double().numpy(), embedding.double().numpy()


def quiet(vector):
    """The same direction without a part in the loud channel."""
    out = np.array(vector, dtype=float)
    out[0] = 0.0
    return out


def last_states(signal, items=SIDES):
    site = f"L{signal.meta.n_layers - 1}.resid_post"
    return signal.capture(items, [site])[site].double().numpy()


# At the last layer the whole curve is arithmetic: the norm and the head at state + dose · vector.


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_layer_is_norm_and_head_of_the_moved_state(family):
    signal = signal_of(family)
    vector = np.random.default_rng(1).standard_normal(WIDTH)
    vector *= np.linalg.norm(last_states(signal), axis=1).mean() / 4 / np.linalg.norm(vector)
    found = concept_dose_response(signal, PAIRS, vector, directions=0)
    readout = signal.readout("reward")
    for dose in DOSES:
        moved = torch.as_tensor(last_states(signal) + dose * vector, dtype=torch.float32)
        expected = readout.project(moved).numpy()
        np.testing.assert_allclose(found.value.sel(dose=dose), expected, rtol=1e-4, atol=1e-4)


def test_the_norm_by_hand(signal):
    """RMSNorm in numpy, and its derivative: (g∘w)/r − x (x·g∘w)/(n r³)."""
    model, states = signal.trunk.model, last_states(signal)
    gain = model.model.norm.weight.double().detach().numpy()
    u = gain * model.score.weight[0].double().detach().numpy()
    eps = model.model.norm.variance_epsilon
    vector = 0.02 * np.random.default_rng(2).standard_normal(WIDTH)

    def score(x):
        return (x @ u) / np.sqrt((x * x).mean(-1) + eps)

    found = concept_dose_response(signal, PAIRS, vector, doses=(-1, 2), directions=0)
    assert list(found.value.dose.values) == [-1, 0, 2]  # 0 is added
    for dose in (-1, 0, 2):
        np.testing.assert_allclose(
            found.value.sel(dose=dose), score(states + dose * vector), atol=2e-5
        )
    r = np.sqrt((states * states).mean(1) + eps)[:, None]
    gradients = u / r - states * (states @ u)[:, None] / (WIDTH * r**3)
    table = found.tables["slope"].set_index("group")
    assert table.loc["all", "predicted"] == pytest.approx((gradients @ vector).mean(), rel=1e-5)
    assert table.loc["side=chosen", "predicted"] == pytest.approx(
        (gradients[:4] @ vector).mean(), rel=1e-5
    )
    unit = vector / np.linalg.norm(vector)
    effective = gradients.mean(0)
    concept = found.tables["concept"].iloc[0]
    assert concept["cosine"] == pytest.approx(effective @ unit / np.linalg.norm(effective))
    each = gradients @ unit / np.linalg.norm(gradients, axis=1)
    assert concept["cosine_item_mean"] == pytest.approx(each.mean(), rel=1e-5)
    assert concept["cosine_item_sd"] == pytest.approx(each.std(ddof=1), rel=1e-4)
    size = np.median(np.linalg.norm(states, axis=1))
    assert concept["step_of_state"] == pytest.approx(np.linalg.norm(vector) / size, rel=1e-5)


def test_the_heads_own_direction_raises_every_score_at_every_dose(signal):
    """u·(x + d·u)/rms(x + d·u) rises in d by the Cauchy–Schwarz inequality, and saturates."""
    model = signal.trunk.model
    u = (model.model.norm.weight * model.score.weight[0]).double().detach().numpy()
    vector = u * 0.1 / np.linalg.norm(u)
    found = concept_dose_response(signal, PAIRS, vector)
    assert (np.diff(found.value.values, axis=0) > 0).all()
    assert found.interval("slope").low > 0
    assert found.tables["band"]["outside"].all()
    assert found.tables["concept"]["linear_range"].iloc[0] < 2  # it saturates


# A linear network: one slope, known on paper, for every item and any dose.


@pytest.mark.parametrize(
    ("layer", "positions"), [(1, "final"), (0, "final"), (0, "all"), (None, "final")]
)
def test_a_linear_network_has_one_slope(linear, layer, positions):
    signal, head, embedding = linear
    vector = quiet(np.random.default_rng(0).standard_normal(WIDTH))
    found = concept_dose_response(
        signal, PAIRS, vector, layer=layer, positions=positions, doses=(-3, -1, 0.5, 4)
    )
    last = [int(e.ids[-1]) for e in signal.encode(SIDES)]
    clean = embedding[last] @ head
    for dose in found.value.dose.values:
        np.testing.assert_allclose(
            found.value.sel(dose=dose), clean + dose * (head @ vector), atol=2e-3
        )
    slope = found.interval("slope")
    assert slope.estimate == pytest.approx(head @ vector, rel=1e-4)
    assert slope.high - slope.low < 1e-3
    row = found.tables["concept"].iloc[0]
    assert row["linear_range"] == 4
    assert row["cosine"] == pytest.approx(
        head @ vector / np.linalg.norm(head) / np.linalg.norm(vector), abs=1e-5
    )
    assert row["cosine_item_sd"] < 1e-5
    assert found.tables["slope"]["predicted"].to_numpy() == pytest.approx(head @ vector, rel=1e-4)
    # Random directions: each slope is its product with the head.
    drawn = found.tables["random"]
    size = np.linalg.norm(vector) * np.linalg.norm(head)
    np.testing.assert_allclose(drawn["slope"], drawn["cosine"] * size, atol=5e-3)


def test_a_planted_concept_and_shuffled_labels(linear):
    """Texts whose last token lies along the head, or against it; then the labels are shuffled."""
    signal, head, embedding = linear
    order = np.argsort(embedding[:256] @ head)
    low, high = order[:40], order[-40:]
    items = [{"ids": [65, int(t)]} for t in (*high, *low)]
    planted = np.arange(80) < 40
    labelled = [({**i}, bool(p)) for i, p in zip(items, planted, strict=True)]
    found = concept_dose_response(signal, PAIRS, labelled)
    row = found.tables["concept"].iloc[0]
    assert row["accuracy"] == 1
    assert row["auc"] == 1
    assert row["cosine"] > 0.8
    assert found.tables["band"]["outside"].iloc[0]
    # Dose 1 is the whole way from one mean to the other.
    gap = (embedding[high] @ head).mean() - (embedding[low] @ head).mean()
    assert found.interval("slope").estimate == pytest.approx(gap, rel=1e-3)

    some = [{"ids": [65, int(t)]} for t in range(0, 256, 2)]
    rng, outside = np.random.default_rng(0), 0
    for _ in range(12):
        shuffled = list(zip(some, (rng.permutation(128) < 64).tolist(), strict=True))
        null = concept_dose_response(signal, PAIRS, shuffled, doses=(-1, 1), sample=2)
        outside += int(null.tables["band"]["outside"].iloc[0])
    assert outside <= 2  # 0.6 expected


# Everywhere else: the tangent is the derivative, and the engine is the full forward.


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "mixtral"])
@pytest.mark.parametrize("positions", ["final", "response", "all"])
def test_small_doses_follow_the_gradient(family, positions):
    signal = signal_of(family)
    concept = fit_concept(signal, PAIRS, "L0.resid_post")
    found = concept_dose_response(
        signal, PAIRS, concept, positions=positions, doses=(-0.005, 0.005), directions=0
    )
    table = found.tables["slope"]
    scale = np.abs(table["predicted"]).max()
    np.testing.assert_allclose(table["slope"], table["predicted"], atol=5e-3 * scale + 5e-4)


@pytest.mark.parametrize(
    ("name", "positions"),
    [("bert", "final"), ("modernbert, mean", "all"), ("openai-gpt", "final"), ("bloom", "final")],
)
def test_the_last_layer_of_other_heads_follows_its_gradient(name, positions):
    """A head with a tanh that reads the first token, a mean of outputs, no final norm, ALiBi."""
    signal = rl.wrap_hf_model(zoo.make(name), zoo.tokenizer_for(name))
    pairs = PAIRS[:2] + PAIRS[3:]  # no emoji: not every tokenizer has it
    found = concept_dose_response(
        signal, pairs, pairs, positions=positions, doses=(-0.01, 0.01), directions=0
    )
    table = found.tables["slope"]
    scale = np.abs(table["predicted"]).max()
    assert scale > 0
    np.testing.assert_allclose(table["slope"], table["predicted"], atol=0.02 * scale)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_cheap_gradient_is_the_signals_own(family):
    signal = signal_of(family)
    vector = np.random.default_rng(0).standard_normal(WIDTH)
    found = concept_dose_response(signal, PAIRS, vector, directions=0, doses=(1,))
    gradients = signal.gradient(SIDES, f"L{signal.meta.n_layers - 1}.resid_post")
    expected = [float(g[-1].double().numpy() @ vector) for g in gradients]
    assert found.tables["slope"]["predicted"].iloc[0] == pytest.approx(np.mean(expected), rel=1e-4)


def test_experts_that_change_are_counted_at_the_dose_where_they_do():
    signal = signal_of("mixtral")
    concept = fit_concept(signal, PAIRS, "L0.resid_post")
    found = concept_dose_response(signal, PAIRS, concept, doses=(-0.02, 0.02, 1, 20))
    flips = found.tables["curve"].set_index("dose")["router_flips"]
    curve = found.tables["curve"].set_index("dose")
    for dose in (-0.02, 0.02):  # before any flip the tangent holds
        assert curve.loc[dose, "change"] == pytest.approx(curve.loc[dose, "predicted"], rel=0.02)
    assert flips[0.0] == flips[0.02] == 0
    assert flips[20.0] > flips[1.0] >= 0
    assert found.tables["engine"]["router_flips"].iloc[0] > flips.sum()  # random ones too


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("layer", "site", "positions"),
    [(0, "resid_post", "final"), (1, "resid_pre", "all"), (2, "resid_post", "final")],
)
def test_the_engine_is_the_full_forward(family, layer, site, positions):
    signal = signal_of(family)

    def run(executor):
        return concept_dose_response(
            signal, PAIRS[:2], PAIRS, layer=layer, site=site, positions=positions,
            directions=3, doses=(-2, 1), executor=executor,
        )  # fmt: skip

    fast, slow = run(None), run("full forward")
    assert slow.tables["engine"]["executor"].iloc[0] == "full forward"
    effect = np.abs(slow.value - slow.value.sel(dose=0)).max()
    assert float(np.abs(fast.value - slow.value).max()) <= 1e-5 * float(effect) + 2e-6
    np.testing.assert_allclose(
        fast.tables["random"]["slope"], slow.tables["random"]["slope"], atol=1e-5 * float(effect)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_dose_zero_is_the_clean_score(family):
    signal = signal_of(family)
    found = concept_dose_response(signal, PAIRS, PAIRS, layer=1, directions=0)
    clean = signal.score(SIDES).value.values
    spread = clean.max() - clean.min()
    np.testing.assert_allclose(found.value.sel(dose=0), clean, atol=1e-5 * spread)
    assert found.tables["engine"]["dose_zero_error"].iloc[0] <= 1e-5 * spread


def test_a_direction_added_where_the_head_reads_a_mean():
    """Shifting every token shifts the mean: at the last layer all is arithmetic again."""
    signal = signal_of("llama")
    vector = np.full(WIDTH, 0.01)
    found = concept_dose_response(
        signal, PAIRS, vector, positions="all", position="mean", directions=0, doses=(-1, 1)
    )
    site = Site("resid_post", 2)
    every = signal.capture(SIDES, [site], position="all")[str(site)]
    norm, w = signal.trunk.model.model.norm, signal.trunk.model.score.weight[0]
    for dose in (-1, 0, 1):
        with torch.no_grad():
            expected = [float((norm(s + dose * 0.01).mean(0) * w).sum()) for s in every]
        np.testing.assert_allclose(found.value.sel(dose=dose), expected, atol=2e-5)
    slope = found.tables["slope"].iloc[0]
    assert slope["slope"] == pytest.approx(slope["predicted"], rel=0.1)
    with pytest.raises(CapabilityError, match="no one token that it reads"):
        concept_dose_response(signal, PAIRS, vector, position="mean")


def test_what_the_evidence_says_of_itself(signal):
    found = concept_dose_response(signal, PAIRS, PAIRS, seed=5)
    assert found.value.dims == ("dose", "item")
    assert found.value.name == "score"
    assert found.value["item"].values[0] == "row-0.chosen"
    assert list(found.value.side.values) == ["chosen"] * 4 + ["rejected"] * 4
    assert found.value.pair.values[4] == found.value.pair.values[0]
    assert (found.tier, found.gauge) == (Tier.CAUSAL, GaugeStatus.RAW_ONLY)
    assert found.units is Units.REWARD
    assert found.provenance.seeds == (5,)
    assert "added to L2.resid_post at final tokens" in found.subject.interventions[0]
    assert found.provenance.cost_forwards == 8 + 8  # steered and labelled items
    assert set(found.tables) == {"slope", "curve", "concept", "engine", "random", "band"}
    assert list(found.tables["curve"]["dose"]) == list(DOSES)
    assert Evidence.from_dict(found.to_dict()) == found
    assert found == concept_dose_response(signal, PAIRS, PAIRS, seed=5)
    other = concept_dose_response(signal, PAIRS, PAIRS, seed=6)
    np.testing.assert_array_equal(other.value, found.value)
    assert (other.tables["random"]["slope"] != found.tables["random"]["slope"]).all()


def test_the_last_layer_costs_no_forward_beside_the_clean_one(signal):
    vector = np.ones(WIDTH) * 0.01
    found = concept_dose_response(signal, PAIRS, vector)
    assert found.provenance.cost_forwards == 8
    early = concept_dose_response(signal, PAIRS, vector, layer=0, directions=0)
    assert early.provenance.cost_forwards > 8


def test_slopes_of_sides_and_subsets_are_means_of_item_slopes(signal):
    pairs = [
        {"prompt": p, "chosen": a, "rejected": b, "subset": "ab"[k % 2]}
        for k, (p, a, b) in enumerate(PAIRS)
    ]
    found = concept_dose_response(signal, pairs, PAIRS, layer=1, directions=0)
    reach = found.tables["concept"]["linear_range"].iloc[0]
    v = found.value.where(np.abs(found.value.dose) <= (reach or 0.5), drop=True)
    each = np.polyfit(v.dose, v.values, 1)[0]
    expected = {
        "all": each.mean(), "side=chosen": each[:4].mean(), "side=rejected": each[4:].mean(),
        "subset=a": each[[0, 2, 4, 6]].mean(), "subset=b": each[[1, 3, 5, 7]].mean(),
    }  # fmt: skip
    table = found.tables["slope"].set_index("group")["slope"]
    assert table.to_dict() == pytest.approx(expected)
    assert found.interval("slope[subset=b]").estimate == pytest.approx(expected["subset=b"])
    curve = found.tables["curve"].set_index("dose")
    change = found.value - found.value.sel(dose=0)
    np.testing.assert_allclose(curve["change"], change.mean("item"), atol=1e-12)
    np.testing.assert_allclose(curve["score"], found.value.mean("item"), atol=1e-12)


def test_one_pair_has_a_slope_and_no_interval(signal):
    found = concept_dose_response(signal, PAIRS[:1], PAIRS)
    slope = found.interval("slope")
    assert np.isfinite(slope.estimate)
    assert np.isnan(slope.low)
    assert "one lineage" in slope.note


def test_random_directions_are_run_on_the_sample_alone(signal):
    found = concept_dose_response(signal, PAIRS, PAIRS, directions=4, sample=3, doses=(-1, 1, 2))
    assert found.tables["band"]["items"].iloc[0] == 3
    assert found.tables["engine"]["runs"].iloc[0] == 8 * 4 + 3 * 4 * 3
    whole = concept_dose_response(signal, PAIRS, PAIRS, directions=4, sample=None)
    assert whole.tables["band"]["items"].iloc[0] == 8
    curve = whole.tables["curve"]
    np.testing.assert_allclose(curve["change_on_sample"], curve["change"])
    zero = curve[curve["dose"] == 0].iloc[0]
    assert (zero["change"], zero["band_low"], zero["band_high"]) == (0, 0, 0)
    none = concept_dose_response(signal, PAIRS, PAIRS, directions=0)
    assert "band" not in none.tables
    assert "band_low" not in none.tables["curve"]


def test_a_fitted_concept_brings_its_site(signal):
    concept = fit_concept(signal, PAIRS, "L1.resid_pre")
    found = concept_dose_response(signal, PAIRS, concept, directions=0)
    assert found.tables["concept"]["site"].iloc[0] == "L1.resid_pre"
    again = concept_dose_response(signal, PAIRS, PAIRS, layer=1, site="resid_pre", directions=0)
    np.testing.assert_allclose(found.value, again.value, atol=1e-6)
    with pytest.raises(DataError, match=r"fitted at L1.resid_pre and is to be added at L2"):
        concept_dose_response(signal, PAIRS, concept, layer=2)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"site": "attn_out"}, CapabilityError, "choose one of resid_pre, resid_mid, resid_post"),
        ({"site": "resid_post", "layer": 3}, AnatomyError, "layers 0 to 2"),
        ({"layer": -1}, DataError, "layer=-1: give a whole number, 0 or more"),
        ({"positions": "prompt"}, CapabilityError, "choose one of final, response, all"),
        ({"positions": "all"}, CapabilityError, "behind the last layer nothing reads"),
        ({"method": "pca"}, CapabilityError, "mean_difference, logistic"),
        ({"doses": ()}, DataError, "at least one of them not 0"),
        ({"doses": (0,)}, DataError, "at least one of them not 0"),
        ({"doses": (1, 1)}, DataError, "given twice"),
        ({"doses": (1, math.nan)}, DataError, "finite"),
        ({"doses": ("much",)}, DataError, "list of numbers"),
        ({"directions": 1}, DataError, "at least two"),
        ({"directions": -2}, DataError, "at least two"),
        ({"sample": -1}, DataError, "None for all items"),
        ({"sample": 0}, DataError, "None for all items"),
        ({"executor": "magic"}, CapabilityError, "full forward"),
    ],
    ids=lambda x: str(x) if isinstance(x, dict) else None,
)
def test_wrong_options_are_refused(signal, options, error, words):
    with pytest.raises(error, match=words):
        concept_dose_response(signal, PAIRS, PAIRS, **options)


def test_wrong_data_is_refused(signal):
    ids = [{"input_ids_chosen": [65, 66], "input_ids_rejected": [65, 67]}]
    with pytest.raises(
        DataError, match=r"pair 'row-0', the chosen side: it is not known which tokens"
    ):
        concept_dose_response(signal, ids, PAIRS, layer=0, positions="response")
    with pytest.raises(DataError, match="no pairs"):
        concept_dose_response(signal, [], PAIRS)
    same = [(p, a, a) for p, a, _ in PAIRS]
    with pytest.raises(ArithmeticError, match="same mean state"):
        concept_dose_response(signal, PAIRS, same)
    # Identical sides are no trouble for the steered pairs: every item has its own slope.
    found = concept_dose_response(signal, same, PAIRS, directions=0)
    np.testing.assert_array_equal(found.value[:, :4], found.value[:, 4:])


def test_bfloat16_runs_and_says_its_rounding():
    model = make_model("llama", dtype=torch.bfloat16)
    signal = rl.wrap_hf_model(model, make_tokenizer())
    exact = concept_dose_response(signal_of("llama"), PAIRS, PAIRS, directions=0)
    found = concept_dose_response(signal, PAIRS, PAIRS, directions=0)
    slope, near = found.interval("slope").estimate, exact.interval("slope").estimate
    assert slope == pytest.approx(near, abs=0.5 * abs(near))
    predicted = found.tables["slope"]["predicted"].iloc[0]
    assert predicted == pytest.approx(slope, abs=0.3 * abs(slope))
    assert found.tables["engine"]["dose_zero_error"].iloc[0] >= 0


def test_pairs_are_streamed_in_any_batch(signal):
    many = Pairs(rl.load_pairs(PAIRS))
    small = concept_dose_response(signal, many, PAIRS, layer=0, batch_tokens=64)
    large = concept_dose_response(signal, many, PAIRS, layer=0)
    np.testing.assert_allclose(small.value, large.value, atol=2e-5)
    told: list[int] = []
    concept_dose_response(signal, many, PAIRS, directions=0, progress=told.append)
    assert sum(told) == 8


# The arithmetic of curves.


@given(st.floats(-5, 5), st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_a_straight_curve_is_straight_all_the_way(tangent, seed):
    doses = np.unique(np.random.default_rng(seed).normal(size=7))
    assert linear_range(doses, tangent * doses, tangent) == np.abs(doses).max()
    np.testing.assert_allclose(slopes(doses, tangent * doses + 3), tangent, atol=1e-9)


def test_the_range_ends_where_the_bend_is_a_tenth():
    """change = d + c·d²: at the end of a range D the departure is c·D of the tangent's D."""
    doses = np.array(DOSES)
    for bend, expected in ((0.049, 2.0), (0.051, 1.5), (0.099, 1.0), (0.19, 0.5), (0.21, 0.0)):
        assert linear_range(doses, doses + bend * doses**2, 1.0) == expected
    assert pytest.approx(0.1) == BEND
    assert linear_range(doses, doses, 0.0) == 0
    assert linear_range(doses, 0 * doses, 0.0) == 2
    np.testing.assert_array_equal(doses[within(doses, 1.0)], [-1, -0.5, 0, 0.5, 1])
    np.testing.assert_array_equal(doses[within(doses, 0.0)], [-0.5, 0, 0.5])


def test_slopes_are_those_of_polyfit():
    rng = np.random.default_rng(0)
    doses, scores = np.sort(rng.normal(size=6)), rng.normal(size=(6, 3, 2))
    expected = np.polyfit(doses, scores.reshape(6, -1), 1)[0].reshape(3, 2)
    np.testing.assert_allclose(slopes(doses, scores), expected)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("count", [3, 20])
def test_the_band_holds_one_more_random_direction_95_times_in_100(known, count):
    """Products of random unit vectors with a fixed one, as slopes on a linear network are."""
    rng = np.random.default_rng(4)
    fixed = rng.standard_normal(64)
    inside = []
    for _ in range(3000):
        drawn = random_units(count + 1, 64, rng) @ fixed
        band = random_band(drawn[:-1], -drawn[:-1] if known else None)
        inside.append(band.low <= drawn[-1] <= band.high)
    assert np.mean(inside) == pytest.approx(0.95, abs=0.012)


def test_random_directions_are_of_unit_length_and_follow_the_seed():
    one, other = (random_units(5, 9, np.random.default_rng(s)) for s in (0, 0))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1)
    assert mirrored(np.array(DOSES))
    assert not mirrored(np.array([-1.0, 0, 2]))


def test_a_concept_that_cannot_be_told_from_chance_is_warned_of():
    signal = make_signal("llama")
    concept = fit_concept(signal, SIDES_OF_CHANCE, "L2.resid_post")
    with pytest.warns(UserWarning, match="8 labelled items and cannot be told from one of chance"):
        found = concept_dose_response(signal, PAIRS, concept, directions=0)
    assert "cannot be told" in found.tables["concept"]["note"][0]
    assert "held as fitted" in found.interval("slope").note
    given = concept_dose_response(signal, PAIRS, concept.direction, directions=0)
    assert "held as fitted" not in given.interval("slope").note


SIDES_OF_CHANCE = ([i for i, _ in zip(SIDES, range(4), strict=False)],
                   [i for i, _ in zip(SIDES[4:], range(4), strict=False)])  # fmt: skip
