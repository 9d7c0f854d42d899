"""The effective angle: what it must not see, and what it must."""

from __future__ import annotations

import math

import numpy as np
import pytest
from families import FAMILIES, ITEMS, PAIRS, make_model, make_signal, make_tokenizer

import reward_lens as rl
from reward_lens.errors import CapabilityError, DataError, NumericsError
from reward_lens.evidence import Evidence, GaugeStatus, Tier, Units
from reward_lens.geometry import effective_angle
from reward_lens.geometry.corpus import corpus_of
from reward_lens.organisms.gauge_twin import Rescaled, make_gauge_twin

MANY = [
    (f"Question {k}: what is {k} plus {k * 7}?", f"It is {k * 8}.", f"I would say {k}, or more.")
    for k in range(40)
]


@pytest.fixture(scope="module")
def llama():
    return make_signal("llama")


def cosine(a, b):
    u, v = (s.readout().direction.double().numpy() for s in (a, b))
    return float(u @ v / np.linalg.norm(u) / np.linalg.norm(v))


def test_no_distance_to_a_rescaled_and_shifted_self(llama):
    found = effective_angle(llama, Rescaled(llama, scale=3.7, shift=5.0), MANY)
    assert found.value.sel(quantity="distance") < 1e-3


def test_the_opposite_is_as_far_as_anything_can_be(llama):
    found = effective_angle(llama, Rescaled(llama, scale=-0.2, shift=5.0), MANY)
    assert found.value.sel(quantity="distance") > 1 - 1e-3
    assert found.value.sel(quantity="angle") == pytest.approx(math.pi, abs=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gauge_twin_is_no_distance_away_and_its_direction_is(family):
    signal = make_signal(family)
    twin = make_gauge_twin(signal)
    assert twin.fingerprint != signal.fingerprint
    found = effective_angle(signal, twin, PAIRS)
    assert found.value.sel(quantity="distance") < 1e-3
    assert abs(cosine(signal, twin)) < 0.7


def test_the_tiny_signal_of_the_documentation_has_a_twin():
    signal = rl.from_tiny(seed=0)
    twin = make_gauge_twin(signal, seed=3)
    assert effective_angle(signal, twin, PAIRS).value.sel(quantity="distance") < 1e-3
    assert abs(cosine(signal, twin)) < 0.7


def random_texts(n, seed=0):
    """Pairs whose sides have nothing in common but their length and their end."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz "))
    return [(f"Say {k}", *("".join(rng.choice(letters, 30)) + "." for _ in range(2)))
            for k in range(n)]  # fmt: skip


def test_two_unrelated_trunks_with_few_items_are_not_aligned(llama):
    """Twenty-four pairs, states of width 32: fewer than a covariance needs."""
    found = effective_angle(llama, make_signal("gpt2", seed=5), random_texts(24))
    rho = found.interval("correlation")
    assert rho.low < 0 < rho.high
    assert found.interval("distance").low > 0.4


def test_it_is_the_correlation_of_prompt_centred_scores(llama):
    other = make_signal("qwen2", seed=1)
    found = effective_angle(llama, other, MANY)
    items = [(p, r) for side in (1, 2) for p, r in ((x[0], x[side]) for x in MANY)]
    a, b = (s.score(items).value.values.astype(float) for s in (llama, other))
    half_a, half_b = (v[:40] - v[40:] for v in (a, b))
    rho = half_a @ half_b / np.sqrt((half_a @ half_a) * (half_b @ half_b))
    np.testing.assert_allclose(
        found.value, [rho, math.acos(rho), math.sqrt((1 - rho) / 2)], atol=1e-6
    )
    assert list(found.value["quantity"].values) == ["correlation", "angle", "distance"]
    for name in ("angle", "distance"):
        i = found.interval(name)
        assert i.low < i.estimate < i.high
    low, high = found.interval("correlation").low, found.interval("correlation").high
    assert found.interval("angle").low == pytest.approx(math.acos(high))
    assert found.interval("distance").high == pytest.approx(math.sqrt((1 - low) / 2))


def test_what_the_evidence_says_of_itself(llama):
    other = make_signal("gpt2")
    found = effective_angle(llama, other, MANY)
    assert found.gauge is GaugeStatus.INVARIANT
    assert found.units is Units.ANGLE
    assert found.tier is Tier.OBSERVATIONAL
    assert found.subject.signal == f"{llama.fingerprint} and {other.fingerprint}"
    assert found.subject.notes["b"]["architecture"] == "GPT2ForSequenceClassification"
    assert found.provenance.cost_forwards == 4 * len(MANY)
    assert len(found.provenance.parents) == 2
    assert Evidence.from_dict(found.to_dict()) == found


def test_scores_that_are_there_are_not_run_again(llama):
    other = make_signal("gpt2")
    corpus = corpus_of(MANY)
    scores = (llama.score(corpus.items), other.score(corpus.items))
    found = effective_angle(llama, other, MANY, scores=scores)
    again = effective_angle(llama, other, MANY)
    np.testing.assert_array_equal(found.value, again.value)
    assert found.provenance.parents == (scores[0].id, scores[1].id) == again.provenance.parents
    assert found.provenance.cost_forwards == 0


def test_items_and_pairs_are_the_same_corpus(llama):
    other = make_signal("gpt2")
    by_pair, by_item = (effective_angle(llama, other, given) for given in (PAIRS, ITEMS))
    np.testing.assert_allclose(by_pair.value, by_item.value, atol=1e-6)


def test_prompts_of_one_response_are_dropped_and_counted(llama):
    other = make_signal("gpt2")
    lone = [("Only one answer to this?", "Yes.")]
    found = effective_angle(llama, other, [*ITEMS, *lone])
    assert "1 prompts of one response dropped" in found.interval("correlation").note
    np.testing.assert_allclose(found.value, effective_angle(llama, other, ITEMS).value, atol=1e-6)


def test_an_item_given_twice_counts_once(llama):
    other = make_signal("gpt2")
    found = effective_angle(llama, other, [*ITEMS, *ITEMS])
    assert found.provenance.parameters["items_given_twice"] == len(ITEMS)
    np.testing.assert_allclose(found.value, effective_angle(llama, other, ITEMS).value, atol=1e-6)


def test_rows_of_a_head_by_readout():
    multi = rl.wrap_hf_model(make_model("llama", num_labels=3), make_tokenizer())
    found = effective_angle(multi, multi, MANY, readout=("criterion:0", "criterion:1"))
    assert found.subject.readout == "criterion:0 and criterion:1"
    assert found.subject.signal == multi.fingerprint
    own = effective_angle(multi, multi, MANY, readout="criterion:1")
    assert own.value.sel(quantity="distance") == 0
    assert found.value.sel(quantity="distance") > 0.05
    with pytest.raises(DataError, match="give one name, or one for each of the two signals"):
        effective_angle(multi, multi, MANY, readout=("reward", "reward", "reward"))


class Constant(Rescaled):
    """A grader that knows no options and says the same of everything."""

    def score(self, items):
        found = self.signal.score(items)
        return type(found)(**{**vars_of(found), "value": found.value * 0 + self.scale})


def vars_of(evidence):
    names = ("instrument", "version", "subject", "tier", "gauge", "units", "provenance")
    return {n: getattr(evidence, n) for n in names}


def test_a_grader_of_another_kind(llama):
    flat = Constant(llama)
    found = effective_angle(llama, flat, MANY)
    assert np.isnan(found.value).all()
    assert "the second signal's scores do not vary" in found.interval("angle").note
    with pytest.raises(
        CapabilityError, match="truncate='left': the score of .* has no such choice"
    ):
        effective_angle(llama, flat, MANY, truncate="left")
    endless = Constant(llama)
    endless.scale = math.inf
    with pytest.raises(NumericsError, match="80 of them not finite"):
        effective_angle(llama, endless, MANY)


def test_a_scale_of_nothing_is_refused(llama):
    with pytest.raises(DataError, match="scale=0"):
        Rescaled(llama, scale=0)
