"""The page of a real audit: its numbers are the evidence's, and it is one closed file."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from families import make_model, make_tokenizer

import reward_lens as rl
from reward_lens.assets import asset
from reward_lens.evidence import write_jsonl
from reward_lens.report import Page, causal_figures, figures, render, write_page
from reward_lens.report.browser_json import unpacked
from reward_lens.report.numbers import Numbers


@pytest.fixture(scope="module")
def audit():
    signal = rl.load_signal(asset("demo/model"))
    pairs = rl.load_pairs(asset("demo/pairs.jsonl")).sample(60)
    ids = pairs.ids
    options = {"sample": 40, "causal_sample": 24, "biases": 8, "concept": pairs}
    return rl.audit(signal, pairs, parts={"a": ids[:30], "b": ids[30:]}, **options)


@pytest.fixture(scope="module")
def files(audit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    page = Page("<model>", "facts", "reward-lens audit m p", "e.jsonl", ["a note"], {"x": "why"})
    write_page(folder / "page.html", page, audit.evidence, audit.pairs)
    write_jsonl(folder / "e.jsonl", audit.evidence.values())
    return folder


class Spans(html.parser.HTMLParser):
    """Collects traced numbers, links to outside, and text."""

    def __init__(self):
        super().__init__()
        self.numbers, self.outside, self.open = [], [], None

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "table":
            self.table, self.columns = attrs.get("data-of", ""), []
        if tag == "th":
            self.columns.append(attrs.get("data-of", ""))
        if tag == "tr":
            self.row, self.column = attrs.get("data-of", ""), -1
        if tag == "td":
            self.column += 1
        if tag == "data":
            # The rest of its path stands at its table, row and column.
            value = attrs["value"] if "value" in attrs else self.columns[self.column]
            if value.count("|") == 1:
                value = self.table + self.row + value
            name, _, rest = value.partition("|")
            path, _, form = rest.rpartition("|")
            self.open = (name, path, form)
        for name in ("src", "href", "srcset", "action"):
            target = attrs.get(name, "#")
            if not target.startswith(("#", "data:,")):
                self.outside.append(target)
        if tag in ("iframe", "object", "embed"):
            self.outside.append(tag)

    def handle_data(self, data):
        if self.open is not None:
            self.numbers.append((self.open, data))
            self.open = None


def parsed(files):
    spans = Spans()
    spans.feed((files / "page.html").read_text())
    return spans


def from_json(record, path):
    """Look a number up in the raw JSON, without the library."""
    kind, *rest = path.split("/")
    if kind == "interval":
        name, field = "/".join(rest[:-1]), rest[-1]
        return next(i for i in record["uncertainty"] if i["name"] == name)[field]
    columns = record["tables"][rest[0]]
    return next(c for c in columns if c["column"] == rest[2])["data"][int(rest[1])]


def test_every_number_of_the_page_is_the_evidences(files, audit):
    lines = (files / "e.jsonl").read_text().splitlines()
    records = {name: json.loads(line) for name, line in zip(audit, lines, strict=True)}
    numbers = parsed(files).numbers
    assert len(numbers) > 600
    assert {name for (name, _, _), _ in numbers} == set(audit) - {
        "conformance",
        "source_attribution",
        "token_map_causal",  # their numbers are in the data of the pair browser
    }
    for (name, path, form), text in numbers:
        value = from_json(records[name], path)
        value = float(value) if value in ("NaN", "Infinity", "-Infinity") else value
        nan = isinstance(value, float) and math.isnan(value)
        assert text == ("–" if nan else format(value, form)), (name, path)


def test_the_page_is_closed_and_small(files):
    assert parsed(files).outside == []
    assert (files / "page.html").stat().st_size < 500_000
    assert "@import" not in (files / "page.html").read_text()
    assert not list(files.glob("*.part"))


def test_few_pairs_are_all_shown_and_unknown_parts_refused():
    signal = rl.load_signal(asset("demo/model"))
    pairs = rl.load_pairs(asset("demo/pairs.jsonl")).subset("bbq-ambig")[:5]
    audit = rl.audit(signal, pairs)
    assert sorted(audit.shown.ids) == sorted(pairs.ids)
    with pytest.raises(rl.errors.DataError, match="1 of the split's 2 ids are not among the 5"):
        rl.audit(signal, pairs, parts={"a": [pairs.ids[0], "nope"]})


def test_what_users_wrote_is_escaped(files):
    text = (files / "page.html").read_text()
    assert "&lt;model&gt;" in text
    assert "<model>" not in text


def test_the_page_says_what_matters(files, audit):
    text = (files / "page.html").read_text()
    checks = len(audit["conformance"].tables["checks"])
    for part in (
        f"{checks} of {checks} conformance checks hold", "trust exploratory", "gauge invariant",
        "norm frozen", "norm applied", "part=a", "part=b", "a note", "What did not run",
        "read here", "What causes the preference?", "What causes it?",
    ):  # fmt: skip
        assert part in text, part
    block = re.search(r'id="browser-data">(.*?)</script>', text)
    known = {pair["id"] for pair in unpacked(block[1])["pairs"]}
    assert known.issuperset(audit.shown.ids)


def test_a_failed_check_is_on_the_first_screen(audit):
    e = audit["conformance"]
    checks = e.tables["checks"]
    checks.loc[3, "passed"] = False
    failed = dataclasses.replace(e, tables={"checks": checks})
    text = render(Page("m", "f", "c", "e"), {**audit.evidence, "conformance": failed}, audit.pairs)
    said = f"No: {len(checks) - 1} of {len(checks)} conformance checks hold (failed: determinism)."
    assert said in text
    assert ">means</th>" in text
    assert checks["meaning"][3] in text


def test_there_is_no_column_for_failures_where_there_is_none(files):
    assert ">means</th>" not in (files / "page.html").read_text()


def test_where_nothing_was_checked_every_number_is_exploratory(files):
    text = (files / "page.html").read_text()
    assert "Every number here is exploratory: no planted rule has shown" in text
    assert "An audit with --calibrate finds out" in text


def figures_in(files, section):
    text = (files / "page.html").read_text()
    part = text[text.index(f'<section id="{section}">') :].partition("</section>")[0]
    found = []
    for figure in part.split("<figure>")[1:]:
        svg, _, rest = figure.partition("</svg>")
        found.append((ET.fromstring(svg + "</svg>"), rest.partition("</figure>")[0]))
    return found


def labelled(svg):
    return [t.text for t in svg.iter("text")]


def test_every_figure_says_how_it_was_measured(files, audit):
    for section in ("preference", "lens", "attribution", "attribution_heads", "causes"):
        for _, said in figures_in(files, section):
            how = said.partition('class="how">')[2]
            tier = "causal" if section == "causes" else "observational"
            parts = how.partition("<")[0].split(" · ")
            assert parts[0] == tier
            assert parts[1].startswith("gauge ")
            assert parts[2].endswith(" units")
            assert parts[3].startswith("n = ")
            assert "interval" in parts[4]
            assert parts[-1] == "trust exploratory"
            if section == "causes" and "rank correlation" not in how:
                assert parts[5].startswith("run as ")


def test_the_bars_are_the_mean_effects(files, audit):
    svg, _ = figures_in(files, "causes")[0]
    table = audit["patch_grid"].tables["components"]
    both = [table[table["direction"] == d] for d in ("noise", "denoise")]
    means = [v for pair in zip(*(b["mean"] for b in both), strict=True) for v in pair]
    least = 1e-6 * max(map(abs, means))  # below it is rounding
    wanted = ["0" if abs(v) < least else f"{v:.3g}" for v in means]
    numbers = [t for t in svg.iter("text") if t.get("x") == "636"]
    assert [t.text for t in numbers] == wanted
    bars = list(svg.iter("rect"))[2:]  # the first two are the legend's
    widths = [float(r.get("width")) for r in bars]
    values = [abs(float(v)) for pair in zip(*(b["mean"] for b in both), strict=True) for v in pair]
    assert np.corrcoef(widths, values)[0, 1] > 0.999


def test_the_map_of_components_is_the_whole_grid(files, audit):
    svg, said = figures_in(files, "causes")[1]
    assert "in both directions" in said
    table = audit["patch_grid"].tables["components"].set_index(["direction", "component"])
    wanted = [
        table["share_of_margin"][direction, f"L{layer}.{write}_out"]
        for layer in range(4)
        for direction in ("noise", "denoise")
        for write in ("attn", "mlp")
    ]
    cells = [t for t in labelled(svg) if t.lstrip("-").isdigit()]
    assert [int(c) for c in cells] == [round(100 * s) for s in wanted]
    columns = ["attn noise", "mlp noise", "attn denoise", "mlp denoise"]
    assert [t for t in labelled(svg) if t in columns] == columns


@pytest.mark.parametrize("which", [2, 3])
def test_the_map_of_heads_is_the_grid_by_head(files, audit, which):
    svg, said = figures_in(files, "causes")[which]
    direction = ("noise", "denoise")[which - 2]
    assert said.lower().count(direction) == 1
    table = audit["patch_grid_heads"].tables["components"]
    shares = table[table["direction"] == direction]["share_of_margin"].to_numpy()
    cells = [t for t in labelled(svg) if t.lstrip("-").isdigit()]
    assert [int(c) for c in cells] == [round(100 * s) for s in shares]
    filled, outlined = svg.iter("path")
    assert filled.get("d").count("M") == (shares >= 0).sum()
    assert outlined.get("d").count("M") == (shares < 0).sum()


def test_the_map_of_paths_has_a_dash_where_there_is_no_path(files, audit):
    svg, _ = figures_in(files, "causes")[6]
    table = audit["path_effects"].tables["paths"]
    rows = table[table["direction"] == "noise"]
    cells = [t for t in labelled(svg) if t == "–" or t.lstrip("-").isdigit()]
    grid = rows.pivot(index="receiver", columns="sender", values="share_of_margin")
    # A receiver that no sender reaches has no row.
    reached = [r for r in rows["receiver"].unique() if grid.loc[r].notna().any()]
    wanted = grid.loc[reached, rows["sender"].unique()].to_numpy().ravel()
    assert 0 < np.isnan(wanted).sum() < len(wanted)
    assert cells == ["–" if np.isnan(s) else str(round(100 * s)) for s in wanted]


def test_the_views_are_drawn_against_each_other(files, audit):
    svg, _ = figures_in(files, "causes")[4]
    assert "attribution, observational (mean, reward)" in labelled(svg)
    assert "patching, causal (mean, reward)" in labelled(svg)
    table = audit["compare_views"].tables["components"]
    for marks in svg.iter("path"):
        assert marks.get("d").count("M") == table["component"].nunique() + 1  # and the legend's
    text = (files / "page.html").read_text()
    assert "Mean rank correlation of the two views over the components of a pair: noise" in text


def test_what_it_cost_is_on_the_page(files, audit):
    text = (files / "page.html").read_text()
    assert f"What it cost: {audit.forwards:.0f} forwards of one item" in text
    cost = {name: audit[name].provenance.cost_forwards for name in audit}
    edited = cost["bias_battery"] + cost["style_accuracy"]
    tokens = cost["token_map"] + cost["token_map_causal"] + cost["source_attribution"]
    # With the concept; the patches are tokens, not forwards.
    assert audit.forwards - edited - tokens < 2.6 * (2 * 60 + 3 * 2 * 40)
    assert edited < 100 * 8
    # A token map by gradient is a backward too, and 400 tokens are left out.
    assert tokens < 400 + (2 * 2 + 2 * 4) * len(audit.shown)


def test_the_row_mean_is_said_on_page_and_receipt():
    signal = rl.wrap_hf_model(
        make_model("llama", num_labels=3, id2label={k: str(k) for k in range(3)}), make_tokenizer()
    )
    audit = rl.audit(signal, [(f"q{k}", f"yes {k}", f"no {k}") for k in range(6)])
    text = render(Page("m", "f", "c", "e"), audit.evidence, audit.pairs)
    assert text.count("legacy row mean of 3 objectives") > 6
    assert "legacy row mean of 3 objectives" in audit["lens"].receipt()


def test_without_an_instrument_the_page_still_stands(audit):
    kept = {k: e for k, e in audit.evidence.items() if k in ("conformance", "preference")}
    text = render(Page("m", "f", "c", "e", missing={"lens": "no blocks"}), kept, audit.pairs)
    assert "no blocks" in text
    assert 'id="lens"' not in text


def test_a_number_that_is_not_there_is_refused(audit):
    number = Numbers(audit.evidence)
    for path in ("table/accuracy/0/nope", "interval/nope/low", "value/1"):
        with pytest.raises(rl.errors.EvidenceError):
            number("preference", path)


@pytest.mark.parametrize(
    "values", [[0.0, 1.0], [-3e-9, 2e-9], [5.0], [np.nan, 1.0], [1e6, -1e6], [0.0]]
)
def test_figures_are_well_formed_whatever_the_numbers(values):
    x = np.arange(len(values), dtype=float)
    y = np.array(values)
    finite = np.nan_to_num(y)
    for svg in (
        figures.curves([figures.Curve("<c>", x, finite, y, y)], "x", "y", "t"),
        figures.scatter(x, finite, "x", "y", "t"),
        figures.histogram(finite, "x", "t"),
        figures.rows([figures.Row("<r>", float(v)) for v in finite], "x", "t"),
        causal_figures.paired_bars(*[[figures.Row("<r>", float(v)) for v in y]] * 2,
                                   ("a", "b"), "x", "t"),
        causal_figures.square_map(y[None], ["<r>"], ["<c>"] * len(y), "t"),
        causal_figures.views(["<c>"] * len(y), [causal_figures.View("v", x, y)] * 2, "x", "y", "t"),
    ):  # fmt: skip
        root = ET.fromstring(str(svg))
        assert root.attrib["role"] == "img"
        assert root.find("title").text == "t"
        assert "nan" not in str(svg)
