"""The battery finds the bias that was planted, says how large it is, and names nothing else."""

from __future__ import annotations

import copy
from importlib import resources

import numpy as np
import pytest
import torch
from bias_kit import organism

import reward_lens as rl
from reward_lens.data import Pairs
from reward_lens.data.edits import EDITS, Edit, edits_named
from reward_lens.errors import DataError, NumericsError
from reward_lens.evidence import GaugeStatus, Tier, Units, read_jsonl, write_jsonl
from reward_lens.evidence.intervals import cluster_t
from reward_lens.instruments import bias_null
from reward_lens.instruments.bias_cases import Cases, chosen_edits
from reward_lens.instruments.biases import bias_battery
from reward_lens.organisms.gauge_twin import make_gauge_twin
from reward_lens.signals import wrap_hf_model
from reward_lens.signals.process import _tiny_sequence_classifier

#: At most 5 of 100 random heads, and three standard errors of that.
ALLOWED = 5 + 3 * np.sqrt(100 * 0.05 * 0.95)


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    demo = resources.files("reward_lens") / "assets" / "demo" / "pairs.jsonl"
    found = rl.load_pairs(str(demo))
    return Pairs(
        p for p in found if all(len(str(i.content())) < 400 for i in (p.chosen, p.rejected))
    )


@pytest.fixture(scope="module")
def lengthy():
    return organism()


@pytest.fixture(scope="module")
def flattered():
    return organism(flattery=8.0)


@pytest.fixture(scope="module")
def length_evidence(lengthy, pairs):
    return bias_battery(lengthy[0], pairs, max_responses=80)


@pytest.fixture(scope="module")
def flattery_evidence(flattered, pairs):
    edits = ["length", "flattery", "control", "tone", "noise"]
    return bias_battery(flattered[0], pairs, edits=edits, max_responses=80)


def planted(signal, on_paper, pairs, label: str, unit: float) -> float:
    """The effect of an edit on all pairs, from the rule as written down and from ids alone."""
    (edit,) = edits_named([label])
    both = [
        (i, (i.prompt_text, new))
        for i in (*pairs.chosen, *pairs.rejected)
        if (new := edit.apply(i.response)) is not None
    ]
    before, after = (on_paper(signal, list(side)) for side in zip(*both, strict=True))
    return float((after - before).mean() / unit)


@pytest.mark.parametrize("which", ["lengthy", "flattered"])
def test_the_organisms_score_as_written_down(which, pairs, request):
    signal, on_paper = request.getfixturevalue(which)
    items = [*pairs.chosen[:10], ("Why?", "You are brilliant and clever.")]
    np.testing.assert_allclose(signal.score(items).value, on_paper(signal, items), atol=2e-6)


def test_a_planted_length_preference_is_named_with_its_size(lengthy, length_evidence, pairs):
    table = length_evidence.tables["effects"].set_index("edit")
    unit = float(length_evidence.tables["unit"]["median_margin"][0])
    for position in ("start", "middle", "end"):
        row = table.loc[f"restated.{position}"]
        assert row["named"]
        assert row["direction"] == f"restating at the {position} raises the score"
        truth = planted(*lengthy, pairs, f"restated.{position}", unit)
        assert row["low"] <= truth <= row["high"]
    assert table.loc["trimmed.end", "high"] < 0
    # Here flattery is one more sentence and nothing else.
    gap = length_evidence.tables["against_neutral"].set_index("edit")
    assert abs(gap.loc["flattery.end", "difference"]) < 0.1 * table.loc["flattery.end", "mean"]


def test_a_planted_flattery_preference_is_named_with_its_size(flattered, flattery_evidence, pairs):
    table = flattery_evidence.tables["effects"].set_index("edit")
    unit = float(flattery_evidence.tables["unit"]["median_margin"][0])
    gap = flattery_evidence.tables["against_neutral"].set_index("edit")
    for position in ("start", "middle", "end"):
        row = table.loc[f"flattery.{position}"]
        assert row["named"]
        assert row["direction"] == f"flattery of the user at the {position} raises the score"
        truth = planted(*flattered, pairs, f"flattery.{position}", unit)
        assert row["low"] <= truth <= row["high"]
        assert gap.loc[f"flattery.{position}", "low"] > 1
        assert gap.loc[f"hedging.{position}", "high"] < gap.loc[f"flattery.{position}", "low"]
    assert table["mean"].abs().idxmax().startswith("flattery")


def test_labels_and_value_agree_with_the_tables(length_evidence):
    ev = length_evidence
    assert (ev.tier, ev.gauge, ev.units) == (Tier.VULNERABILITY, GaugeStatus.INVARIANT, Units.SHARE)
    table = ev.tables["effects"]
    assert ev.value.dims == ("quantity", "edit")
    np.testing.assert_array_equal(ev.value.sel(quantity="effect"), table["mean"])
    np.testing.assert_array_equal(ev.value.sel(quantity="threshold"), table["threshold"])
    np.testing.assert_array_equal(ev.value["named"], table["named"])
    assert list(table["edit"]) == [i.name.removeprefix("effect.") for i in ev.uncertainty]
    assert set(table["edit"]) >= {e.label for e in EDITS} | {
        "end_token.end",
        "wrong_belief",
        "name",
    }
    whole = table[(table["position"] != "whole") | table["edit"].isin(["list_form", "halved"])]
    assert set(whole["n"] + whole["not_applicable"] + whole["too_long"]) == {80}
    known = table["p"].notna()
    assert (table.loc[known, "p_adjusted"] >= table.loc[known, "p"]).all()
    named = (table["low"] > table["threshold"]) | (table["high"] < -table["threshold"])
    np.testing.assert_array_equal(named, table["named"])
    shown = ev.tables["examples"].set_index("edit")
    assert (shown["before"] != shown["after"]).all()


def test_evidence_survives_a_file(length_evidence, tmp_path):
    write_jsonl(tmp_path / "e.jsonl", [length_evidence])
    (back,) = read_jsonl(tmp_path / "e.jsonl")
    assert back.id == length_evidence.id


@pytest.fixture(scope="module")
def tiny():
    return rl.from_tiny(seed=0)


@pytest.fixture(scope="module")
def small(pairs) -> Pairs:
    return pairs.sample(16, seed=1)


def with_head(signal, direction):
    """The same trunk with another head."""
    model = copy.deepcopy(signal.trunk.model)
    with torch.no_grad():
        model.score.weight.copy_(torch.as_tensor(direction)[None])
    return wrap_hf_model(model, signal.encoder.tokenizer, conformance_quickcheck=False)


@pytest.fixture(scope="module")
def states(tiny, small):
    """Cases of a random trunk, and what 500 random heads score of their items."""
    cases = Cases(small, *chosen_edits(tiny, None), 0)
    encoded = cases.encoded(tiny, "error")
    _, others = bias_null.scored(
        tiny, encoded, tiny.readout(), tiny.read_index(encoded), 500, 7, 4096, None
    )
    return cases, others


@pytest.fixture(scope="module")
def independent(states):
    """The same cases on states of 64 dimensions, in which every edit has a direction of its own."""
    cases, others = states
    rng = np.random.default_rng(3)
    drawn = rng.normal(size=(len(others), 64))
    for k, case in enumerate(cases.cases):
        for row in case.rows:
            if row.plus[0] >= cases.originals:
                drawn[list(row.plus), k] += 30
    return cases, (drawn @ rng.normal(size=(64, others.shape[1]))).astype(np.float32)


@pytest.mark.parametrize("kind", ["states", "independent"])
def test_of_100_random_heads_at_most_5_are_said_to_have_a_bias(kind, request):
    cases, others = request.getfixturevalue(kind)
    named = [bias_null.null_of(cases, others[:, k : k + 300], 200).named for k in (0, 100, 200)]
    assert max(named) <= ALLOWED


def test_heads_that_test_the_threshold_have_no_part_in_it(states):
    cases, others = states
    effects = np.stack([c.differences(others).mean(0) for c in cases.cases if c.rows])
    effects /= bias_null.median_margin(cases.margins(others))
    effects = effects[effects.any(1)]
    extreme = np.abs(effects / effects.std(1, keepdims=True)).max(0).argmax()
    first, wild = others[:, :200], np.repeat(others[:, extreme, None], 100, axis=1)
    plain = bias_null.null_of(cases, others[:, :300], 200)
    other = bias_null.null_of(cases, np.hstack([first, wild]), 200)
    np.testing.assert_array_equal(plain.threshold, other.threshold)
    assert (plain.heads, plain.test_heads) == (200, 100)
    swapped = bias_null.null_of(cases, np.hstack([wild, wild, others[:, 200:300]]), 200)
    assert (swapped.threshold != plain.threshold).any()


def test_a_tone_is_compared_with_nothing_said_in_the_same_text(tiny, small):
    ev = bias_battery(tiny, small, edits=["flattery.end", "neutral.end"], max_responses=None)
    items = [*small.chosen, *small.rejected]
    scores = []
    for label in ("flattery.end", "neutral.end"):
        (edit,) = edits_named([label])
        texts = [(i.prompt_text, edit.apply(i.response, seed=0)) for i in items]
        assert all(text for _, text in texts)
        scores.append(tiny.score(texts).value.values.astype(float))
    unit = float(ev.tables["unit"]["median_margin"][0])
    lineages = np.concatenate([small.lineages, small.lineages])
    expected = cluster_t("gap", (scores[0] - scores[1]) / unit, lineages)
    (row,) = ev.tables["against_neutral"].to_dict("records")
    np.testing.assert_allclose(
        [row["difference"], row["low"], row["high"]],
        [expected.estimate, expected.low, expected.high],
        rtol=1e-3, atol=1e-4,
    )  # fmt: skip


def test_without_the_maximum_over_edits_random_heads_have_biases(independent, monkeypatch):
    cases, others = independent

    def one_edit_at_a_time(effects, scale):
        return float(np.nanquantile(np.abs(effects / scale[:, None]), 0.95))

    monkeypatch.setattr(bias_null, "largest_quantile", one_edit_at_a_time)
    assert bias_null.null_of(cases, others[:, :300], 200).named > 2 * ALLOWED


def test_significance_alone_would_name_nearly_every_random_head(states):
    cases, others = states
    unit = bias_null.median_margin(cases.margins(others))
    significant = np.zeros(others.shape[1], dtype=bool)
    for case in cases.cases:
        _, low, high = bias_null.cluster_bounds(case.differences(others) / unit, case.lineages)
        significant |= bias_null.beyond(low, high, 0.0)
    assert significant.mean() > 0.95


def test_a_random_head_is_scored_as_a_model_with_that_head(tiny, small, states):
    cases, others = states
    direction = bias_null.random_heads(tiny.meta.width, 500, 7)[:, 3]
    signal = with_head(tiny, direction)
    scores = signal.score(cases.items).value.values
    np.testing.assert_allclose(scores, others[:, 3], atol=1e-5 * np.abs(scores).max())
    ev = bias_battery(signal, small, seed=0, max_responses=None)
    unit = bias_null.median_margin(cases.margins(others))[3]
    expected = [(c.differences(others)[:, 3] / unit).mean() for c in cases.cases]
    np.testing.assert_allclose(ev.tables["effects"]["mean"], expected, atol=1e-3)
    assert not ev.tables["effects"]["named"].any()
    rate = ev.tables["null"].iloc[0]
    assert (rate["heads"], rate["test_heads"]) == (200, 200)
    assert rate["low"] <= rate["rate"] == rate["naming_any"] / 200 <= rate["high"]


def test_bounds_of_many_heads_are_the_intervals_of_each(states):
    cases, others = states
    case = next(c for c in cases.cases if c.label == "flattery.end")
    values = case.differences(others)[:, :3]
    mean, low, high = bias_null.cluster_bounds(values, case.lineages)
    for k in range(3):
        one = cluster_t("one", values[:, k], case.lineages)
        np.testing.assert_allclose([mean[k], low[k], high[k]], [one.estimate, one.low, one.high])
    single = bias_null.cluster_bounds(values[:1], case.lineages[:1])
    assert np.isnan(single[1:]).all()


def test_states_of_one_direction_are_said_to_show_little(tiny, small):
    model = copy.deepcopy(tiny.trunk.model)
    with torch.no_grad():  # the norm's gain leaves one channel
        model.model.norm.weight[1:] = 0
        model.score.weight[0, 0] = 1.0
    signal = wrap_hf_model(model, tiny.encoder.tokenizer, conformance_quickcheck=False)
    null = bias_battery(signal, small, edits=["bold"]).tables["null"].iloc[0]
    assert null["directions"] == pytest.approx(1, abs=0.35)
    assert "proves no absence" in null["note"]


@pytest.mark.parametrize("position", [None, "mean"])
def test_effects_are_paired_differences_of_scores(tiny, small, position):
    ev = bias_battery(tiny, small, edits=["polite.end"], position=position)
    edit = edits_named(["polite.end"])[0]
    items = [*small.chosen, *small.rejected]
    edited = [(i.prompt_text, edit.apply(i.response)) for i in items]
    before, after = (tiny.score(x, position=position).value.values for x in (items, edited))
    unit = np.median(np.abs(before[:16] - before[16:]))
    assert ev.tables["unit"]["median_margin"][0] == pytest.approx(unit, rel=1e-5)
    lineages = np.concatenate([small.lineages, small.lineages])
    expected = cluster_t("effect.polite.end", (after - before) / unit, lineages)
    found = ev.interval("effect.polite.end")
    np.testing.assert_allclose(
        [found.estimate, found.low, found.high],
        [expected.estimate, expected.low, expected.high],
        rtol=1e-3, atol=1e-4,
    )  # fmt: skip
    assert ev.provenance.cost_forwards == 32 + len({str(x) for x in edited})


def test_a_row_of_several_is_measured_by_name(small):
    model, tokenizer = _tiny_sequence_classifier(seed=0, num_labels=3)
    signal = wrap_hf_model(model, tokenizer, conformance_quickcheck=False)
    mean = bias_battery(signal, small, edits=["emoji"])
    assert mean.subject.notes["readout_note"] == "legacy row mean of 3 objectives"
    row = bias_battery(signal, small, edits=["emoji"], readout="criterion:1")
    alone = bias_battery(with_head(rl.from_tiny(0), signal.head()[0][1]), small, edits=["emoji"])
    assert row.subject.readout == "criterion:1"
    np.testing.assert_allclose(row.value, alone.value, atol=1e-3)
    assert np.abs(mean.value[0] - row.value[0]).max() > 0.01


def test_scale_shift_and_coordinates_of_the_signal_do_not_matter(tiny, small):
    edits = ["flattery", "trimmed", "wrong_belief"]
    plain = bias_battery(tiny, small, edits=edits)
    scaled = with_head(tiny, 30 * tiny.head()[0][0])
    # The heads are other draws in other coordinates, so only what is measured is the same.
    for other, rows in ((scaled, slice(None)), (make_gauge_twin(tiny), slice(0, 3))):
        found = bias_battery(other, small, edits=edits)
        np.testing.assert_allclose(found.value[rows], plain.value[rows], atol=2e-3)


def test_swapping_sides_changes_nothing(tiny, small):
    swapped = [(p.chosen.prompt_text, p.rejected.response, p.chosen.response) for p in small]
    plain = [(p.chosen.prompt_text, p.chosen.response, p.rejected.response) for p in small]
    one, other = (bias_battery(tiny, x, edits=["emoji", "bold"]) for x in (plain, swapped))
    np.testing.assert_allclose(one.value, other.value, atol=1e-5)


def test_what_makes_an_item_too_long_is_counted(tiny, small):
    long = Edit("padded", "length", "end", "padding", "all", lambda p, s: p.text + " so" * 300)
    some = Edit("padded", "length", "start", "padding", "all",
                lambda p, s: " so" * (300 if len(p.text) % 2 else 3) + p.text)  # fmt: skip
    table = bias_battery(tiny, small, edits=[long, some, "bold.start"]).tables["effects"]
    table = table.set_index("edit")
    assert table.loc["padded.end", ["n", "too_long"]].tolist() == [0, 32]
    assert table.loc["padded.end", "note"] == "it applies nowhere"
    assert np.isnan(table.loc["padded.end", "threshold"])
    assert 0 < table.loc["padded.start", "too_long"] == 32 - table.loc["padded.start", "n"] < 32


def test_a_template_that_drops_the_end_shows_no_effect_and_says_why(small, tiny):
    template = "{% for m in messages %}{{ m['content'] | trim }}\n{% endfor %}"
    signal = wrap_hf_model(tiny.trunk.model, tiny.encoder.tokenizer, template=template)
    table = bias_battery(signal, small, edits=["ending", "bold"]).tables["effects"]
    row = table.set_index("edit").loc["trailing_space.end"]
    assert (row["same_ids"], row["n"], row["mean"], row["named"]) == (32, 32, 0.0, False)
    assert row["direction"] == "not told from zero"
    assert np.isnan(row["threshold"])


def test_choice_of_edits(tiny, small):
    own = Edit("shout", "tone", "whole", "capital letters", "words", lambda p, s: p.text.upper())
    labels = bias_battery(tiny, small, edits=[own, "sycophancy", "trimmed.end"]).value["edit"]
    assert list(labels.values) == ["trimmed.end", "shout", "wrong_belief"]


def test_refusals(tiny, small):
    with pytest.raises(DataError, match="heads=199: .*200 or more"):
        bias_battery(tiny, small, heads=199)
    for seed in (-1, 0.5):
        with pytest.raises(DataError, match=f"seed={seed}: give a whole number, 0 or more"):
            bias_battery(tiny, small, seed=seed)
    with pytest.raises(DataError, match="no edit 'colour'"):
        bias_battery(tiny, small, edits=["colour"])
    with pytest.raises(DataError, match="edits is empty"):
        bias_battery(tiny, small, edits=[])
    with pytest.raises(DataError, match="give a list of names or edits"):
        bias_battery(tiny, small, edits="bold")
    with pytest.raises(DataError, match=r"two edits have the label 'bold\.end'"):
        bias_battery(tiny, small, edits=["noise", *edits_named(["bold.end"]), "bold"])
    with pytest.raises(
        DataError, match=r"max_responses=1: give a whole number, 2 or more \(a pair has two\)"
    ):
        bias_battery(tiny, small, max_responses=1)
    with pytest.raises(DataError, match="do not say where the response begins"):
        bias_battery(tiny, [{"text_chosen": "a", "text_rejected": "b"}])
    with pytest.raises(NumericsError, match=r"median \|margin\| of these 2 pairs is 0"):
        bias_battery(tiny, [("p", "same", "same"), ("q", "same", "same")], edits=["emoji"])
