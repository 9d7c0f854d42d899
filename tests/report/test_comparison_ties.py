"""The first screen of two models that are one, or that tie: no tie is called right or agreed on."""

from __future__ import annotations

import pytest
import torch
from comparison_kit import answers, block_of, page_of

import reward_lens as rl
from reward_lens.comparing import compare_models
from reward_lens.data import as_pairs


def pairs():
    return as_pairs(
        {"id": f"p{k}", "prompt": f"Q {k}?", "chosen": f"yes {k}", "rejected": f"no {k}",
         "subset": "ab"[k % 2]}
        for k in range(12)
    )  # fmt: skip


def silent(seed):
    """A model whose head is zero, so that it ties on every pair."""
    made = rl.from_tiny(seed)
    with torch.no_grad():
        made.trunk.model.score.weight.zero_()
    return rl.wrap_hf_model(made.trunk.model, made.encoder.tokenizer)


@pytest.fixture(scope="module")
def same():
    return compare_models(
        rl.from_tiny(), rl.from_tiny(), pairs(), biases=0, conformance=False, names=("x", "y")
    )


def test_one_model_twice_is_called_so_first(same):
    said = answers(same)
    assert next(iter(said.items())) == (
        "Are they two models?",
        "No: a and b are the same model: same weights, tokenizer, template.",
    )
    where = said["Where do they differ most?"]
    assert "They agree on all pairs of every subset." in where
    assert "least" not in where
    assert "surest" not in where
    assert "none is a flip" in where
    assert block_of(page_of(same))["sorts"][0]["key"] == "apart"


def test_ties_of_both_are_called_ties():
    found = compare_models(
        silent(0), silent(1), pairs(), biases=0, conformance=False, names=("x", "y")
    )
    said = answers(found)
    assert "Are they two models?" not in said
    assert said["Do they agree?"].startswith(
        "Both prefer the same side or both tie (12 ties of both)"
    )
    right = said["Which is more often right?"]
    assert "Both are right" not in right
    assert "a tie of both counted as half (12 of 12 pairs)" in right
    page_of(found)
