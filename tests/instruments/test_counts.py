"""Every count is a whole number, by one rule, before any work."""

from __future__ import annotations

import math

import pytest
from families import PAIRS, make_signal

import reward_lens as rl
from reward_lens.comparing import compare_models
from reward_lens.data import as_pairs, load_pairs
from reward_lens.data.choices import load_choices
from reward_lens.errors import DataError
from reward_lens.instruments import worst_errors

#: What is counted -> the call with a count, by name; and whether None is all.
COUNTS = {
    "audit sample": (lambda s, **n: rl.audit(s, PAIRS, **n), "sample", False),
    "audit causal_sample": (lambda s, **n: rl.audit(s, PAIRS, **n), "causal_sample", True),
    "audit biases": (lambda s, **n: rl.audit(s, PAIRS, **n), "biases", False),
    "audit batch_tokens": (lambda s, **n: rl.audit(s, PAIRS, **n), "batch_tokens", False),
    "compared biases": (lambda s, **n: compare_models(s, s, PAIRS, **n), "biases", False),
    "max_responses": (lambda s, **n: rl.bias_battery(s, PAIRS, **n), "max_responses", True),
    "heads": (lambda s, **n: rl.bias_battery(s, PAIRS, **n), "heads", False),
    "styled": (lambda s, **n: rl.style_accuracy(s, PAIRS, **n), "max_pairs", True),
    "reworded": (lambda s, **n: rl.prompt_snr(s, PAIRS, **n), "max_pairs", True),
    "steered": (lambda s, **n: rl.concept_dose_response(s, PAIRS, PAIRS, **n), "sample", True),
    "directions": (
        lambda s, **n: rl.concept_dose_response(s, PAIRS, PAIRS, **n), "directions", False,
    ),
    "followed": (lambda s, **n: rl.path_effects(s, PAIRS, **n), "top", False),
    "layer of a grid": (lambda s, **n: rl.patch_grid(s, PAIRS, **n), "layers", True),
    "layer of a concept": (
        lambda s, **n: rl.concept_dose_response(s, PAIRS, PAIRS, **n), "layer", True,
    ),
    "steps between sides": (lambda s, **n: rl.attribution_patching(s, PAIRS, **n), "steps", False),
    "sample run exactly": (lambda s, **n: rl.attribution_patching(s, PAIRS, **n), "sample", False),
    "screened": (lambda s, **n: rl.attribution_patching(s, PAIRS, **n), "screen", True),
    "steps from a baseline": (lambda s, **n: rl.token_map(s, PAIRS, **n), "steps", False),
    "flips": (lambda s, **n: rl.compare(s, s, PAIRS, **n), "examples", False),
    **{
        f"tokens of a batch, {name}": (
            lambda s, name=name, **n: getattr(rl, name)(s, PAIRS, **n), "batch_tokens", False,
        )
        for name in ("preference", "lens", "attribution", "patch_grid", "path_effects",
                     "attribution_patching", "compare_views", "token_map", "bias_battery",
                     "source_attribution", "style_accuracy")
    },
    **{
        f"calibrated {name}": (lambda s, **n: rl.calibrate(s, PAIRS, **n), name, False)
        for name in ("organisms", "nulls", "fixing", "max_pairs")
    },
    "drawn": (lambda s, **n: as_pairs(PAIRS).sample(**n), "n", False),
    "pairs read": (lambda s, **n: load_pairs(PAIRS, **n), "limit", True),
    "choices read": (lambda s, **n: load_choices(PAIRS, **n), "limit", True),
}  # fmt: skip
CASES = [(what, bad) for what in COUNTS for bad in (-1, True, 2.5, "3", math.nan, None)
         if bad is not None or not COUNTS[what][2]]  # fmt: skip


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


@pytest.mark.parametrize(("what", "bad"), CASES)
def test_what_is_no_count_is_refused(signal, what, bad):
    call, name, _ = COUNTS[what]
    with pytest.raises(DataError, match=rf"^{name}={bad!r}: give a whole number, \d+ or more"):
        call(signal, **{name: bad})


@pytest.mark.parametrize("bad", [0, True, 2.5, "3", math.nan, None])
def test_errors_are_counted_by_the_same_rule(signal, bad):
    scores = rl.preference(signal, PAIRS)
    with pytest.raises(DataError, match=f"^count={bad!r}: give a whole number, 1 or more$"):
        worst_errors(scores, PAIRS, bad)
