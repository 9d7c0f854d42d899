"""Structure first, usual names second, a user's names third; whatever is named is verified."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from families import FAMILIES, ITEMS, PAIRS, make_model, make_tokenizer

import reward_lens as rl
from reward_lens.backbone import anatomy_search, naming
from reward_lens.backbone.block_search import BlockPlan, plan_block
from reward_lens.errors import AnatomyError

PARTS = {
    "llama": ("model.layers", "model.norm", ("self_attn", "mlp")),
    "gpt2": ("transformer.h", "transformer.ln_f", ("attn", "mlp")),
    "gpt_neox": ("gpt_neox.layers", "gpt_neox.final_layer_norm", ("attention", "mlp")),
}


def wrap(family, names=None, model=None):
    model = make_model(family) if model is None else model
    return rl.wrap_hf_model(model, make_tokenizer(), anatomy=names)


@pytest.mark.parametrize("family", PARTS)
def test_names_that_are_right_give_what_the_search_finds(family):
    blocks, norm, writes = PARTS[family]
    named = wrap(family, rl.AnatomyNames(blocks, norm, writes))
    found = wrap(family)
    assert named.meta.granularity == found.meta.granularity == "head"
    np.testing.assert_allclose(
        rl.attribution(named, PAIRS).value, rl.attribution(found, PAIRS).value, atol=1e-12
    )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (rl.AnatomyNames(blocks="model.blocks"), r"names no module list; there are .*model.layers"),
        (rl.AnatomyNames(final_norm="model.layers.0.input_layernorm"), "is no norm of the last"),
    ],
)
def test_a_name_that_names_nothing_is_an_error(names, message):
    with pytest.raises(AnatomyError, match=message):
        wrap("llama", names)


def test_a_name_is_verified_like_everything_else():
    signal = wrap("llama", rl.AnatomyNames(writes=("self_attn", "input_layernorm")))
    assert signal.meta.granularity == "layer"
    assert any("no module outputs" in note for note in signal.meta.notes)
    with pytest.raises(AnatomyError, match="did not verify"):
        rl.attribution(signal, PAIRS)
    expected = wrap("llama").score(ITEMS).value
    np.testing.assert_array_equal(signal.score(ITEMS).value, expected)


def test_an_installed_package_may_say_it(monkeypatch):
    asked = []

    def entry_points(group, name):
        asked.append((group, name))
        return [SimpleNamespace(value="x:y", load=lambda: rl.AnatomyNames(writes=("mlp",)))]

    monkeypatch.setattr(naming, "entry_points", entry_points)
    assert wrap("llama").meta.granularity == "layer"
    assert asked == [("reward_lens.anatomy", "llama")]
    assert wrap("llama", rl.AnatomyNames(writes=("self_attn", "mlp"))).meta.granularity == "head"


def test_an_entry_point_that_gives_something_else_is_refused(monkeypatch):
    wrong = [SimpleNamespace(value="x:y", load=lambda: {"writes": ("mlp",)})]
    monkeypatch.setattr(naming, "entry_points", lambda group, name: wrong)
    with pytest.raises(AnatomyError, match=r"'x:y' .* gives dict"):
        wrap("llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_usual_names_are_tried_where_structure_finds_nothing(family, monkeypatch):
    def blind(specimen, expected, among=None):
        if among is None:
            return BlockPlan(missing={"sublayer": "nothing was found"})
        return plan_block(specimen, expected, among)

    monkeypatch.setattr(anatomy_search, "plan_block", blind)
    signal = wrap(family)
    assert signal.meta.granularity == "head"
