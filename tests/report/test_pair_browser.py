"""The pair browser in Chromium, on pairs whose texts and numbers are made by hand."""

from __future__ import annotations

import dataclasses
import math
import re
from functools import partial
from urllib.parse import quote, unquote

import numpy as np
import pytest
import xarray as xr
from browser_kit import (
    NARROW,
    check_numbers,
    heading,
    listed,
    looks,
    mapped,
    needs_chromium,
    opened,
    row,
)
from pair_kit import drawn, known, map_of
from playwright.sync_api import expect

from reward_lens.data import Item, Pair, Pairs
from reward_lens.report import Page
from reward_lens.report.browser_data import Budgets, browser_data
from reward_lens.report.page import compose, write_whole

pytestmark = needs_chromium
HOSTILE = "</script><img src=x onerror=alert(1)><!-- & \u2028 \"'` 漢字 🏳️‍🌈\n"
DEPTHS = 13


def written(k: int) -> Pair:
    """A pair with a word of its own and odd characters; some are long, one is given as ids."""
    word = f"word{'abcdefghij'[k % 10]}{k}"
    prompt = f"A question {k}? {HOSTILE}"
    chosen, rejected = f"{word} is so. " * (1 + k % 7 * 60), f"No {k}. {HOSTILE}"
    items = Item.of(prompt, chosen), Item.of(prompt, rejected)
    if k == 11:
        items = Item(ids=tuple(range(40))), Item(ids=(1, 2))
    return Pair(*items, f"{k}, a=b/c|d%20 <i>'", f"l{k}", f"subset {k % 4} <&>")


@pytest.fixture(scope="module")
def pairs():
    return Pairs(written(k) for k in range(57))


@pytest.fixture(scope="module")
def evidence(pairs):
    """Scores, token maps of ten pairs, and curves of all sizes that a number can be written in."""
    rng = np.random.default_rng(3)
    ids = pairs.ids[:40]
    size = (2, len(ids), DEPTHS)
    margins = rng.normal(size=size) * 10.0 ** rng.integers(-7, 7, size=size)
    margins[:, ::3, 0] = 0.0
    margins[0, ::3, 1] = -0.0
    margins[1, ::4, 2] = math.nan
    coords = {"reading": ["frozen", "applied"], "pair": ids, "depth": np.arange(DEPTHS)}
    value = xr.DataArray(margins, coords, ("reading", "pair", "depth"), "margin")
    mapped = map_of(pairs.ids[:10])
    tokens = mapped.tables["tokens"]
    tokens.loc[tokens["position"] == 2, "token"] = HOSTILE
    return {
        "preference": drawn(pairs),
        "lens": known("lens", value),
        "token_map": dataclasses.replace(mapped, tables={**mapped.tables, "tokens": tokens}),
    }


@pytest.fixture(scope="module")
def data(evidence, pairs):
    return browser_data(evidence, pairs, budgets=Budgets(texts=45_000, maps=90_000, curves=35_000))


@pytest.fixture(scope="module")
def path(evidence, data, tmp_path_factory):
    made = tmp_path_factory.mktemp("pairs") / "page.html"
    write_whole(
        made, compose(Page("made by hand", "f", "c", "e"), evidence, [], [], lambda _: data)
    )
    return made


def test_search_finds_ids_subsets_and_texts(page, data):
    search, count = page.locator("#pair-search"), page.locator("#pair-count")
    total = len(data.pairs)
    assert count.inner_text() == f"{total} of {total} pairs match."
    pair = data.pairs[3]
    word = max(re.findall(r"\w+", pair["t"]["rejected"][0]), key=len)
    for words in (pair["id"].upper(), pair["subset"], f" {word} "):
        search.fill(words)
        low = words.strip().lower()
        wanted = {
            p["id"] for p in data.pairs
            if any(low in text.lower() for text in
                   (p["id"], p["subset"], *(t for t, _ in p["t"].values())))
        }  # fmt: skip
        assert set(listed(page)) == wanted
        assert pair["id"] in wanted
        assert count.inner_text().startswith(f"{len(wanted)} of {total} pairs match")
        assert heading(page) == listed(page)[0]  # the first of what was found
    search.fill("no text holds this")
    assert listed(page) == []
    assert count.inner_text() == f"None of {total} pairs match."
    assert not page.locator("#pair-detail").is_visible()  # nothing stands beside an empty list
    search.fill("")
    assert len(listed(page)) == total


def test_the_list_comes_in_pages(page, data):
    assert page.locator("#pair-list button").count() == 25
    left = len(data.pairs) - 25
    more = page.locator("#pair-more")
    assert more.inner_text() == f"Show 25 more of {left}"
    more.focus()
    page.keyboard.press("Enter")
    assert page.locator("#pair-list button").count() == 50
    # The keyboard is where the reader left off.
    found = page.locator("#pair-list button").nth(25)
    assert found.evaluate("row => row === document.activeElement")
    assert more.inner_text() == f"Show {left - 25} more of {left - 25}"
    more.click()
    assert page.locator("#pair-list button").count() == len(data.pairs)
    assert not more.is_visible()


def test_every_sort_is_the_order_of_the_raw_numbers(page, data):
    titles = page.locator("#pair-sort option").all_inner_texts()
    assert titles == [s.title for s in data.sorts]
    orders = set()
    for sort in data.sorts:
        page.locator("#pair-sort").select_option(sort.key)
        found = listed(page)
        by_id = {p["id"]: (p["subset"] if sort.by == "subset" else p["r"][sort.by])
                 for p in data.pairs}  # fmt: skip
        values = [by_id[i] for i in found]
        count = sum(v is not None for v in values)
        assert None not in values[:count]  # what is not known comes last
        values = [abs(v) if sort.abs else v for v in values[:count]]
        assert values == sorted(values, reverse=sort.down), sort.key
        assert sorted(found) == sorted(by_id)
        orders.add(tuple(found))
    assert len(orders) >= 5


def test_the_subset_filter_keeps_one_subset(page, data):
    subsets = sorted({p["subset"] for p in data.pairs})
    options = page.locator("#pair-subset option").all_inner_texts()
    sizes = [sum(p["subset"] == s for p in data.pairs) for s in subsets]
    assert options == ["all", *(f"{s} ({n})" for s, n in zip(subsets, sizes, strict=True))]
    for k, subset in enumerate(subsets):
        page.locator("#pair-subset").select_option(index=k + 1)
        assert set(listed(page)) == {p["id"] for p in data.pairs if p["subset"] == subset}
    page.locator("#pair-subset").select_option(index=0)
    assert len(listed(page)) == len(data.pairs)


def test_a_pair_is_chosen_by_click_and_by_keyboard_and_can_be_linked_to(page, live, path, data):
    first, second, third = listed(page)[:3]
    assert heading(page) == first  # something is shown before anything was asked for
    assert page.url == live.url
    page.locator("#pair-list button").nth(1).click()
    expect(page.locator("#pair-detail")).to_be_focused()
    assert heading(page) == second
    assert page.evaluate("location.hash").startswith("#pair=")
    assert unquote(page.evaluate("location.hash")) == f"#pair={second}"
    assert not page.locator("#pair-back").is_visible()  # the list stands beside
    page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    page.locator("#pair-back").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.pair.id") == second
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#pair-detail")).to_be_focused()
    assert heading(page) == third
    current = page.locator("#pair-list [aria-current=true]")
    assert current.evaluate_all("rows => rows.map(r => r.pair.id)") == [third]
    page.go_back()
    expect(page.locator("#pair-title")).to_contain_text(second)


def test_a_link_to_a_pair_opens_it(browser, path, data):
    pair = data.pairs[-1]
    with opened(browser, path, f"#pair={quote(pair['id'], safe='')}") as live:
        assert heading(live.page) == pair["id"]
        assert live.page.evaluate("document.activeElement.id") == "pair-detail"
        assert live.page.locator("#pair-title").bounding_box()["y"] < 100
        assert live.clean()
    with opened(browser, path, "#pair=nobody%2") as live:
        said = live.page.locator("#pair-count").inner_text()
        assert said == f"The pair nobody%2 is not among the {len(data.pairs)} on this page."
        assert live.clean()


def test_shading_changes_backgrounds_and_underlines(page, data):
    pair = mapped(data)
    row(page, pair["id"]).click()
    seen = {}
    for m in data.maps:
        radio = page.locator(f"#map-{m.key}")
        if m.key not in pair["m"]["chosen"]["v"]:
            assert radio.is_disabled()
            continue
        radio.check()
        seen[m.key] = looks(page)
        values = pair["m"]["chosen"]["v"][m.key]
        kinds = {1: "solid", -1: "dotted", 0: "none"}
        styles = [kinds[int(np.sign(v or 0))] for v in values]
        underlines = [u if w != "0px" and b else "none" for b, u, w in seen[m.key]]
        transparent = page.locator(".tokens i:not(.up):not(.down)").count()
        assert [u for u, s in zip(underlines, styles, strict=True) if s != "none"] == [
            s for s in styles if s != "none"
        ]
        assert transparent == 0 or "none" in styles or 0 in values
        assert m.full in page.locator("#map-note").inner_text()
        assert m.tier in page.locator("#map-note").inner_text()
    assert len(seen) >= 2
    one, other, *_ = seen.values()
    for k in (0, 1):  # backgrounds; underlines
        assert [t[k] for t in one] != [t[k] for t in other]
    page.locator("#map-none").check()
    assert page.locator(".tokens").count() == 0
    assert page.locator("#pair-sides .text").first.inner_text() == pair["t"]["chosen"][0]
    assert page.locator("#pair-prompt .text").inner_text() == pair["t"]["prompt"][0]


def test_the_read_token_is_boxed_and_named(page, data):
    pair = mapped(data)
    row(page, pair["id"]).click()
    for k, side in enumerate(("chosen", "rejected")):
        token = page.locator(".tokens").nth(k).locator(".read")
        assert token.count() == 1
        assert token.locator("b").inner_text() == "read here"
        assert token.evaluate("t => getComputedStyle(t).outlineStyle") == "solid"
        assert token.get_attribute("id") == f"token-{side}-{pair['m'][side]['read']}"


def test_tokens_are_read_by_keyboard_and_pointer(page, data, evidence):
    pair = mapped(data)
    row(page, pair["id"]).click()
    side, readout = pair["m"]["chosen"], page.locator("#token-readout")
    page.locator(".tokens").first.focus()
    assert f"token {side['read'] + 1} of {len(side['tokens'])}" in readout.inner_text()
    assert "read here" in readout.inner_text()
    page.keyboard.press("ArrowLeft")
    k = side["read"] - 1
    said = readout.inner_text()
    assert said.startswith(f"chosen, token {k + 1} of {len(side['tokens'])} “")
    marked = page.locator(".tokens [aria-selected=true]")
    assert marked.get_attribute("id") == f"token-chosen-{k}"
    # What is said of the token is what was measured of it, to the digits that are said.
    table = evidence["token_map"].tables["tokens"]
    at = table[(table["pair"] == pair["id"]) & (table["side"] == "chosen")].iloc[k]
    number = re.search(r"change of the prefix score ([+−]\S+) reward", said)[1]
    full = float(next(m.full for m in data.maps if m.key == "prefix"))
    assert float(number.replace("−", "-")) == pytest.approx(at["prefix"], rel=0.06, abs=full / 900)
    page.keyboard.press("Home")
    assert "token 1 of" in readout.inner_text()
    page.keyboard.press("ArrowLeft")  # there is none before the first
    assert "token 1 of" in readout.inner_text()
    page.keyboard.press("End")
    assert f"token {len(side['tokens'])} of" in readout.inner_text()
    page.locator(".tokens").nth(1).locator("i").nth(2).hover()
    assert readout.inner_text().startswith("rejected, token 3 of")
    assert readout.get_attribute("role") == "status"


def test_the_curve_of_a_pair_has_axes_units_and_no_interval(page, data):
    row(page, next(p for p in data.pairs if "c" in p)["id"]).click()
    figure = page.locator("#pair-curve")
    texts = figure.locator("svg text").all_text_contents()
    for label in ("depth (layers)", "margin (reward)", "frozen", "applied"):
        assert label in texts
    assert "n = 1 pair" in figure.inner_text()
    dashes = figure.locator("polyline.line").evaluate_all(
        "ls => ls.map(l => getComputedStyle(l).strokeDasharray)"
    )
    assert len(set(dashes)) == 2


def test_what_users_wrote_stands_there_as_it_is(page, pairs, data):
    for k in (3, 9, 11):
        pair = next(p for p in data.pairs if p["id"] == pairs.ids[k])
        row(page, pair["id"]).click()
        expect(page.locator("#pair-detail")).to_be_focused()
        assert heading(page) == pair["id"]
        if page.locator("#map-none").is_visible():
            page.locator("#map-prefix").check()
            token = page.locator("#token-chosen-2")
            assert token.evaluate("t => t.firstChild.data") == HOSTILE.replace("\n", "⏎\n")
            token.click()
            assert f"“{HOSTILE}”" in page.locator("#token-readout").text_content()
            page.locator("#map-none").check()
        texts = page.locator("#pair-sides .text").evaluate_all(
            "ts => ts.map(t => t.firstChild.data)"
        )
        assert texts == [pair["t"][side][0] for side in ("chosen", "rejected")]
    assert page.locator("img").count() == 0
    # What is given as ids has no prompt that could be shown.
    assert not page.locator("#pair-prompt h4").is_visible()


def test_how_much_of_a_text_is_not_there_is_said(page, data):
    pair = next(p for p in data.pairs if p["t"]["chosen"][1])
    row(page, pair["id"]).click()
    if page.locator("#map-none").is_visible():
        page.locator("#map-none").check()
    left = f"[{pair['t']['chosen'][1]:,} characters are left out at […]]"
    assert page.locator("#pair-sides .left-out").first.inner_text() == left
    for said in data.about:
        assert page.get_by_text(said, exact=True).is_visible()


def test_a_pair_without_map_and_curve_shows_its_texts(page, pairs, data):
    row(page, pairs.ids[50]).click()
    for hidden in ("#pair-maps", "#pair-key", "#token-readout", "#pair-curve"):
        assert not page.locator(hidden).is_visible(), hidden
    assert page.locator("#pair-prompt .text").is_visible()
    # The shading that was asked for is not forgotten on a pair that has none.
    row(page, pairs.ids[2]).click()
    page.locator("#map-gradient").check()
    row(page, pairs.ids[50]).click()
    row(page, pairs.ids[3]).click()
    assert page.locator("#map-gradient").is_checked()


def test_numbers_are_written_as_python_writes_them(page, evidence, data):
    texts = set()
    for pair in [p for p in data.pairs if "c" in p][:12]:
        row(page, pair["id"]).click()
        expect(page.locator("#pair-detail")).to_be_focused()
        page.locator("#pair-depth").focus()
        page.keyboard.press("Home")
        for _ in range(DEPTHS):
            check_numbers(page, evidence, "#pair-detail data")
            texts |= set(page.locator("#pair-depth-readout data").all_inner_texts())
            page.keyboard.press("ArrowRight")
    assert {"–", "0", "-0"} <= texts
    for form in (r"-?\d\.\d+e-0\d", r"-?\d(\.\d+)?e\+0\d", r"0\.00\d+", r"\d{3}", r"\d\d\.\d"):
        assert any(re.fullmatch(form, t) for t in texts), form


def test_a_curve_has_a_gap_where_there_is_no_number(page, evidence, pairs):
    row(page, pairs.ids[4]).click()
    expect(page.locator("#pair-title")).to_contain_text(pairs.ids[4])
    lines = page.locator("#pair-curve polyline.later").evaluate_all(
        "ls => ls.map(l => l.getAttribute('points').split(' ').length)"
    )
    known = np.isfinite(evidence["lens"].value.sel(pair=pairs.ids[4])).sum("depth")
    assert lines == known.values.tolist()


def test_what_is_not_embedded_is_counted_and_named(browser, evidence, pairs, tmp_path):
    budgets, path = Budgets(pairs=20), tmp_path / "p.html"
    for sidecar, where in (("p.jsonl", "in p.jsonl, which this page does not read"),
                           ("", "not on this page")):  # fmt: skip
        make = partial(browser_data, evidence, pairs, sidecar=sidecar, budgets=budgets)
        text = compose(Page("m", "f", "c", "e"), evidence, [], [], lambda _, make=make: make())
        write_whole(path, text)
        with opened(browser, path) as live:
            said = live.page.locator("#pair-count").inner_text()
            assert said == f"20 of 20 embedded pairs match; 37 more were scored and are {where}."
            assert live.clean()
