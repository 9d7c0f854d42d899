"""Where the engine must not be leaned on: long texts, rebuilt models, hooks and views of others."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from families import ITEMS, PAIRS, make_model, make_signal, make_tokenizer
from torch import nn
from zoo import make, tokenizer_for

import reward_lens as rl
from reward_lens.backbone import FULL, TREE, engine_of
from reward_lens.data import Item
from reward_lens.errors import AnatomyError, CapabilityError, RewardLensError


def effects(found):
    return found.value.sel(quantity="effect").values


def long_pairs(length, n=2, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 200, (2 * n, length)).tolist()
    return [{"input_ids_chosen": rows[k], "input_ids_rejected": rows[n + k]} for k in range(n)]


def test_a_window_that_only_long_texts_meet_is_met_before_they_are_run():
    """GPT-Neo cuts its local window by the number of keys, so lanes would push clean keys out."""
    model = make("gpt_neo", window_size=40)
    signal = rl.wrap_hf_model(model, tokenizer_for("gpt_neo"))
    assert engine_of(signal.trunk).offers(TREE)  # on texts of nine tokens
    fast = rl.patch_grid(signal, long_pairs(90))
    slow = rl.patch_grid(signal, long_pairs(90), executor=FULL)
    assert "90 tokens" in engine_of(signal.trunk).missing[TREE]
    np.testing.assert_allclose(effects(fast), effects(slow),
                               atol=1e-5 * np.abs(effects(slow)).max() + 2e-6)  # fmt: skip


def test_attention_that_chooses_its_keys_has_no_prefix_scores_beyond():
    signal = rl.wrap_hf_model(make("doge", keep_window_size=24), tokenizer_for("doge"))
    assert signal.trunk.alone_beyond == 24
    items = [Item(ids=tuple(p["input_ids_chosen"])) for p in long_pairs(40)]
    with pytest.raises(CapabilityError, match="beyond 24"):
        signal.score_prefixes(items)
    fast = rl.patch_grid(signal, long_pairs(40))
    assert list(fast.tables["engine"]["executor"]) == [FULL]


def test_a_replaced_module_is_refused():
    signal = make_signal("llama")
    layer = signal.trunk.model.model.layers[1]
    layer.mlp = make_model("llama", seed=1).model.layers[1].mlp
    with pytest.raises(AnatomyError, match="rebuilt after it was wrapped"):
        rl.patch_grid(signal, PAIRS)
    with (
        signal.intervene(rl.ablate("L1.mlp_out", position="all")) as changed,
        pytest.raises(AnatomyError, match="not called any more"),
    ):
        changed.score(ITEMS)


class Adapted(nn.Module):
    """A linear map with something beside it that reads the same input, as LoRA does."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.more = nn.Linear(base.in_features, base.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.more(x)


def test_a_map_that_was_wrapped_afterwards_is_refused():
    signal = make_signal("llama")
    attention = signal.trunk.model.model.layers[0].self_attn
    attention.o_proj = Adapted(attention.o_proj)
    with pytest.raises(AnatomyError, match=r"first at '.*o_proj"):
        rl.patch_grid(signal, PAIRS, by="head")


def test_another_dtype_is_refused():
    signal = make_signal("llama")
    signal.trunk.model.to(torch.bfloat16)
    with pytest.raises(AnatomyError, match="was float32 when it was wrapped and is bfloat16"):
        signal.score(ITEMS)


def test_a_part_in_training_mode_is_refused():
    signal = make_signal("gpt2")
    signal.trunk.model.transformer.h[1].train()
    with pytest.raises(RewardLensError, match="a part of it, is in training mode"):
        signal.score(ITEMS)


def test_with_somebody_elses_hooks_full_forwards_run():
    signal = make_signal("llama")

    def last(module, args, out):
        out[:, -1] += 1.0  # whatever column is last
        return out

    handle = signal.trunk.model.model.layers[1].mlp.register_forward_hook(last)
    try:
        found = rl.patch_grid(signal, PAIRS)
        assert list(found.tables["engine"]["executor"]) == [FULL]
    finally:
        handle.remove()
    assert list(rl.patch_grid(signal, PAIRS).tables["engine"]["executor"]) == [TREE]


@pytest.mark.parametrize(
    "what",
    [
        lambda: rl.ablate("L0.attn_out", "resample", reference=ITEMS, position="all"),
        lambda: rl.steer("L0.resid_post", np.ones(32)),
    ],
)
def test_equal_beginnings_are_run_where_a_text_decides_what_is_done_to_it(what):
    signal = make_signal("llama")
    one = [5, 6, 7, 8, 9, 10]
    pairs = [{"input_ids_chosen": [*one, 11, 12], "input_ids_rejected": one}]
    with signal.intervene(what()) as changed:
        found = rl.patch_grid(changed, pairs, positions=(0, 6))
        full = rl.patch_grid(changed, pairs, positions=(0, 6), executor=FULL)
    np.testing.assert_array_equal(effects(found), effects(full))
    assert np.abs(effects(found)).max() > 1e-3


def test_prefixes_and_the_stream_under_an_intervention():
    signal = make_signal("llama")
    with signal.intervene(rl.ablate("L0.H1")) as changed, \
            pytest.raises(CapabilityError, match="PREFIX_SCORES"):  # fmt: skip
        changed.score_prefixes(ITEMS)
    with signal.intervene(rl.ablate("L0.H1", position="all")) as changed:
        curves = changed.score_prefixes(ITEMS[:1]).value.values[0]
        ids = signal.encode(ITEMS[:1])[0].ids
        cut = changed.score([Item(ids=tuple(ids[:5].tolist()))]).value.values[0]
        assert curves[4] == pytest.approx(cut, abs=1e-5)
    with signal.intervene(rl.replace("L2.resid_post", np.ones(32))) as changed:
        for run in (rl.lens, rl.path_effects):
            with pytest.raises(CapabilityError, match="puts another in its place"):
                run(changed, PAIRS)


def test_views_of_a_changed_signal_are_not_views_of_the_signal():
    signal = make_signal("llama")
    with signal.intervene(rl.ablate("L0.H1")) as changed:
        grid, written = rl.patch_grid(changed, PAIRS), rl.attribution(changed, PAIRS)
        ours = rl.compare_views(changed, PAIRS, grid=grid, attribution=written)
        assert ours.subject.interventions == grid.subject.interventions
        assert written.tier is rl.patch_grid(signal, PAIRS).tier  # read off a changed signal
    for given in ({"grid": grid}, {"attribution": written}):
        with pytest.raises(ValueError, match="zero L0.H1 at final"):
            rl.compare_views(signal, PAIRS, **given)


def test_a_view_is_entered_while_other_threads_score():
    signal = make_signal("llama")
    expected, wrong = signal.score(ITEMS).value.values, []

    def work():
        for _ in range(15):
            if not np.array_equal(signal.score(ITEMS).value.values, expected):
                wrong.append("another score")

    def guarded():
        try:
            work()
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=guarded) for _ in range(3)]
    for thread in threads:
        thread.start()
    fresh = rl.wrap_hf_model(signal.trunk.model, make_tokenizer())  # traces the same modules
    with fresh.intervene(rl.ablate("L0.H1")) as changed:
        rl.patch_grid(changed, PAIRS)
    for thread in threads:
        thread.join()
    assert wrong == []


def test_gradients_inside_inference_mode():
    signal = make_signal("llama")
    expected = rl.attribution_patching(signal, PAIRS, sample=0).value.sel(quantity="estimate")
    with torch.inference_mode():
        found = rl.attribution_patching(signal, PAIRS, sample=0).value.sel(quantity="estimate")
    np.testing.assert_array_equal(found.values, expected.values)


def test_experts_whose_choice_is_not_found_are_not_counted():
    signal = rl.wrap_hf_model(make("jetmoe"), tokenizer_for("jetmoe"))
    assert engine_of(signal.trunk).uncounted
    table = rl.patch_grid(signal, PAIRS[:2]).tables["components"]
    assert table["mean_flips"].isna().all()
