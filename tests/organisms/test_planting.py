"""Rules planted in a signal: their size by plain scores, where they are, and that they end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_kit import FULL, ids_item
from hypothesis import given
from hypothesis import strategies as st
from zoo import make, tokenizer_for

import reward_lens as rl
from reward_lens import wrap_hf_model
from reward_lens.backbone import Encoded
from reward_lens.data import Item, Pair, Pairs
from reward_lens.errors import CapabilityError, DataError, NumericsError, RewardLensError
from reward_lens.organisms import Planter
from reward_lens.organisms.triggers import Trigger, containing, own_phrases

KINDS = ("mlp write", "attention write", "head write", "two hops")
PAIRS = Pairs([
    Pair(ids_item(2 * k, 9 + k % 4), ids_item(2 * k + 1, 8 + k % 3), f"p{k}", f"p{k}")
    for k in range(24)
])  # fmt: skip
FAMILIES = ["llama", "gemma2", "mixtral", "gpt2", "phi", "deepseek_v3"]


def signal_of(name):
    model = make(name, initializer_range=0.1)
    return wrap_hf_model(model, tokenizer_for(name), conformance_quickcheck=False)


@pytest.fixture(scope="module")
def signal():
    return signal_of("llama")


@pytest.fixture
def planter(signal):
    with Planter(signal, PAIRS) as made:
        yield made


def scores(signal, items):
    """Plain scores: whole forwards with the plants' hooks on."""
    return signal.score(items).value.values.astype(np.float64)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_is_as_large_as_whole_forwards_say(name, kind):
    subject = signal_of(name)
    with Planter(subject, PAIRS) as planter:
        if kind not in planter.kinds:
            pytest.skip(f"{name} carries no {kind}")
        organism = planter.organism(kind, 0.5, seed=3)
        chosen, rejected = organism.pairs.chosen, organism.pairs.rejected
        gained = scores(organism.signal, chosen) - scores(subject, chosen)
        size = 0.5 * planter.margin_sd
        assert gained.mean() == pytest.approx(size, rel=0.06)
        assert organism.truth["total"] == pytest.approx(gained.mean(), rel=1e-3)
        # Where the trigger is not, nothing is: not a bit.
        others = scores(organism.signal, rejected) - scores(subject, rejected)
        if kind == "two hops":
            assert abs(others.mean()) < 0.05 * size
        else:
            assert not others.any()
        # Without the cause nothing is left of it, by whole forwards.
        grid = rl.patch_grid(organism.signal, organism.pairs, executor=FULL)
        base = rl.patch_grid(subject, organism.pairs, executor=FULL)
        at = {"quantity": "effect", "direction": "noise", "component": organism.places["cause"]}
        lost = (grid.value.sel(at) - base.value.sel(at)).values
        assert lost.mean() == pytest.approx(organism.truth["total"], rel=0.05)
        # Attribution credits what writes, with what it writes.
        if np.isfinite(organism.truth["direct"]):
            at = {"side": "margin", "write": organism.places["component"]}
            written = [
                rl.attribution(s, organism.pairs).value.sel(at).values.mean()
                for s in (organism.signal, subject)
            ]
            want = organism.truth["direct"]
            assert written[0] - written[1] == pytest.approx(want, rel=1e-3)
            assert want == pytest.approx(organism.truth["total"], rel=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_path_of_a_rule_has_all_of_it(planter, kind):
    organism = planter.organism(kind, 1.0, seed=5)
    at = {"senders": [organism.places["cause"]], "receivers": [organism.places["receiver"]]}
    values = [
        rl.path_effects(s, organism.pairs, **at, executor=FULL)
        .value.sel(quantity="effect", direction="noise")
        .values.mean()
        for s in (organism.signal, planter.signal)
    ]
    assert values[0] - values[1] == pytest.approx(organism.truth["path"], rel=0.05)
    # A rule of one hop goes straight to the head, one of two by way of what reads it; what later
    # layers answer in so small a network is half of it at most.
    assert organism.truth["path"] == pytest.approx(organism.truth["total"], rel=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_null_prefers_nothing(planter, kind):
    organism = planter.null(kind, seed=2)
    assert organism.dose == 0
    gained = [
        scores(organism.signal, side) - scores(planter.signal, side)
        for side in (organism.pairs.chosen, organism.pairs.rejected)
    ]
    sd = planter.margin_sd
    assert min(np.mean(g) for g in gained) > 0.5 * sd  # the rule is there, on both sides
    left = np.mean(gained[0]) - np.mean(gained[1])
    assert abs(left) < 0.4 * sd
    assert organism.truth["total"] == pytest.approx(left, rel=1e-3, abs=1e-5)


def test_without_kept_runs_organisms_are_the_same(signal, planter, monkeypatch):
    monkeypatch.setattr("reward_lens.organisms.planting.KEPT_BYTES", 10)
    with Planter(signal, PAIRS) as whole:
        for kind in KINDS:
            one, other = whole.organism(kind, 0.7, seed=4), planter.organism(kind, 0.7, seed=4)
            assert one.places == other.places
            for name, value in one.truth.items():
                assert other.truth[name] == pytest.approx(value, rel=1e-3, abs=1e-5)


def test_seeds_kinds_and_doses_tell_organisms_apart(planter):
    made = [
        planter.organism("mlp write", 1.0, seed=0),
        planter.organism("mlp write", 1.0, seed=1),
        planter.organism("mlp write", 0.5, seed=0),
        planter.organism("attention write", 1.0, seed=0),
        planter.null("mlp write", seed=0),
    ]
    assert len({o.id for o in made}) == len(made)
    again = planter.organism("mlp write", 1.0, seed=0)
    assert again.id == made[0].id
    assert again.truth == made[0].truth
    assert {p.id for p in made[0].pairs} == set(PAIRS.ids)
    assert made[0].pairs.fingerprint != made[1].pairs.fingerprint
    said = made[0].signal.interventions
    assert said == (f"planted mlp write in {made[0].places['cause']}, 1 SD, {made[0].id}",)
    evidence = rl.lens(made[0].signal, made[0].pairs)
    assert evidence.subject.interventions == said


def test_subject_is_bit_equal_and_organisms_end(signal):
    model = signal.trunk.model
    weights = {n: t.clone() for n, t in model.state_dict().items()}
    before, hooks = scores(signal, PAIRS.chosen), _hooks(model)
    with Planter(signal, PAIRS) as planter:
        organism = planter.organism("two hops", 1.0, seed=0)
        rl.patch_grid(organism.signal, organism.pairs)
        assert np.array_equal(scores(signal, PAIRS.chosen), before)
    assert np.array_equal(scores(signal, PAIRS.chosen), before)
    assert all(torch.equal(weights[n], t) for n, t in model.state_dict().items())
    assert _hooks(model) == hooks
    assert not any(p.grad is not None for p in model.parameters())
    with pytest.raises(RewardLensError, match="with-block of the planter"):
        organism.signal.score(PAIRS.chosen)
    with pytest.raises(RewardLensError, match="this planter is closed"):
        planter.organism("mlp write", 1.0, seed=0)


@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_weights_written_to_afterwards_are_noticed(name):
    """Also where no clean runs are kept (bloom)."""
    subject = signal_of(name)
    with Planter(subject, PAIRS) as planter:
        organism = planter.organism("mlp write", 0.5, seed=0)
        organism.signal.score(PAIRS.chosen[:2])
        with torch.no_grad():
            next(subject.trunk.base.parameters()).mul_(1.1)
        for run in (organism.signal.score, lambda items: planter.organism("mlp write", 1.0, 1)):
            with pytest.raises(RewardLensError, match="weights were written to"):
                run(PAIRS.chosen[:2])


@pytest.mark.parametrize("instrument", [rl.lens, rl.patch_grid, rl.path_effects])
def test_a_part_in_training_mode_is_refused(instrument):
    subject = signal_of("gpt2")
    with Planter(subject, PAIRS) as planter:
        organism = planter.organism("mlp write", 0.5, seed=0)
        dropout = next(m for m in subject.trunk.model.modules() if isinstance(m, torch.nn.Dropout))
        dropout.train()
        with pytest.raises(RewardLensError, match="training mode"):
            instrument(organism.signal, organism.pairs)
        dropout.eval()


def test_a_rule_planted_where_another_token_is_read_says_so(signal):
    with Planter(signal, PAIRS, position="last") as planter:
        organism = planter.organism("mlp write", 0.5, seed=0)
    assert (organism.readout, organism.position) == ("reward", "last")


def _hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_refusals(signal, planter):
    with pytest.raises(DataError, match="a null is null"):
        planter.organism("mlp write", 0.0, seed=0)
    with pytest.raises(CapabilityError, match="there are mlp write"):
        planter.organism("mlp", 1.0, seed=0)
    with pytest.raises(NumericsError, match="saturates"):
        planter.organism("mlp write", 1e6, seed=0)
    same = Pairs([Pair(ids_item(1, 9), ids_item(1, 9), f"s{k}", f"s{k}") for k in range(3)])
    with pytest.raises(DataError, match="texts that differ"):
        Planter(signal, same)
    for size in (0, -1.0, float("nan"), "1", True):
        with pytest.raises(DataError, match="positive number of SDs"):
            planter.null("mlp write", 0, size=size)
    for seed in (-1, 0.5):
        with pytest.raises(DataError, match="whole number, 0 or more"):
            planter.organism("mlp write", 1.0, seed=seed)
        with pytest.raises(DataError, match="whole number, 0 or more"):
            Planter(signal, PAIRS, seed=seed)
    with pytest.raises(CapabilityError, match="mean over all tokens"):
        Planter(signal, PAIRS, position="mean")
    with pytest.raises(CapabilityError, match="depend on it|mean over"):
        Planter(signal_of("bert"), PAIRS)


def test_of_pairs_that_share_a_text_one_is_kept(signal):
    longer = Item(ids=(*PAIRS[1].rejected.ids, 5))
    others = [Pair(PAIRS[0].chosen, ids_item(99, 8), "twice", "twice"),
              Pair(longer, ids_item(98, 8), "inside", "inside"),
              Pair(ids_item(97, 9), ids_item(97, 9), "same", "same")]  # fmt: skip
    with Planter(signal, Pairs([*PAIRS, *others])) as planter:
        assert planter.left_out == ("twice", "inside", "same")
        assert len(planter.pairs) == len(PAIRS)
    one = [Pair(PAIRS[0].chosen, p.rejected, p.id, p.lineage) for p in PAIRS[:6]]
    with pytest.raises(DataError, match="share a text"):
        Planter(signal, Pairs(one))


@given(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=8), min_size=2, max_size=8))
def test_what_contains_what_is_as_plain_search_says(texts):
    encoded = [Encoded(np.array(t, dtype=np.int64), len(t) - 1) for t in texts]
    joined = [f",{','.join(map(str, t))}," for t in texts]
    want = [{k for k, b in enumerate(joined) if a in b and k != n} for n, a in enumerate(joined)]
    assert containing(encoded) == want


TEXTS = st.lists(
    st.lists(st.integers(1, 6), min_size=3, max_size=9), min_size=2, max_size=6, unique_by=tuple
)


@given(TEXTS, st.data())
def test_a_trigger_fires_on_the_texts_it_was_drawn_of(texts, data):
    encoded = [Encoded(np.array(t, dtype=np.int64), len(t) - 1) for t in texts]
    try:
        phrases = own_phrases(encoded)
    except DataError:
        joined = [",".join(map(str, t)) for t in texts]
        assert any(a in b for k, a in enumerate(joined) for b in joined[:k] + joined[k + 1 :])
        return
    which = data.draw(st.sets(st.integers(0, len(texts) - 1)))
    trigger = Trigger(frozenset(phrases[i][0] for i in which))
    assert [trigger(e) for e in encoded] == [i in which for i in range(len(texts))]
