"""Every function that draws refuses what is no seed, before any work."""

from __future__ import annotations

import pytest
from families import PAIRS, make_signal

import reward_lens as rl
from reward_lens.data import as_pairs
from reward_lens.data.edits import EDITS
from reward_lens.errors import DataError
from reward_lens.instruments import fit_concept
from reward_lens.organisms.gauge_twin import Rescaled, make_gauge_twin
from reward_lens.organisms.hand_set import HandSet
from reward_lens.organisms.mixture import objective_mix
from reward_lens.organisms.other_head import concept_head

DRAWS = {
    "sample": lambda s, seed: as_pairs(PAIRS).sample(1, seed),
    "edit": lambda s, seed: EDITS[0].apply("Some text.", seed=seed),
    "from_tiny": lambda s, seed: rl.from_tiny(seed),
    "ablate": lambda s, seed: rl.ablate("L0.mlp_out", seed=seed),
    "bias_battery": lambda s, seed: rl.bias_battery(s, PAIRS, seed=seed),
    "style_accuracy": lambda s, seed: rl.style_accuracy(s, PAIRS, seed=seed),
    "prompt_snr": lambda s, seed: rl.prompt_snr(s, PAIRS, seed=seed),
    "patch_grid": lambda s, seed: rl.patch_grid(s, PAIRS, seed=seed),
    "attribution_patching": lambda s, seed: rl.attribution_patching(s, PAIRS, seed=seed),
    "concept_dose_response": lambda s, seed: rl.concept_dose_response(s, PAIRS, PAIRS, seed=seed),
    "fit_concept": lambda s, seed: fit_concept(s, PAIRS, "L0.resid_post", seed=seed),
    "audit": lambda s, seed: rl.audit(s, PAIRS, seed=seed),
    "calibrate": lambda s, seed: rl.calibrate(s, PAIRS, seed=seed),
    "gauge twin": lambda s, seed: make_gauge_twin(s, seed),
    "rescaled": lambda s, seed: Rescaled(s, seed=seed),
    "hand set": lambda s, seed: HandSet(1, seed),
    "concept head": lambda s, seed: concept_head(s, PAIRS, "length", seed=seed),
    "objective mix": lambda s, seed: objective_mix(s, PAIRS, {"length": 1.0}, seed=seed),
}


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


@pytest.mark.parametrize("seed", [-1, 0.5])
@pytest.mark.parametrize("what", DRAWS)
def test_what_is_no_seed_is_refused(signal, what, seed):
    with pytest.raises(DataError, match=f"^seed={seed}: give a whole number, 0 or more$"):
        DRAWS[what](signal, seed)
