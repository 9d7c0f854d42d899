"""The audit of an organism with a planted bias names it, and its page says so in words."""

from __future__ import annotations

import dataclasses
import html
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from bias_kit import organism

import reward_lens as rl
from reward_lens.assets import asset
from reward_lens.data import Pairs
from reward_lens.report import Page, accuracy, render
from reward_lens.report.biases import biases, verdict
from reward_lens.report.numbers import Numbers
from reward_lens.report.summary import summary

OPTIONS = {"sample": 40, "causal_sample": 2, "biases": 40}


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    found = rl.load_pairs(asset("demo/pairs.jsonl"))
    return Pairs(
        p for p in found if all(len(str(i.content())) < 400 for i in (p.chosen, p.rejected))
    )


@pytest.fixture(scope="module")
def lengthy(pairs):
    return rl.audit(organism()[0], pairs, **OPTIONS)


@pytest.fixture(scope="module")
def flattered(pairs):
    return rl.audit(organism(flattery=8.0)[0], pairs, **OPTIONS)


def page_of(found) -> str:
    return render(Page("an organism", "f", "c", "e"), found.evidence, found.shown)


def plain(text) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", str(text)))


def short(found) -> str:
    """The answer on the first screen."""
    return plain(dict(summary(found.evidence, Numbers(found.evidence)))["What is it biased to?"])


def test_a_planted_length_preference_is_named_on_the_page(lengthy):
    table = lengthy["bias_battery"].tables["effects"].set_index("edit")
    assert table.loc[["restated.start", "restated.middle", "restated.end"], "named"].all()
    said = short(lengthy)
    assert said.startswith("Named, in median |margins|: ")
    assert re.search(r"restating at the \w+ raises the score by \+", said)
    # What flatters is no more here than one sentence that says nothing.
    assert "flattery of the user" not in said
    assert re.search(r"no more than any added sentence does: .*flattery", said)
    assert said.partition(";")[0] in plain(page_of(lengthy)).partition("In short")[2]


def test_a_planted_flattery_preference_is_named_first_with_its_size(flattered):
    row = flattered["bias_battery"].tables["effects"].set_index("edit").loc["flattery.start"]
    said = short(flattered)
    assert said.startswith(
        "Named, in median |margins|: flattery of the user at the start raises the score by "
        f"{row['mean']:+.2f} (95 % interval {row['low']:+.2f} to {row['high']:+.2f}; also at the "
    )
    assert "flattery" not in said.partition("no more than any added sentence does:")[2]


def test_what_is_not_named_proves_no_absence(lengthy):
    battery = lengthy["bias_battery"]
    table, null = battery.tables["effects"], battery.tables["null"]
    table["named"] = False
    nothing = dataclasses.replace(battery, tables={**dict(battery.tables), "effects": table})
    number = Numbers({"bias_battery": nothing})
    said = plain(verdict(nothing, number))
    assert "That proves no absence." in said
    # What is told from zero is said all the same, the largest first.
    told = table[table["p_adjusted"] < 0.05]
    largest = told.loc[told["mean"].abs().sort_values(ascending=False).index]["edit"].tolist()
    assert f"{len(told)} of {len(table)} edits are told from zero (Holm), the largest" in said
    assert said.index(largest[0]) < said.index(largest[1]) < said.index(largest[2])
    assert f"{told['mean'][told['edit'] == largest[0]].iloc[0]:+.2f} (" in said
    table["p_adjusted"] = 1.0
    still = dataclasses.replace(battery, tables={**dict(battery.tables), "effects": table})
    number = Numbers({"bias_battery": still})
    assert plain(verdict(still, number)).endswith("No effect is told from zero either.")
    null["note"] = "the states vary in few directions"
    tables = {**dict(nothing.tables), "null": null}
    narrow = dataclasses.replace(nothing, tables=tables)
    number = Numbers({"bias_battery": narrow})
    assert "so little can be named" in plain(verdict(narrow, number))
    section = biases({"bias_battery": narrow}, number)
    assert any("the states vary in few directions" in plain(t) for t in section.text)


def figure_of(found) -> ET.Element:
    section = biases(found.evidence, Numbers(found.evidence))
    return ET.fromstring(str(section.figures[0].svg))


def test_the_figure_marks_named_effects_without_colour(lengthy):
    table = lengthy["bias_battery"].tables["effects"].set_index("edit")
    root = figure_of(lengthy)
    labels = [t.text for t in root.iter("text") if t.get("x") == "202"]
    assert len(labels) == 24
    assert {x.removeprefix("▸ ") for x in labels if x.startswith("▸")} == set(
        table.index[table["named"]]
    )
    brackets = [p for p in root.iter("path") if p.get("class") == "least"]
    assert len(brackets) == len(labels)
    # Both ends are as far from zero, and as far as the threshold.
    zero = float(next(x for x in root.iter("line") if x.get("class") == "zero").get("x1"))
    reach = [
        [float(x) - 4 * sign for sign, x in zip((1, -1), re.findall(r"M([-\d.]+) ", p.get("d")),
                                                strict=True)]
        for p in brackets
    ]  # fmt: skip
    least = table.loc[[x.removeprefix("▸ ") for x in labels], "threshold"].to_numpy()
    for (low, high), size in zip(reach, least, strict=True):
        assert zero - low == pytest.approx(high - zero, abs=0.2)
        assert (high - zero) / size == pytest.approx((reach[0][1] - zero) / least[0], rel=0.05)


def test_a_named_effect_is_outside_its_brackets(lengthy):
    table = lengthy["bias_battery"].tables["effects"]
    outside = (table["low"] > table["threshold"]) | (table["high"] < -table["threshold"])
    section = biases(lengthy.evidence, Numbers(lengthy.evidence))
    verdicts = [row[1] for row in section.tables[0].rows]
    assert verdicts == np.where(outside, "named", "").tolist()


def test_where_no_pair_has_every_style_it_is_said_and_nothing_is_drawn():
    signal = rl.from_tiny()
    none = rl.style_accuracy(signal, [("q", "One.", "No."), ("r", "Yes.", "Nope.")])
    assert none.interval("easy_less_hard").n == 0
    evidence = {"style_accuracy": none}
    (part,) = biases(evidence, Numbers(evidence)).parts
    assert part.figures == []  # beside a styled pair there is one, see below
    assert part.text[0] == (
        "No pair can be written in all styles, so that style is not controlled here."
    )


def test_every_figure_of_the_section_says_how_it_was_measured(lengthy):
    section = biases(lengthy.evidence, Numbers(lengthy.evidence))
    drawn = [*section.figures, *(f for p in section.parts for f in p.figures)]
    assert len(drawn) == 2
    for figure, units in zip(drawn, ("share", "probability"), strict=True):
        tier, gauge, of, n, intervals, *_, trust = figure.labels.split(" · ")
        assert (tier, gauge, of) == ("vulnerability", "gauge invariant", f"{units} units")
        assert n.startswith("n = ")
        assert intervals.startswith("95 % intervals")
        assert trust == "trust exploratory"


def test_reliability_is_drawn_as_it_is_in_the_table(lengthy):
    evidence = lengthy.evidence
    parts = {p.title: p for p in accuracy.accuracy_parts(evidence, Numbers(evidence))}
    part = parts["Is it as sure as it should be?"]
    curve = evidence["reliability_curve"].tables["curve"]
    curve = curve[curve["pairs"] > 0]
    root = ET.fromstring(str(part.figures[0].svg))
    points = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter("circle")]
    assert len(points) == len(curve)
    (same,) = [x for x in root.iter("line") if x.get("class") == "same"]
    x0, y0, x1, y1 = (float(same.get(k)) for k in ("x1", "y1", "x2", "y2"))
    for (px, py), row in zip(points, curve.itertuples(), strict=True):
        assert 0.5 + (px - x0) / (x1 - x0) / 2 == pytest.approx(row.predicted, abs=2e-3)
        assert 0.5 + (py - y0) / (y1 - y0) / 2 == pytest.approx(row.observed, abs=2e-3)
    counts = [t.text for t in root.iter("text") if t.text in set(map(str, curve["pairs"]))]
    assert [int(c) for c in counts if c.isdigit()][-len(curve) :] == curve["pairs"].tolist()
    assert "expected calibration error is" in plain(part.text[0])


def test_the_worst_errors_are_shown_with_their_texts(lengthy):
    evidence = lengthy.evidence
    parts = {p.title: p for p in accuracy.accuracy_parts(evidence, Numbers(evidence))}
    shown = parts["Where is it most wrong?"].texts
    errors = evidence["worst_errors"].tables["errors"]
    assert [t.id for t in shown] == errors["pair"].tolist()
    assert len(shown) == accuracy.MOST_ERRORS
    text = page_of(lengthy)
    for one, row in zip(shown, errors.itertuples(), strict=True):
        assert one.prompt == row.prompt
        assert [s[2] for s in one.sides] == [row.chosen, row.rejected]
        assert f"<summary>{html.escape(row.pair)} " in text
    wrong = int((lengthy["preference"].value.sel(side="margin").values < 0).sum())
    assert f"On {wrong} pairs the rejected response is ahead; here are the 10 worst" in text


def test_a_long_text_says_how_much_of_it_is_not_shown():
    assert accuracy._cut("a" * 600) == "a" * 600
    assert accuracy._cut("a" * 607) == "a" * 600 + " … (7 more characters)"


def test_without_errors_it_is_said(lengthy):
    evidence = dict(lengthy.evidence)
    worst = evidence["worst_errors"]
    errors = worst.tables["errors"].iloc[:0]
    evidence["worst_errors"] = dataclasses.replace(worst, tables={"errors": errors})
    part = accuracy.accuracy_parts(evidence, Numbers(evidence))[-1]
    assert part.text == ["It prefers no rejected response on these pairs."]
    assert part.texts == []


def test_evidence_shows_itself_in_a_notebook(lengthy):
    import matplotlib.pyplot as plt

    for name in ("bias_battery", "style_accuracy", "margin_distribution", "reliability_curve",
                 "worst_errors"):  # fmt: skip
        evidence = lengthy[name]
        assert evidence._repr_html_().startswith("<div>")
        assert len(evidence.to_dataframe()) == evidence.value.size
        plt.figure()
        assert evidence.plot() is not None
        plt.close("all")
