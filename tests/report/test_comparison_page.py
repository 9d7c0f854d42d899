"""The page of two models: its numbers are the evidence's, and it says what was planted in them."""

from __future__ import annotations

import dataclasses
import html
import math
import re
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest
from comparison_kit import answers, block_of, page_of, plain, planted_pair, praised_pairs, sections
from families import make_model, make_tokenizer

import reward_lens as rl
from reward_lens.assets import asset
from reward_lens.comparing import _called, compare_models
from reward_lens.errors import DataError
from reward_lens.report.comparison_biases import SharedEdits, alike
from reward_lens.report.numbers import Numbers, resolve, shown

_DATA = re.compile(r'<data value="([^"|]*)\|([^"]*)\|([^"|]*)">([^<]*)</data>')


@pytest.fixture(scope="module")
def pairs():
    return praised_pairs()


@pytest.fixture(scope="module")
def planted():
    return planted_pair()


@pytest.fixture(scope="module")
def itself(pairs):
    signal = rl.load_signal(asset("demo/model"))
    return compare_models(signal, signal, pairs.sample(12), biases=0)


def test_every_number_of_the_page_is_the_evidences(planted):
    text = page_of(planted)
    numbers = _DATA.findall(text)
    assert len(numbers) > 350
    assert {name for name, *_ in numbers} == {
        "compare", "lens_a", "lens_b", "bias_battery_a", "bias_battery_b", "style_accuracy_a",
        "style_accuracy_b",
    }  # fmt: skip
    for name, path, form, said in numbers:
        value = resolve(planted[name], html.unescape(path))
        assert html.unescape(said) == shown(value, form), (name, path)


def test_what_was_planted_is_named_for_the_model_that_has_it(planted):
    tables = [planted[f"bias_battery_{x}"].tables["effects"].set_index("edit") for x in "ab"]
    places = [f"flattery.{place}" for place in ("start", "middle", "end")]
    assert tables[1].loc[places, "named"].all()
    assert not tables[0].loc[places, "named"].all()
    assert (tables[1].loc[places, "mean"] > 2 * tables[0].loc[places, "mean"]).all()
    both, _, only_b = answers(planted)["Are they biased alike?"].partition("Only in b: ")
    at, size = re.match(
        r"flattery of the user at the (\w+) raises the score by (\S+)", only_b
    ).groups()
    assert size == f"{tables[1].loc[f'flattery.{at}', 'mean']:+.2f}"
    assert not tables[0].loc[f"flattery.{at}", "named"]
    at, *sizes = re.search(
        r"restating at the (\w+) raises the score by (\S+) \(a\), (\S+) \(b\)", both
    ).groups()
    assert sizes == [f"{t.loc[f'restated.{at}', 'mean']:+.2f}" for t in tables]
    assert all(t.loc[f"restated.{at}", "named"] for t in tables)


def test_the_table_of_biases_says_in_which_model_each_is_named(planted):
    found = [planted[f"bias_battery_{x}"].tables["effects"].set_index("edit") for x in "ab"]
    rows = [[plain(c) for c in r] for r in sections(planted)["biases"].tables[0].rows]
    assert {row[1] for row in rows} >= {"both", "neither"}
    for edit, verdict, *numbers in rows:
        named = tuple(bool(t.loc[edit, "named"]) for t in found)
        assert verdict.partition(",")[0] == {
            (True, True): "both", (True, False): "a", (False, True): "b", (False, False): "neither",
        }[named]  # fmt: skip
        for t, part in zip(found, (numbers[:5], numbers[5:]), strict=True):
            forms = {"mean": "+.2f", "low": "+.2f", "high": "+.2f", "threshold": ".2f", "n": "d"}
            assert part == [shown(t.loc[edit, c], form) for c, form in forms.items()]
    neither = sum(row[1] == "neither" for row in rows)
    said = answers(planted)["Are they biased alike?"]
    assert f"In neither: {neither} of {len(rows)} edits." in said


def with_effects(e, change):
    """The evidence of a battery with another table of effects."""
    table = change(e.tables["effects"])
    return dataclasses.replace(e, tables={**dict(e.tables), "effects": table})


def test_one_edit_that_moves_both_apart_is_said_to_be_opposite(planted):
    def turned(table):
        at = table["edit"] == "restated.end"
        table.loc[at, ["mean", "low", "high"]] = [-3.0, -4.0, -2.0]
        table.loc[at, "named"] = True
        return table

    evidence = dict(planted.evidence)
    evidence["bias_battery_b"] = with_effects(evidence["bias_battery_b"], turned)
    said = plain(alike(evidence, Numbers(evidence), most=100))
    mean = planted["bias_battery_a"].tables["effects"].set_index("edit").loc["restated.end", "mean"]
    part = said.partition("Named in both, in opposite directions: ")[2]
    assert part.startswith(f"restated.end by {mean:+.2f} (a), -3.00 (b)")


def test_where_nothing_is_named_that_proves_no_absence(planted):
    def none(table):
        return table.assign(named=False)

    evidence = {
        k: with_effects(e, none) if k.startswith("bias_battery") else e
        for k, e in planted.evidence.items()
    }
    said = plain(alike(evidence, Numbers(evidence)))
    edits = len(evidence["bias_battery_a"].tables["effects"])
    assert said.startswith(f"No bias is named in either, of {edits} edits tried:")
    assert "That proves no absence." in said


def test_only_edits_that_both_have_are_set_side_by_side(planted):
    def fewer(table):
        return table[table["edit"] != "restated.end"].reset_index(drop=True)

    evidence = dict(planted.evidence)
    evidence["bias_battery_b"] = with_effects(evidence["bias_battery_b"], fewer)
    shared = SharedEdits.of((evidence["bias_battery_a"], evidence["bias_battery_b"]))
    assert shared.alone == (["restated.end"], [])
    tables = sections(planted, **evidence)["biases"].tables
    assert "restated.end" not in {plain(r[0]) for r in tables[0].rows}
    assert tables[1].rows == [["restated.end", "a"]]


def test_a_model_agrees_with_itself_in_everything(itself):
    said = answers(itself)
    assert said["Do they agree?"].startswith("Both prefer the same side on 100.0% (95 % interval ")
    assert "correlate by 1.00 (Pearson) and 1.00 (Spearman)" in said["Do they agree?"]
    assert "effective angle is 0.00 radians" in said["Do they agree?"]
    assert said["Which is more often right?"].startswith(
        "Neither: on no pair is one of them right and the other not."
    )
    assert said["Where do they differ most?"].startswith("In accuracy on no subset.")
    block = block_of(page_of(itself))
    assert {p["n"]["agreement"] for p in block["pairs"]} <= {"agree"}
    assert all(p["r"]["apart"] == 0 for p in block["pairs"])
    assert "0 of the 0 flips" in block["about"][0]
    checks = len(itself["conformance_a"].tables["checks"])
    yes = f"yes, {checks} of {checks} conformance checks hold"
    assert said["Are both loaded right?"] == f"a: {yes}; b: {yes}."
    assert "biases" not in sections(itself)


def test_the_first_screen_names_the_subset_that_differs_most_surely(planted):
    table = planted["compare"].tables["agreement"]
    assert table["group"][table["p"][1:].idxmin()] == "praised"
    row = table[table["group"] == "praised"].iloc[0]
    said = answers(planted)["Where do they differ most?"]
    nearly = "" if row["p_adjusted"] < 0.05 else "no subset for sure; most nearly on "
    assert said.startswith(
        f"In accuracy on {nearly}praised: a {row['accuracy_a']:.0%}, b {row['accuracy_b']:.0%} "
        f"(n = {row['pairs']} pairs; p = {row['p_adjusted']:.2g} after Holm over "
        f"{len(table) - 1} subsets). They agree least on praised: on {row['agreement']:.0%} "
    )
    right = answers(planted)["Which is more often right?"]
    first = table.iloc[0]
    assert right.startswith("Not told apart." if first["p"] >= 0.05 else "Model ")
    assert f"exact p = {first['p']:.2g}. Pairs that only a is right on: {first['only_a']}" in right


def test_the_opposite_of_a_model_flips_every_pair(pairs):
    signals = []
    for sign in (1.0, -1.0):
        model = make_model("llama")
        model.score.weight.data *= sign
        signals.append(rl.wrap_hf_model(model, make_tokenizer(), conformance_quickcheck=False))
    found = compare_models(*signals, pairs.sample(12), conformance=False, depth=False)
    said = answers(found)
    assert "on 0.0% (95 % interval" in said["Do they agree?"]
    assert "angle is 3.14 radians" in said["Do they agree?"]
    assert said["Are both loaded right?"] == "a: not checked; b: not checked."
    assert said["Does the preference form at the same depth?"] == (
        "Not measured on both (a: not asked for; b: not asked for)."
    )
    block = block_of(page_of(found))
    assert {p["n"]["agreement"] for p in block["pairs"]} == {"flip"}
    sure = [p["r"]["flip"] for p in block["pairs"]]
    for pair in block["pairs"]:
        assert pair["r"]["a"] == pytest.approx(-pair["r"]["b"], rel=1e-5)
        assert pair["r"]["flip"] == abs(pair["r"]["a"]) or pair["r"]["flip"] > 0
    assert sure == sorted(sure, reverse=True)
    assert "depth" not in sections(found)


def test_the_margins_are_drawn_with_flips_as_crosses(planted):
    section = sections(planted)["margins"]
    root = ET.fromstring(str(section.figures[0].svg))
    table = planted["compare"].tables["pairs"]
    flips = int((table["agreement"] == "flip").sum())
    assert 0 < flips < len(table)
    crosses = next(p for p in root.iter("path") if p.get("class") == "mark").get("d")
    assert crosses.count("M") == flips
    dots = next(p for p in root.iter("path") if p.get("class") == "dots small").get("d")
    assert dots.count("M") == len(table) - flips + 1  # and the legend's
    labels = [t.text for t in root.iter("text")]
    assert f"flip ({flips})" in labels
    assert "margin of a (within-prompt SDs)" in labels
    assert "within-prompt SD units" in section.figures[0].labels


def test_depth_profiles_are_those_of_the_evidence(planted):
    section = sections(planted)["depth"]
    frozen, applied = (ET.fromstring(str(f.svg)) for f in section.figures)
    table = planted["compare"].tables["depth"]
    for root in (frozen, applied):
        lines = [p for p in root.iter("polyline") if p.get("class", "").startswith("line")]
        assert [len(p.get("points").split()) for p in lines] == [
            int((table["signal"] == x).sum()) for x in "ab"
        ]
    rows = [[plain(c) for c in r] for r in section.tables[0].rows]
    assert [r[:2] for r in rows] == [
        [x, f"norm {reading}"] for x in "ab" for reading in ("frozen", "applied")
    ]
    summary = planted["lens_b"].tables["crystallization"]
    assert rows[2][3:5] == [f"{summary[c][0]:g}" for c in ("median_first", "median_stable")]


def test_every_figure_says_how_it_was_measured(planted):
    for section in sections(planted).values():
        drawn = [*section.figures, *(f for p in section.parts for f in p.figures)]
        for figure in drawn:
            tier, gauge, units, n, intervals, *_, trust = figure.labels.split(" · ")
            assert tier in ("observational", "vulnerability")
            assert gauge == "gauge invariant"
            assert units.endswith(" units")
            assert n.startswith("n = ")
            assert "interval" in intervals
            assert trust == "trust exploratory"
            assert figure.names
            assert set(figure.names) <= set(planted.evidence)


def test_a_failed_check_is_on_the_first_screen(itself):
    e = itself["conformance_b"]
    checks = e.tables["checks"]
    checks.loc[3, "passed"] = False
    evidence = {
        **itself.evidence,
        "conformance_b": dataclasses.replace(e, tables={"checks": checks}),
    }
    failed = dataclasses.replace(itself, evidence=evidence)
    assert not failed.passed
    assert failed.failed_checks == {"a": [], "b": ["determinism"]}
    said = answers(failed)["Are both loaded right?"]
    assert f"b: no, {len(checks) - 1} of {len(checks)} conformance checks hold" in said
    assert "(failed: determinism)" in said
    assert checks["meaning"][3] in plain(page_of(failed))


def test_a_row_mean_is_said_with_its_model(pairs):
    many = make_model("llama", num_labels=3, id2label={k: str(k) for k in range(3)})
    signals = [
        rl.wrap_hf_model(m, make_tokenizer(), conformance_quickcheck=False)
        for m in (make_model("llama"), many)
    ]
    found = compare_models(*signals, pairs.sample(8), conformance=False, depth=False)
    section = sections(found)["agreement"]
    assert all("b: legacy row mean of 3 objectives" in f.labels for f in section.figures)
    assert "reward (legacy row mean of 3 objectives)" in page_of(found)


def test_rendered_text_can_be_compared_but_not_edited(pairs):
    signal = rl.load_signal(asset("demo/model"))
    rows = [
        {"id": str(k), "text_chosen": f"one </script> {k}", "text_rejected": f"two <b> {k * k}"}
        for k in range(6)
    ]
    found = compare_models(signal, signal, rows, conformance=False, depth=False, biases=4)
    assert "rendered text" in found.not_offered["bias_battery_a"]
    assert found.passed
    text = page_of(found, missing=found.not_offered)
    assert "rendered text" in text
    assert {p["t"]["chosen"][0] for p in block_of(text)["pairs"]} == {
        r["text_chosen"] for r in rows
    }


def test_a_model_without_preferences_has_no_scale_and_that_is_said(pairs):
    model = make_model("llama")
    model.score.weight.data.zero_()
    flat = rl.wrap_hf_model(model, make_tokenizer(), conformance_quickcheck=False)
    other = rl.wrap_hf_model(make_model("llama"), make_tokenizer(), conformance_quickcheck=False)
    found = compare_models(other, flat, pairs.sample(8), conformance=False, depth=True, biases=2)
    assert sections(found)["margins"].figures == []
    assert "no such scale" in plain(sections(found)["margins"].text[0])
    assert "median |margin|" in found.missing["bias_battery_b"]
    assert not found.passed
    block = block_of(page_of(found))
    assert {p["n"]["b"] for p in block["pairs"]} == {"–"}
    assert {p["r"]["flip"] for p in block["pairs"]} == {None}
    assert all(math.isfinite(p["r"]["a"]) for p in block["pairs"])


def test_models_of_one_name_are_told_apart_by_where_they_lie():
    def called(one, other):
        return _called(*(SimpleNamespace(meta=SimpleNamespace(source=s)) for s in (one, other)))

    assert called("runs/a/last", "org/model") == ("last", "model")
    assert called("runs/a/last", "runs/b/last") == ("a/last", "b/last")
    assert called("runs/a/last", "last") == ("a/last", "last")
    assert called("x/last", "x/last") == ("last", "last")


def test_a_store_keeps_what_was_measured_and_edits_are_not_scored_again(tmp_path):
    signal = rl.from_tiny()
    given = [(f"q{k}", f"It is {k}. That is so.", f"No. It is not {k}.") for k in range(12)]
    options = {"conformance": False, "depth": False, "biases": 2}
    with rl.EvidenceStore(tmp_path / "s.db") as store:
        first = compare_models(signal, signal, given, store=store, **options)
        assert first.resumed == ("bias_battery_b", "style_accuracy_b")  # of the same model
        assert all(e.id in store for e in first.evidence.values())
        again = compare_models(signal, signal, given, store=store, **options)
        assert len(again.resumed) == 4
        assert "Trust, and why" in page_of(again)
    with pytest.raises(DataError, match="biases=-1"):
        compare_models(signal, signal, given, biases=-1)
