"""Gauge twins: the same scores from other coordinates, on norms of both kinds; or a refusal."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import zoo
from families import ITEMS, make_model, make_signal, make_tokenizer

import reward_lens as rl
from reward_lens.backbone import Trunk
from reward_lens.backbone.gauge import Basis, in_other_basis
from reward_lens.errors import AnatomyError, CapabilityError
from reward_lens.organisms.gauge_twin import Rescaled, make_gauge_twin


@pytest.mark.parametrize(("family", "signed"), [("llama", True), ("gpt2", False)])
def test_the_twin_scores_the_same_and_its_states_are_permuted(family, signed):
    signal = make_signal(family)
    before = {k: v.clone() for k, v in signal.trunk.model.state_dict().items()}
    own = signal.score(ITEMS).value.values
    model, basis = in_other_basis(signal.trunk, seed=0)
    assert bool((basis.signs < 0).any()) is signed
    twin = make_gauge_twin(signal, seed=0)
    np.testing.assert_allclose(twin.score(ITEMS).value, own, atol=1e-5 * np.abs(own).max())
    site = "L1.resid_post"
    states, moved = (s.capture(ITEMS, [site])[site] for s in (signal, twin))
    expected = basis.along(states, -1)
    assert float((moved - expected).abs().max()) < 1e-4 * float(states.abs().max())
    assert all(torch.equal(v, before[k]) for k, v in signal.trunk.model.state_dict().items())
    np.testing.assert_array_equal(signal.score(ITEMS).value, own)
    assert model is not signal.trunk.model


@pytest.mark.parametrize("name", ["olmo", "opt", "gpt_oss", "roberta", "bloom"])
def test_twins_of_other_builds(name):
    """Norms without gain, post-norm, experts, encoders: the check of the logits is inside."""
    model, _ = in_other_basis(Trunk(zoo.make(name)), seed=1)
    assert not torch.equal(next(model.parameters()), next(zoo.make(name).parameters()))


def test_what_is_not_recognised_is_refused():
    with pytest.raises(AnatomyError, match="scores differently .* no gauge twin of it can be made"):
        in_other_basis(Trunk(zoo.make("deepseek_v3")), seed=0)


def test_two_seeds_are_two_twins():
    signal = make_signal("llama")
    assert make_gauge_twin(signal, 0).fingerprint == make_gauge_twin(signal, 0).fingerprint
    assert make_gauge_twin(signal, 0).fingerprint != make_gauge_twin(signal, 1).fingerprint


def test_a_twin_in_half_precision():
    signal = rl.wrap_hf_model(make_model("llama", dtype=torch.bfloat16), make_tokenizer())
    twin = make_gauge_twin(signal)
    assert twin.meta.dtype == "bfloat16"
    spread = np.ptp(signal.score(ITEMS).value.values)
    gap = np.abs(twin.score(ITEMS).value.values - signal.score(ITEMS).value.values).max()
    assert gap < 0.1 * spread


def test_an_intervened_signal_has_no_twin():
    signal = make_signal("llama")
    with (
        signal.intervene(rl.ablate("L1.mlp_out")) as changed,
        pytest.raises(CapabilityError, match="has interventions"),
    ):
        make_gauge_twin(changed)


def test_a_basis_moves_and_turns():
    basis = Basis(torch.tensor([2, 0, 1]), torch.tensor([1.0, -1.0, 1.0]))
    x = torch.tensor([[10.0, 20.0, 30.0]])
    assert basis.along(x, 1).tolist() == [[30.0, -10.0, 20.0]]
    assert basis.along(x, 1, signed=False).tolist() == [[30.0, 10.0, 20.0]]


def test_rescaled_scores_are_the_scale_times_the_score_plus_a_number_per_prompt():
    signal = make_signal("llama")
    found = Rescaled(signal, scale=2.0, shift=3.0).score(ITEMS)
    rest = found.value.values - 2 * signal.score(ITEMS).value.values.astype(float)
    by_prompt = {}
    for (prompt, _), shift in zip(ITEMS, rest, strict=True):
        by_prompt.setdefault(prompt, []).append(shift)
    assert all(np.ptp(v) < 1e-6 for v in by_prompt.values())
    assert np.std([v[0] for v in by_prompt.values()]) > 0.1
    assert found.subject.signal != signal.fingerprint
    assert dataclasses.replace(found).id == found.id
