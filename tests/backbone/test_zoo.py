"""Every zoo type: the score is the model's own, in any batch; the split is as fine as known."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from zoo_expected import ALONE, EXPECTED, FAILING

from reward_lens import wrap_hf_model
from reward_lens.signals import Capability

WRAPPED = [name for name in zoo.ALL if EXPECTED[name] != "none"]


@cache
def judged(name: str) -> tuple[Any, Any, float]:
    """The signal, the model's own scores and their range."""
    model = zoo.make(name)
    native = zoo.native_scores(name, model)
    signal = wrap_hf_model(model, zoo.tokenizer_for(name), conformance_quickcheck=False)
    return signal, native, float(np.ptp(native))


@pytest.mark.parametrize("name", WRAPPED)
def test_the_score_is_the_models_own(name):
    signal, native, scale = judged(name)
    assert scale > 1e-2, "scores that hardly differ would prove nothing"
    assert np.abs(zoo.scores_in(1, signal) - native).max() <= zoo.EXACT * scale


@pytest.mark.parametrize("name", WRAPPED)
def test_the_stream_splits_as_finely_as_is_known(name):
    signal, _, _ = judged(name)
    assert signal.meta.granularity == EXPECTED[name], signal.trunk.anatomy.missing


@pytest.mark.parametrize("name", WRAPPED)
def test_the_score_does_not_depend_on_the_batch_or_on_padding(name):
    signal, _, scale = judged(name)
    assert zoo.batch_gap(signal) <= zoo.EXACT * scale
    assert zoo.padding_gap(signal) <= zoo.EXACT * scale


@pytest.mark.parametrize("name", WRAPPED)
def test_what_is_scored_alone_is_said_and_nothing_else_is(name):
    signal, _, _ = judged(name)
    assert any("alone" in note for note in signal.meta.notes) == (name in ALONE)


@pytest.mark.parametrize("name", WRAPPED)
def test_decoders_give_prefix_scores_and_encoders_do_not(name):
    signal, _, _ = judged(name)
    given = Capability.PREFIX_SCORES in signal.caps
    batch_bound = signal.trunk.alone_beyond == 0  # then a token's state is not its own either
    assert given == (not zoo.is_encoder(name) and not batch_bound)


@pytest.mark.parametrize("name", ALONE)
@torch.no_grad()
def test_what_is_scored_alone_needs_it(name):
    """The model's own padded batch gives the shortest text another score than it has alone."""
    model, tokenizer = zoo.make(name), zoo.tokenizer_for(name)
    texts = sorted((zoo.texts(name, *item)[0] for item in zoo.ITEMS), key=len)
    alone = copy.deepcopy(model)(**tokenizer(texts[:1], return_tensors="pt")).logits
    batch = tokenizer([texts[0], texts[-1]], padding=True, padding_side="right")
    together = model(**batch.convert_to_tensors("pt")).logits
    assert abs(float(together[0] - alone[0])) > 100 * zoo.EXACT * judged(name)[2]


def test_the_zoo_is_complete():
    assert (len(zoo.DECODERS), len(zoo.ENCODERS)) == (64, 13)
    assert set(EXPECTED) == set(zoo.ALL)
    assert set(ALONE) | set(FAILING) <= set(zoo.ALL)


def test_a_model_is_the_same_each_time_and_another_with_another_seed():
    first, again, other = (zoo.native_scores("llama", zoo.make("llama", s)) for s in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)


def test_a_change_of_the_configuration_reaches_the_text_part():
    assert zoo.make("gemma3", sliding_window=4).config.text_config.sliding_window == 4
    with pytest.raises(KeyError, match="llama: its configuration has no 'slidng_window'"):
        zoo.make("llama", slidng_window=4)


def test_the_pair_tokenizer_marks_the_second_text():
    row = zoo.make_pair_tokenizer()("ab", "c")
    assert row["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    assert [row["input_ids"][k] for k in (0, 3, 5)] == [zoo.BOS, zoo.EOS, zoo.EOS]
    assert "token_type_ids" not in zoo.make_pair_tokenizer(token_types=False)("ab", "c")
