"""The page of a real audit: its numbers are the evidence's, and it is one closed file."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import math
import shutil
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from families import make_model, make_tokenizer

import reward_lens as rl
from reward_lens.assets import asset
from reward_lens.evidence import write_jsonl
from reward_lens.report import Page, figures, render, write_page
from reward_lens.report.numbers import Numbers


@pytest.fixture(scope="module")
def audit():
    signal = rl.load_signal(asset("demo/model"))
    pairs = rl.load_pairs(asset("demo/pairs.jsonl")).sample(60)
    ids = pairs.ids
    return rl.audit(signal, pairs, sample=40, parts={"a": ids[:30], "b": ids[30:]})


@pytest.fixture(scope="module")
def files(audit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    page = Page("<model>", "facts", "reward-lens audit m p", "e.jsonl", ["a note"], {"x": "why"})
    write_page(folder / "page.html", page, audit.evidence, audit.shown)
    write_jsonl(folder / "e.jsonl", audit.evidence.values())
    return folder


class Spans(html.parser.HTMLParser):
    """Collects traced numbers, links to outside, and text."""

    def __init__(self):
        super().__init__()
        self.numbers, self.outside, self.open = [], [], None

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "span" and attrs.get("class") == "n":
            self.open = attrs
        for name in ("src", "href", "srcset", "action"):
            target = attrs.get(name, "#")
            if not target.startswith(("#", "data:,")):
                self.outside.append(target)
        if tag in ("script", "iframe", "object", "embed"):
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


def test_every_number_of_the_page_is_the_evidences(files):
    records = {}
    for line in (files / "e.jsonl").read_text().splitlines():
        record = json.loads(line)
        by = record["provenance"]["parameters"].get("by")
        records["attribution_heads" if by == "head" else record["instrument"]] = record
    numbers = parsed(files).numbers
    assert len(numbers) > 200
    for attrs, text in numbers:
        value = from_json(records[attrs["data-e"]], attrs["data-p"])
        value = float(value) if value in ("NaN", "Infinity", "-Infinity") else value
        nan = isinstance(value, float) and math.isnan(value)
        assert text == ("–" if nan else format(value, attrs["data-f"])), attrs


def test_the_page_is_closed_and_small(files):
    assert parsed(files).outside == []
    assert (files / "page.html").stat().st_size < 500_000
    assert "@import" not in (files / "page.html").read_text()
    assert not list(files.glob("*.part"))


def test_few_pairs_are_all_shown_and_unknown_parts_refused():
    signal = rl.load_signal(asset("demo/model"))
    pairs = rl.load_pairs(asset("demo/pairs.jsonl"), limit=5)
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
    for part in (
        "14 of 14 conformance checks hold", "trust exploratory", "gauge invariant", "norm frozen",
        "norm applied", "part=a", "part=b", "a note", "What did not run", "read here",
    ):  # fmt: skip
        assert part in text, part
    for pair in audit.shown:
        assert pair.id in text


def test_a_failed_check_is_on_the_first_screen(audit):
    e = audit["conformance"]
    checks = e.tables["checks"]
    checks.loc[3, "passed"] = False
    failed = dataclasses.replace(e, tables={"checks": checks})
    text = render(Page("m", "f", "c", "e"), {**audit.evidence, "conformance": failed}, audit.shown)
    assert "No: 13 of 14 conformance checks hold (failed: determinism)." in text
    assert checks["meaning"][3] in text


def test_the_row_mean_is_said_on_page_and_receipt():
    signal = rl.wrap_hf_model(
        make_model("llama", num_labels=3, id2label={k: str(k) for k in range(3)}), make_tokenizer()
    )
    audit = rl.audit(signal, [(f"q{k}", f"yes {k}", f"no {k}") for k in range(6)])
    text = render(Page("m", "f", "c", "e"), audit.evidence, audit.shown)
    assert text.count("legacy row mean of 3 objectives") > 6
    assert "legacy row mean of 3 objectives" in audit["lens"].receipt()


def test_without_an_instrument_the_page_still_stands(audit):
    kept = {k: e for k, e in audit.evidence.items() if k in ("conformance", "preference")}
    text = render(Page("m", "f", "c", "e", missing={"lens": "no blocks"}), kept, audit.shown)
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
    ):
        root = ET.fromstring(str(svg))
        assert root.attrib["role"] == "img"
        assert root.find("title").text == "t"
        assert "nan" not in str(svg)


chromium = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(chromium is None, reason="Chromium is not installed on this machine")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_in_a_browser(files, width, scheme):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        said, asked = [], []
        page.on("console", lambda m: said.append(m.text))
        page.on("pageerror", lambda e: said.append(str(e)))
        page.on("request", lambda r: asked.append(r.url))
        page.goto((files / "page.html").as_uri())
        assert said == []
        assert asked == [(files / "page.html").as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(c) for c in dark[4:-1].split(",")) < 200) == (scheme == "dark")
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        token = page.locator(".tokens i.p").first
        before = token.evaluate("t => getComputedStyle(t).backgroundColor")
        page.locator("#map-b").check()
        shades = page.locator(".tokens i").evaluate_all(
            "ts => ts.map(t => getComputedStyle(t).backgroundColor)"
        )
        assert len(set(shades)) > 3
        assert before
        small = page.locator("svg text").evaluate_all(
            "ts => ts.filter(t => t.getBoundingClientRect().right > innerWidth + 1).length"
        )
        assert small == 0
        page.emulate_media(media="print")
        assert page.locator("nav").is_hidden()
        assert page.locator("#preference table").first.is_visible()
        browser.close()
