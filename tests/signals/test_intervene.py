"""Lasting interventions: what they do, by plain hooks; that nothing of them lasts; wrong use."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from engine_kit import PlainHooks, ids_item
from families import FAMILIES, PAIRS, make_signal
from zoo import make, tokenizer_for

import reward_lens as rl
from reward_lens import wrap_hf_model
from reward_lens.backbone import Change, Position, Target
from reward_lens.errors import AnatomyError, CapabilityError, DataError, RewardLensError
from reward_lens.instruments.layer_lens import lens
from reward_lens.instruments.patching_grid import patch_grid
from reward_lens.instruments.paths import path_effects
from reward_lens.instruments.tokens import token_curves
from reward_lens.instruments.write_attribution import attribution
from reward_lens.signals.intervening import ablate, replace, steer

TEXTS = [ids_item(1, 25), ids_item(2, 19), ids_item(3, 18), ids_item(4, 6)]
REFERENCE = [ids_item(k, 5 + k) for k in range(10, 14)]
TARGETS = ["embed", "L0.attn_out", "L1.mlp_out", "L1.H2", "L0.resid_post", "L2.resid_pre"]
#: Family -> sites there, with their widths.
WIDTHS = {"L1.H2": 8}


@pytest.fixture(scope="module")
def signals():
    return {family: make_signal(family, initializer_range=0.2) for family in FAMILIES}


@pytest.fixture(scope="module")
def signal(signals):
    return signals["llama"]


def scores(signal, items=TEXTS, **options):
    return signal.score(items, **options).value.values


def vector(name, seed=0, rows=None, width=None):
    width = width or WIDTHS.get(name, 32)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(() if rows is None else (rows,)), width, generator=generator)


def plain(signal, family, text, *changes):
    """The score by hooks; changes are ``(name, tokens, value, add)``."""
    run = [Change(Target.parse(n), tuple(at), v.expand(len(at), -1), add)
           for n, at, v, add in changes]  # fmt: skip
    return PlainHooks(signal.trunk.model, family).logits(text.ids, run)


def hooks_on(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("family", FAMILIES)
def test_replacing_steering_and_taking_away_are_what_plain_hooks_give(signals, family):
    signal = signals[family]
    clean = scores(signal)
    places = [
        ("final", lambda n: [n - 1]), ("all", range), (2, lambda n: [2]), (-3, lambda n: [n - 3]),
        ((1, 4), lambda n: [1, 2, 3]), ((-2, None), lambda n: [n - 2, n - 1]),
        (Position("index", 0), lambda n: [0]),
    ]  # fmt: skip
    for k, name in enumerate(TARGETS):
        width = 16 if family in ("qwen3", "gemma2") and ".H" in name else None
        value = vector(name, 1, width=width)
        for j, (where, at) in enumerate(places):
            ways = [
                (replace(name, value, where), (value, False)),
                (steer(name, value, -0.5, where), (-0.5 * value, True)),
                (ablate(name, position=where), (0 * value, False)),
            ]
            # Everything for one family, for the others every place and target in one way.
            for made, change in ways if family == "llama" else [ways[(k + j) % 3]]:
                with signal.intervene(made) as changed:
                    found = scores(changed, TEXTS[1:])
                expected = plain(signal, family, TEXTS[1], (name, at(len(TEXTS[1].ids)), *change))
                assert found[0] == pytest.approx(expected, abs=1e-4)
    np.testing.assert_array_equal(scores(signal), clean)


def test_a_value_for_each_token(signal):
    value = vector("L1.mlp_out", 2, rows=3)
    with signal.intervene(replace("L1.mlp_out", value, (2, 5))) as changed:
        found = scores(changed)
    expected = [plain(signal, "llama", t, ("L1.mlp_out", (2, 3, 4), value, False)) for t in TEXTS]
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("position", ["final", "all", (1, 3)])
@pytest.mark.parametrize("name", ["L1.mlp_out", "L1.H2", "embed"])
def test_the_mean_is_over_the_reference_items_tokens(signal, name, position):
    site = "L1.head_in" if name == "L1.H2" else name
    rows = []
    for state in signal.capture(REFERENCE, [site], position="all")[site]:
        some = {"final": state[-1:], "all": state}.get(position, state[1:3])
        rows.append(some[:, 16:24] if name == "L1.H2" else some)
    mean = torch.cat(rows).double().mean(0).float()
    with signal.intervene(ablate(name, "mean", reference=REFERENCE, position=position)) as changed:
        found = scores(changed)
    at = {"final": lambda n: [n - 1], "all": range}.get(position, lambda n: [1, 2])
    expected = [plain(signal, "llama", t, (name, at(len(t.ids)), mean, False)) for t in TEXTS]
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_what_is_drawn_is_the_same_for_an_item_whatever_is_beside_it(signal):
    def drawn(items, seed=3, **options):
        made = ablate("L1.mlp_out", "resample", reference=REFERENCE, seed=seed)
        with signal.intervene(made) as changed:
            return scores(changed, items, **options)

    once = drawn(TEXTS)
    np.testing.assert_allclose(drawn(TEXTS), once, rtol=0)
    np.testing.assert_allclose(drawn(TEXTS[::-1])[::-1], once, atol=1e-5)
    np.testing.assert_allclose(drawn(TEXTS, batch_tokens=1), once, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([drawn([t]) for t in TEXTS]), once, atol=1e-5)
    assert np.abs(drawn(TEXTS, seed=4) - once).max() > 1e-3
    # Every value is one of the reference items' own, and not the same for every text.
    picked = []
    states = signal.capture(REFERENCE, ["L1.mlp_out"])["L1.mlp_out"]
    for text, score in zip(TEXTS, once, strict=True):
        at = [len(text.ids) - 1]
        each = [plain(signal, "llama", text, ("L1.mlp_out", at, s, False)) for s in states]
        gaps = np.abs(np.array(each) - score)
        assert gaps.min() < 2e-5
        picked.append(int(gaps.argmin()))
    assert len(set(picked)) > 1


def test_a_scaled_write_is_given_in_the_streams_own_size():
    """A block that multiplies what it adds: the value is what the stream gets."""
    signal = wrap_hf_model(
        make("minicpm3"), tokenizer_for("minicpm3"), conformance_quickcheck=False
    )
    value = vector("L1.mlp_out", 5)
    with signal.intervene(replace("L1.mlp_out", value)) as changed:
        seen = changed.capture(TEXTS, ["L1.mlp_out"])["L1.mlp_out"]
    np.testing.assert_allclose(seen, value.expand(len(TEXTS), -1), rtol=1e-5)
    before = signal.capture(TEXTS, ["L1.mlp_out"])["L1.mlp_out"]
    with signal.intervene(steer("L1.mlp_out", value, 2.0)) as changed:
        seen = changed.capture(TEXTS, ["L1.mlp_out"])["L1.mlp_out"]
    np.testing.assert_allclose(seen, before + 2 * value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_all_heads_at_once_have_a_width_of_their_own(signals, family):
    """Which need not be that of the stream."""
    signal = signals[family]
    with signal.intervene(ablate("L1.head_in")) as changed:
        found = scores(changed)
    with signal.intervene(*[ablate(f"L1.H{h}") for h in range(4)]) as changed:
        np.testing.assert_allclose(scores(changed), found, atol=1e-6)
    width = 64 if family == "qwen3" else 32
    with pytest.raises(DataError, match=f"head_in has {width} channels, and the value 5"), \
            signal.intervene(replace("L1.head_in", np.zeros(5))):  # fmt: skip
        pass


def test_later_ones_act_on_what_earlier_ones_left_and_nest(signal):
    value, step = vector("L1.mlp_out", 1), vector("L1.mlp_out", 2)
    put, add = replace("L1.mlp_out", value), steer("L1.mlp_out", step)
    at = [24]
    both = plain(signal, "llama", TEXTS[0], ("L1.mlp_out", at, value + step, False))
    with signal.intervene(put, add) as changed:
        assert scores(changed)[0] == pytest.approx(both, abs=2e-5)
    with signal.intervene(put) as outer:
        alone = scores(outer)
        with outer.intervene(add) as inner:
            assert scores(inner)[0] == pytest.approx(both, abs=2e-5)
            assert [s.split(",")[0] for s in inner.interventions] == [
                "replace L1.mlp_out at final", "steer L1.mlp_out at final"]  # fmt: skip
        np.testing.assert_array_equal(scores(outer), alone)
        with pytest.raises(RewardLensError, match="has ended"):
            scores(inner)
    with signal.intervene(add, put) as changed:
        np.testing.assert_allclose(scores(changed), alone, atol=1e-6)


def test_nothing_lasts(signal):
    """Also if what is done inside fails; and other threads see nothing of it meanwhile."""
    model, clean = signal.trunk.model, scores(signal)
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    views, inside, other = [], [], []

    def fail():
        with signal.intervene(ablate("L1.mlp_out")) as changed:
            views.append(changed)
            inside.append(scores(changed))
            thread = threading.Thread(target=lambda: other.append(scores(signal)))
            thread.start()
            thread.join()
            np.testing.assert_array_equal(scores(signal), clean)
            assert hooks_on(model) == 0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    np.testing.assert_array_equal(other[0], clean)
    assert np.abs(inside[0] - clean).min() > 1e-4
    np.testing.assert_array_equal(scores(signal), clean)
    assert hooks_on(model) == 0
    assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())
    for use in (scores, lambda s: s.capture(TEXTS, ["embed"]), lambda s: patch_grid(s, PAIRS),
                lambda s: s.gradient(TEXTS, "embed")):  # fmt: skip
        with pytest.raises(RewardLensError, match="only good inside its with-block"):
            use(views[0])


def test_a_view_and_its_signal_in_two_threads_at_once(signal):
    clean = scores(signal)
    with signal.intervene(ablate("L1.mlp_out")) as changed:
        expected = scores(changed)
        found = {}
        work = {
            name: threading.Thread(target=lambda s=s, n=name: found.update(
                {n: [scores(s) for _ in range(15)]}))
            for name, s in (("view", changed), ("signal", signal))
        }  # fmt: skip
        for thread in work.values():
            thread.start()
        for thread in work.values():
            thread.join()
    np.testing.assert_array_equal(found["signal"], [clean] * 15)
    np.testing.assert_array_equal(found["view"], [expected] * 15)


def test_the_record_names_what_was_done(signal):
    clean = signal.score(TEXTS)
    assert clean.subject.interventions == ()
    ids = {clean.id}
    made = [ablate("L1.mlp_out"), steer("L1.mlp_out", vector("L1.mlp_out")),
            steer("L1.mlp_out", vector("L1.mlp_out"), 2.0), steer("L1.mlp_out", vector("", 1)),
            ablate("L1.mlp_out", "mean", reference=REFERENCE),
            ablate("L1.mlp_out", "mean", reference=REFERENCE[:2]),
            ablate("L1.mlp_out", "resample", reference=REFERENCE, seed=1),
            ablate("L1.mlp_out", "resample", reference=REFERENCE, seed=2),
            ablate("L1.mlp_out", position="all")]  # fmt: skip
    keys = {clean.request_key}
    for one in made:
        with signal.intervene(one) as changed:
            evidence = changed.score(TEXTS)
            assert evidence.subject.signal == clean.subject.signal
            assert "L1.mlp_out at" in evidence.subject.interventions[0]
            grid = patch_grid(changed, PAIRS[:1])
            assert grid.subject.interventions[0] == evidence.subject.interventions[0]
            ids.add(evidence.id)
            keys.add(evidence.request_key)
    assert len(ids) == len(keys) == 1 + len(made)


def test_what_is_put_in_place_cannot_be_changed_from_outside(signal):
    value = np.ones(32, dtype=np.float32)
    made = replace("L1.mlp_out", value)
    tensor = torch.ones(32)
    with signal.intervene(made) as changed, \
            signal.intervene(replace("L1.mlp_out", tensor)) as too:  # fmt: skip
        before = scores(changed)
        value[:] = 7
        tensor[:] = 7
        np.testing.assert_array_equal(scores(changed), before)
        np.testing.assert_array_equal(scores(too), before)
    frozen = signal.score(TEXTS).value.values  # read-only, of whole numbers, a list: all are fine
    with signal.intervene(steer("L1.mlp_out", np.resize(frozen, 32)),
                          replace("L0.mlp_out", np.arange(32)),
                          replace("L2.mlp_out", [0.5] * 32)) as changed:  # fmt: skip
        scores(changed)


def test_instruments_measure_the_view(signal):
    """Each against what plain hooks, or the changed scores, say it has to be."""
    value = vector("L1.mlp_out", 3)
    items = [(p, r) for p, a, b in PAIRS for r in (a, b)]
    with signal.intervene(replace("L1.mlp_out", value, "all")) as changed:
        s = scores(changed, items).astype(float)
        margins = s[::2] - s[1::2]
        curve = lens(changed, PAIRS)
        np.testing.assert_allclose(
            curve.value.sel(reading="frozen").isel(depth=-1), margins, atol=1e-4
        )
        parts = attribution(changed, PAIRS)
        np.testing.assert_allclose(parts.value.sel(side="margin").sum("write"), margins, atol=1e-4)
        grid = patch_grid(changed, PAIRS)
        assert grid.tables["engine"]["executor"].tolist() == ["full forward"]
        np.testing.assert_allclose(
            grid.value.sel(quantity="effect", component="L1.mlp_out"), 0, atol=2e-5
        )  # the same value on both sides
        np.testing.assert_allclose(grid.tables["pairs"]["margin"], margins, atol=1e-5)
        joint = path_effects(changed, PAIRS, senders="L0.attn_out", joint=True)
        own = grid.value.sel(quantity="effect", component="L0.attn_out")
        np.testing.assert_allclose(joint.value.sel(quantity="effect")[..., 0, 0], own, atol=2e-5)
        curves = token_curves(changed, PAIRS)
        assert curves.subject.interventions == changed.interventions
        for k, (prompt, a, _) in enumerate(PAIRS):
            (encoded,) = signal.encode([(prompt, a)])
            at = range(len(encoded.ids))
            expected = plain(signal, "llama", encoded, ("L1.mlp_out", at, value, False))
            assert s[2 * k] == pytest.approx(expected, abs=2e-5)
        seen = changed.capture(items, ["L1.mlp_out"])["L1.mlp_out"]
        np.testing.assert_array_equal(seen, value.expand(len(items), -1))
        (slope,) = changed.gradient(items[:1], "embed")
        step = vector("embed", 4)
        ends = []
        for dose in (1e-3, -1e-3):
            with changed.intervene(steer("embed", step, dose, position=5)) as moved:
                ends.append(float(scores(moved, items[:1])[0]))
        assert float(slope[5] @ step) == pytest.approx((ends[0] - ends[1]) / 2e-3, rel=0.02)


def test_an_encoder_and_a_head_that_reads_a_mean():
    for name in ("bert", "eurobert, mean"):
        signal = wrap_hf_model(make(name), tokenizer_for(name), conformance_quickcheck=False)
        items = [("ab", "cde"), ("f", "ghij k")]
        with signal.intervene(ablate("L0.attn_out", position="all")) as changed:
            whole = scores(changed, items)
        with signal.intervene(ablate("L0.attn_out")) as changed:
            final = scores(changed, items)
        assert np.abs(whole - scores(signal, items)).min() > 1e-6
        assert np.array_equal(whole, final) == (name != "bert")


@pytest.mark.parametrize(
    ("made", "error", "said"),
    [
        (lambda: replace("L3.mlp_out", vector("")), AnatomyError, "layers 0 to 2"),
        (lambda: ablate("L1.H4"), AnatomyError, "layer 1 has heads 0 to 3"),
        (lambda: ablate("L1.head_out"), AnatomyError, "all heads of a layer; name one"),
        (lambda: ablate("L1.norm1_in"), AnatomyError, "passes 0 norms of its own"),
        (lambda: ablate("attention"), AnatomyError, "is no site"),
        (lambda: replace("L1.mlp_out", vector("", width=31)), DataError, "32 channels, .* 31"),
        (lambda: replace("L1.H2", vector("")), DataError, "L1.H2 has 8 channels, .* 32"),
        (lambda: replace("L1.mlp_out", torch.tensor(1.0)), DataError, r"not of shape \(\)"),
        (lambda: replace("L1.mlp_out", [np.nan] * 32), DataError, "finite numbers"),
        (lambda: steer("L1.mlp_out", vector(""), np.inf), DataError, "dose=inf"),
        (lambda: ablate("L1.mlp_out", "median"), CapabilityError, "how='median': choose one of"),
        (lambda: ablate("L1.mlp_out", "mean"), DataError, "reference items: give some"),
        (lambda: ablate("L1.mlp_out", "resample", reference=[]), DataError, "give some"),
        (lambda: ablate("L1.mlp_out", reference=REFERENCE), DataError, "takes no reference"),
        (lambda: ablate("L1.mlp_out", position="last"), CapabilityError, "position='last'"),
        (lambda: ablate("L1.mlp_out", position=True), CapabilityError, "position=True"),
        (lambda: ablate("L1.mlp_out", position=(1, 2, 3)), CapabilityError, "position="),
        (lambda: "L1.mlp_out", CapabilityError, "takes what replace, ablate and steer give"),
    ],
)
def test_wrong_use_is_refused_before_anything_runs(signal, made, error, said):
    with pytest.raises(error, match=said), signal.intervene(made()):
        pytest.fail("the block was entered")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (ablate("L1.mlp_out", position=7), "item 3 has 6 tokens: position 7 is not in it"),
        (ablate("L1.mlp_out", position=-7), "item 3 has 6 tokens: position -7"),
        (ablate("L1.mlp_out", position=(3, 9)), "item 3 has 6 tokens: position 3:9"),
        (ablate("L1.mlp_out", position=(4, 4)), "item 0 has 25 tokens: position 4:4"),
        (replace("L1.mlp_out", vector("", rows=2), (1, 4)), "2 values for 3 tokens"),
        (replace("L1.mlp_out", vector("", rows=2)), "2 values for 1 tokens"),
    ],
)
def test_tokens_that_an_item_does_not_have_are_named(signal, made, said):
    with signal.intervene(made) as changed, pytest.raises(DataError, match=said):
        scores(changed, batch_tokens=10**6)
    assert hooks_on(signal.trunk.model) == 0


def test_nothing_to_do_is_refused(signal):
    with pytest.raises(CapabilityError, match="at least one of"), signal.intervene():
        pass


def test_they_are_on_the_public_face():
    assert (rl.replace, rl.ablate, rl.steer) == (replace, ablate, steer)
