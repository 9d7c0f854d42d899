"""Every instrument on every answer key: the value on paper, and the failures that must happen."""

from __future__ import annotations

import functools

import numpy as np
import paper
import pytest
from keys import (
    EVERYWHERE,
    INSTRUMENTS,
    PATHS,
    TABLE,
    TOLERANCE,
    Row,
    as_markdown,
    made,
    measured,
    mistakes,
)
from scipy.stats import spearmanr

from reward_lens.instruments.dose_response import concept_dose_response
from reward_lens.instruments.gradient_patching import attribution_patching
from reward_lens.instruments.layer_lens import lens
from reward_lens.instruments.paths import path_effects
from reward_lens.instruments.token_maps import token_map
from reward_lens.instruments.token_sources import source_attribution
from reward_lens.instruments.view_gap import compare_views
from reward_lens.organisms import (
    ANSWER_KEYS,
    planted_head,
    planted_neuron,
    self_repair,
    spread_rule,
)

ALL = [*INSTRUMENTS, *EVERYWHERE]
LABELS = [i.label for i in ALL]


def found_on(label, name, form="rule"):
    return next(i for i in ALL if i.label == label).run(made(name, form))


def wrong(label, name, form="rule", shift=0.0):
    instrument = next(i for i in ALL if i.label == label)
    names, found = found_on(label, name, form)
    asked = [f"{n}{instrument.suffix}" for n in names]
    expected = made(name, form).expected(instrument.reading, asked) + shift
    return mistakes(found, expected, names, TOLERANCE)


@pytest.mark.parametrize("name", ANSWER_KEYS)
@pytest.mark.parametrize("label", LABELS)
def test_an_instrument_reads_what_is_on_paper(label, name):
    assert not wrong(label, name)


@pytest.mark.parametrize("form", ["null", "not tied"])
@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_instruments_find_nothing_in_a_null(name, form):
    key = made(name, form)
    # The direct path of a component is its attribution; of nothing it is nothing.
    for instrument in (i for i in INSTRUMENTS if "path" not in i.label):
        assert not wrong(instrument.label, name, form), instrument.label
        names, found = found_on(instrument.label, name, form)
        planted = [names.index(n) for n in key.planted]
        assert np.abs(found[:, planted]).max() <= TOLERANCE, instrument.label


@pytest.mark.parametrize("builder", [planted_neuron, planted_head, spread_rule, self_repair])
def test_what_is_found_is_the_dose(builder):
    key = builder(-2.5, n=2)
    for instrument in (i for i in INSTRUMENTS if "path" not in i.label):
        names, found = instrument.run(key)
        said = mistakes(found, key.expected(instrument.reading, names), names, 2.5 * TOLERANCE)
        assert not said, instrument.label


@pytest.mark.parametrize("row", TABLE, ids=lambda r: f"{r.key}, {r.component}")
def test_the_table_holds_and_what_must_fail_fails(row):
    for instrument, reads, fails in zip(INSTRUMENTS, row.reads, row.fails, strict=True):
        names, found = found_on(instrument.label, row.key)
        value = found[0, names.index(row.component)]
        if not np.isnan(reads):
            assert value == pytest.approx(reads, abs=TOLERANCE), instrument.label
            assert (abs(value - row.does) > 0.05) == (fails == "x"), instrument.label


def test_the_table_has_every_key_and_its_planted_components():
    assert {r.key for r in TABLE} == set(ANSWER_KEYS)
    for name in ("neuron", "head", "two hops", "saturated softmax", "self-repair"):
        parts = {n for n in made(name).planted if not n.endswith("attn_out")}
        assert parts <= {r.component for r in TABLE if r.key == name}
    text = as_markdown()
    assert len(text.splitlines()) == 2 + len(TABLE) + 3 + len(PATHS)
    assert "| two hops | `L0.H1` | 1 | 0 ✗ | 1 | 1 | 1 | 2 ✗ | 0 ✗ | 0 ✗ | 0 ✗ |" in text


@pytest.mark.parametrize("label", LABELS)
def test_a_truth_that_is_shifted_is_not_read(label):
    """The tests above can fail: a hundredth off, every component that has a value is told."""
    names, _ = found_on(label, "two hops")
    known = [n for n in names if not (n == "embed" and "zero" in label)]
    assert set(wrong(label, "two hops", shift=0.01)) == set(known)


def test_a_row_that_claims_a_failure_that_does_not_happen_is_told():
    row = next(r for r in TABLE if r.key == "two hops" and r.component == "L2.mlp_out")
    with pytest.raises(AssertionError, match="attribution"):
        test_the_table_holds_and_what_must_fail_fails(
            Row(row.key, row.component, row.does, row.reads, "x" + row.fails[1:])
        )


@functools.cache
def paths_on(name):
    key = made(name)
    senders = dict.fromkeys(["embed", *key.planted[:3], "L0.mlp_out"])
    heads = {*[n for n in key.planted if ".H" in n][:2], "L1.H0"}
    layers = range(key.signal.meta.n_layers)
    receivers = [f"L{k}.{w}_in" for k in layers for w in ("attn", "mlp")]
    receivers += [f"{h}{p}" for h in sorted(heads) for p in ("", ".q", ".k", ".v")]
    values = {}
    for sender in senders:
        after = [r for r in receivers if comes_after(r, sender)]
        ev = path_effects(key.signal, key.pairs, senders=sender, receivers=[*after, "readout"])
        for direction in ("noise", "denoise"):
            part = ev.value.sel(quantity="effect", direction=direction, sender=sender)
            for r in part["receiver"].values:
                values[direction, f"{sender} -> {r}"] = part.sel(receiver=r).values
    return values


def comes_after(receiver, sender):
    if sender == "embed":
        return True
    mine, its = int(sender[1]), int(receiver[1])
    return its > mine or (its == mine and "mlp_in" in receiver and "mlp" not in sender)


@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_every_path_has_its_value_on_paper(name):
    values = paths_on(name)
    for direction in ("noise", "denoise"):
        names = [n for d, n in values if d == direction]
        found = np.stack([values[direction, n] for n in names], axis=1)
        expected = made(name).expected(f"{direction} path", names)
        assert not mistakes(found, expected, names, TOLERANCE)


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_paths_written_out(path):
    name, sender, receiver = path
    for direction, value in zip(("noise", "denoise"), PATHS[path], strict=True):
        found = paths_on(name)[direction, f"{sender} -> {receiver}"][0]
        assert found == pytest.approx(value, abs=TOLERANCE)


@pytest.mark.parametrize("name", ["head", "two hops", "self-repair"])
def test_paths_from_the_embedding_at_all_tokens(name):
    key = made(name)
    head = next(n for n in key.planted if ".H" in n)
    receivers = [f"{head}{p}" for p in ("", ".q", ".k", ".v")]
    ev = path_effects(key.signal, key.pairs, senders="embed", receivers=receivers, positions="all")
    for direction in ("noise", "denoise"):
        found = ev.value.sel(quantity="effect", direction=direction, sender="embed")
        names = [f"embed -> {r}" for r in receivers]
        expected = key.expected(f"{direction} path everywhere", names)
        assert not mistakes(found.values, expected, names, TOLERANCE)


@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_sides_of_different_lengths(name):
    key = ANSWER_KEYS[name](n=4, lengths="different")
    for instrument in (
        i for i in INSTRUMENTS if i.label in ("patch_grid noise", "attribution_patching denoise")
    ):
        names, found = instrument.run(key)
        assert not mistakes(found, key.expected(instrument.reading, names), names, TOLERANCE)


def paper_agreement(key, first, second, names):
    """Mean over pairs of Spearman's rank correlation of two readings on paper."""
    a, b = (key.expected(reading, names) for reading in (first, second))
    return np.mean([spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)])


@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_agreement_of_the_first_order_with_the_exact_grid(name):
    key = made(name)
    ev = measured(attribution_patching, key, sample=4)
    names = [str(n) for n in ev.value["component"].values]
    table = ev.tables["agreement"].set_index("direction")
    for direction in ("noise", "denoise"):
        exact = key.expected(direction, names)
        gap = np.abs(key.expected(f"gradient {direction}", names) - exact).max()
        said = table.loc[direction, "worst_gap"]
        assert said == pytest.approx(gap / np.abs(exact).max(), abs=TOLERANCE)
        assert (said < TOLERANCE) == (name in ("linear", "head", "spread"))
        if name == "saturated softmax":
            assert table.loc[direction, "rank_correlation"] < 0.8


@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_ranks_agree_as_on_paper(name):
    key = made(name)
    first = measured(attribution_patching, key, sample=4)
    names = [str(n) for n in first.value["component"].values]
    table = first.tables["agreement"].set_index("direction")["rank_correlation"]
    views = measured(compare_views, key).tables["agreement"]
    views = views[views["subset"] == "all pairs"].set_index("direction")["mean"]
    for direction in ("noise", "denoise"):
        expected = paper_agreement(key, f"gradient {direction}", direction, names)
        assert table[direction] == pytest.approx(expected, abs=1e-6)
        expected = paper_agreement(key, "attribution", direction, names)
        assert views[direction] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_the_two_views_side_by_side(name):
    key = made(name)
    table = measured(compare_views, key).tables["components"]
    for direction, part in table.groupby("direction"):
        names = list(part["component"])
        for column, reading in (("attribution", "attribution"), ("patching", direction)):
            expected = key.expected(reading, names).mean(0)
            np.testing.assert_allclose(part[column], expected, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "component", "expected"),
    [("two hops", "L0.attn_out", 1), ("self-repair", "L0.attn_out", 0.25),
     ("saturated softmax", "L0.mlp_out", 0)],
)  # fmt: skip
def test_gradients_along_the_way_mend_a_kink_and_not_a_saturated_softmax(name, component, expected):
    key = made(name)
    value = measured(attribution_patching, key, steps=8, sample=0).value
    found = value.sel(quantity="estimate", component=component)
    np.testing.assert_allclose(found, expected, atol=5e-3)


@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_the_lens_adds_up_what_is_written(name):
    key = made(name)
    value = measured(lens, key).value
    layers = key.signal.meta.n_layers
    writes = key.expected(
        "attribution", ["embed", *(f"L{k}.{w}_out" for k in range(layers) for w in ("attn", "mlp"))]
    )
    curve = np.cumsum(writes, axis=1)[:, ::2]
    for reading in ("frozen", "applied"):  # every norm divides by the same number here
        np.testing.assert_allclose(value.sel(reading=reading), curve, atol=TOLERANCE)


def test_the_depth_at_which_a_preference_forms():
    crossings = measured(lens, made("two hops")).tables["crystallization"]
    assert list(crossings["median_first"]) == [3, 3]
    crossings = measured(lens, made("head")).tables["crystallization"]
    assert list(crossings["median_first"]) == [2, 2]


@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_sources_of_attention(name):
    key = made(name)
    value = measured(source_attribution, key).value
    for side, items in (("chosen", key.pairs.chosen), ("rejected", key.pairs.rejected)):
        for k, item in enumerate(items):
            expected = paper.sources(name, paper.words_of(key, item))
            found = value.sel(side=side).isel(pair=k).values
            np.testing.assert_allclose(found, expected[: len(found)], atol=TOLERANCE)


@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_token_maps(name):
    key = made(name)
    methods = ("prefix", "gradient", "leave_one_out") + ("integrated",) * (name == "linear")
    ev = measured(token_map, key, methods=methods)
    for side, items in (("chosen", key.pairs.chosen), ("rejected", key.pairs.rejected)):
        for k, item in enumerate(items):
            words = paper.words_of(key, item)
            found = ev.value.sel(side=side).isel(pair=k)
            expected = {
                "prefix": paper.prefix_changes(name, words),
                "gradient": paper.gradient_times_input(name, words),
                "leave_one_out": paper.left_out(name, words),
            }
            if name == "linear":
                expected["integrated"] = paper.integrated(words)
            for method, values in expected.items():
                np.testing.assert_allclose(found.sel(reading=method), values, atol=TOLERANCE)


@pytest.mark.parametrize("name", ANSWER_KEYS)
def test_doses_of_a_concept(name):
    key = made(name)
    layer, vector = paper.concept(name)
    doses = (-1.0, -0.25, -0.125, 0.0, 0.125, 0.25, 1.0)
    ev = concept_dose_response(
        key.signal, key.pairs, vector, layer=layer, doses=doses, directions=0
    )
    items = [*key.pairs.chosen, *key.pairs.rejected]
    expected = [[paper.score(name, paper.words_of(key, i), d) for i in items] for d in doses]
    np.testing.assert_allclose(ev.value, expected, atol=TOLERANCE)
    slope = ev.tables["slope"].iloc[0]
    within = {"linear": sum(paper.MLP[1:]) + paper.HEAD_SUM[1] / 8, "head": 1, "spread": 1}
    if name in within:
        assert slope["predicted"] == pytest.approx(within[name], abs=TOLERANCE)
    if name == "saturated softmax":  # no gradient passes, and a whole dose turns the head around
        assert slope["predicted"] == pytest.approx(0, abs=TOLERANCE)
        assert np.ptp(ev.value.values, axis=0).max() > 0.8
