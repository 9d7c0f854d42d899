"""Signal against noise where both are known: by formula, and in signals made for it."""

from __future__ import annotations

import numpy as np
import pytest

import reward_lens as rl
from reward_lens.data import as_pairs
from reward_lens.data.templates_prompts import PARAPHRASES, TEMPLATES, laid_out, paraphrased
from reward_lens.errors import DataError
from reward_lens.instruments.prompt_noise import prompt_snr, variance_parts
from reward_lens.organisms.hand_set import FEATURE, REWARD, HandSet

PAIRS = [
    (f"What is {k} and {k + 1}?", f"It is {2 * k + 1} good", f"That makes {2 * k} bad")
    for k in range(12)
]


@pytest.fixture(scope="module")
def tiny():
    return rl.from_tiny(seed=0)


def test_components_of_simulated_scores_are_found():
    rng = np.random.default_rng(0)
    n, variants, sd = 40000, 6, {"response": 1.0, "prompt": 0.7, "interaction": 0.4}
    cube = (
        rng.normal(size=(n, 1, 1))  # the prompt itself: in no component
        + sd["prompt"] * rng.normal(size=(n, variants, 1))
        + sd["response"] * rng.normal(size=(n, 1, 2))
        + sd["interaction"] * rng.normal(size=(n, variants, 2))
    )
    response, interaction, prompt = variance_parts(cube).mean(0)
    assert response == pytest.approx(1.0, rel=0.03)
    assert interaction == pytest.approx(0.16, rel=0.03)
    assert prompt == pytest.approx(0.49, rel=0.03)


def test_a_head_that_reads_only_the_last_token_has_no_noise():
    model = HandSet(layers=1, mixing=False)
    model.token("good", {FEATURE: 1.0})
    model.token("bad", {FEATURE: -1.0})
    model.neuron(0, gate={FEATURE: 1.0}, writes={REWARD: 1.0})
    ev = prompt_snr(model.signal("last"), PAIRS)
    for source in ("paraphrase", "template"):
        assert ev.value.sel(source=source, quantity="response") == pytest.approx(1)
        assert ev.value.sel(source=source, quantity="snr") > 1e6
        assert ev.interval(f"flips.{source}").estimate == 0
    assert set(ev.tables["variants"]["flips"]) == {0.0}
    assert ev.tables["variants"]["shift"].abs().max() < 1e-5


def test_quantities_by_hand(tiny):
    ev = prompt_snr(tiny, PAIRS)
    pairs = as_pairs(PAIRS)
    for source, names, change in (
        ("paraphrase", PARAPHRASES, paraphrased),
        ("template", TEMPLATES, laid_out),
    ):
        versions = [[i for p in pairs for i in (p.chosen, p.rejected)]]
        versions += [[change(i, name) for i in versions[0]] for name in names]
        scores = np.array([tiny.score(v).value.values.astype(float) for v in versions])
        cube = scores.reshape(len(versions), 12, 2).transpose(1, 0, 2)
        parts = np.maximum(variance_parts(cube).mean(0), 0)
        found = ev.value.sel(source=source)
        np.testing.assert_allclose(found[:3], parts / parts.sum(), atol=1e-4)
        assert found[3] == pytest.approx(parts[0] / parts[1], rel=1e-3)
        assert found[4] == pytest.approx(parts[0] / (parts[1] + parts[2]), rel=1e-3)
        order = np.sign(cube[..., 0] - cube[..., 1])
        assert found[5] == pytest.approx((order[:, 1:] != order[:, :1]).mean())
        snr = ev.interval(f"snr.{source}")
        assert snr.estimate == pytest.approx(float(found[3]))
        if np.isfinite(snr.low):
            assert snr.low < snr.estimate < snr.high
    assert ev.provenance.cost_forwards == 24 * (1 + len(PARAPHRASES) + len(TEMPLATES))
    assert list(ev.tables["variants"]["variant"]) == [*PARAPHRASES, *TEMPLATES]
    assert not len(ev.tables["left_out"])


def test_what_is_left_out_is_named(tiny):
    turns = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two."},
             {"role": "user", "content": "Three."}]  # fmt: skip
    signal = rl.wrap_hf_model(
        tiny.trunk.model,
        tiny.encoder.tokenizer,
        template="{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}",
        conformance_quickcheck=False,
    )
    edge = "so " * 243
    ev = prompt_snr(signal, [*PAIRS[:4], (turns, "Four.", "Five."), (edge, "yes", "no")])
    left = ev.tables["left_out"]
    ids = as_pairs([*PAIRS[:4], (turns, "Four.", "Five."), (edge, "yes", "no")]).ids
    assert left.iloc[0].tolist() == [ids[4], "template", "a conversation of several turns"]
    assert set(left["pair"][1:]) == {ids[5]}
    assert set(left["reason"][1:]) == {"longer than the model reads"}
    # A pair counts for a source only where all its variants do.
    assert set(left["variant"][1:]) <= set(PARAPHRASES)
    rows = ev.tables["variants"].set_index("variant")["pairs"]
    assert set(rows[list(PARAPHRASES)]) == {5}  # without the long one
    assert set(rows[list(TEMPLATES)]) == {5}  # without the one of several turns


@pytest.mark.parametrize("source", ["template", "paraphrase"])
def test_a_source_that_applies_to_no_pair_is_nan_with_the_reason(tiny, source):
    turns = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two."},
             {"role": "user", "content": "Three."}]  # fmt: skip
    signal = rl.wrap_hf_model(
        tiny.trunk.model,
        tiny.encoder.tokenizer,
        template="{% for m in messages %}{{ m['content'] }}{% endfor %}",
        conformance_quickcheck=False,
    )
    edge = "so " * 248
    pairs = {
        "template": [(turns, f"Four {k}.", "Five.") for k in range(3)],
        "paraphrase": [(f"{edge}{k}", "yes", "no") for k in range(3)],
    }[source]
    ev = prompt_snr(signal, pairs)
    assert ev.value.sel(source=source).isnull().all()
    for name in ("snr", "snr_total", "flips"):
        i = ev.interval(f"{name}.{source}")
        assert (i.n, i.clusters) == (0, 0)
        assert np.isnan([i.estimate, i.low, i.high]).all()
        assert i.note == "no pair has all variants of this source; the table left_out says why"
    rows = ev.tables["variants"].set_index("source").loc[source]
    assert (rows["pairs"] == 0).all()
    assert rows["flips"].isna().all()
    assert set(ev.tables["left_out"]["pair"]) == set(as_pairs(pairs).ids)


def test_refusals_and_samples(tiny):
    assert prompt_snr(tiny, PAIRS, max_pairs=3).provenance.cost_forwards == 6 * 9
    with pytest.raises(DataError, match="variants of it need a prompt and a response"):
        prompt_snr(tiny, [{"text_chosen": "a", "text_rejected": "b"}])
