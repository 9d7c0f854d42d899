"""The pairs on the page of two models, in the file beside it, and the page in a browser."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from browser_kit import (
    NARROW,
    WIDE,
    check_numbers,
    chromium,
    faults,
    listed,
    needs_axe,
    needs_chromium,
    open_everything,
    opened,
    row,
)
from comparison_kit import PRAISE, block_of, page_of, planted_pair

import reward_lens as rl
from reward_lens.assets import asset
from reward_lens.data import as_pairs
from reward_lens.errors import EvidenceError
from reward_lens.report import Page
from reward_lens.report.browser_data import Budgets
from reward_lens.report.comparison import write_comparison
from reward_lens.report.comparison_pairs import compared_pairs, write_compared
from reward_lens.report.comparison_parts import Models
from reward_lens.report.numbers import resolve, shown


@pytest.fixture(scope="module")
def planted():
    return planted_pair()


def test_every_number_of_the_browser_is_the_evidences(planted):
    block = block_of(page_of(planted))
    table = planted["compare"].tables["pairs"].set_index("pair")
    assert len(block["pairs"]) == len(planted.pairs) == block["total"]
    for pair in block["pairs"]:
        for column in block["columns"]:
            name, path, form = column["path"].format(k=pair["k"]).split("|")
            value = resolve(planted[name], path)
            assert pair["n"][column["key"]] == shown(value, form)
            assert value == table.loc[pair["id"], path.rpartition("/")[2]]


def test_the_browser_keeps_to_its_budget_and_shows_the_surest_flips(planted):
    e = planted["compare"]
    table = e.tables["pairs"]
    flips = table[table["agreement"] == "flip"]
    sure = np.minimum(flips["margin_a"].abs(), flips["margin_b"].abs())
    data = compared_pairs(e, planted.pairs, budgets=Budgets(pairs=5))
    assert [p["id"] for p in data.pairs] == flips["pair"][
        sure.sort_values(ascending=False, kind="stable").index
    ].tolist()[:5]
    assert data.about[0].startswith(f"The texts of 5 of {len(table)} pairs are on this page, 5 of ")
    with pytest.raises(EvidenceError, match="not among the"):
        compared_pairs(e, rl.load_pairs(asset("demo/pairs.jsonl")))


def test_the_pairs_are_written_so_that_they_can_be_read_back(planted, tmp_path):
    path = tmp_path / "x.pairs.jsonl"
    write_compared(path, planted.pairs, planted["compare"])
    assert rl.load_pairs(path).fingerprint == planted.pairs.fingerprint
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    table = planted["compare"].tables["pairs"]
    assert [r["margin_b"] for r in rows] == table["margin_b"].tolist()
    assert [r["agreement"] for r in rows] == table["agreement"].tolist()
    assert not list(tmp_path.glob("*.part"))
    with pytest.raises(EvidenceError, match="other pairs, or in another order"):
        write_compared(path, planted.pairs[:3], planted["compare"])


def test_ten_thousand_pairs_of_many_subsets_make_no_larger_page(planted):
    e, n, subsets = planted["compare"], 10_000, 80
    rng = np.random.default_rng(0)
    rows = [
        {"id": f"pair/{k}", "subset": f"subset {k % subsets}", "prompt": f"question {k}?",
         "chosen": f"yes {k} " * 300, "rejected": f"no {k} " * 300}
        for k in range(n)
    ]  # fmt: skip
    many = as_pairs(rows)
    a, b = rng.standard_normal((2, n))
    pairs = pd.DataFrame(
        {"pair": many.ids, "subset": many.subsets, "margin_a": a, "margin_b": b,
         "agreement": np.where(a * b < 0, "flip", "agree")}
    )  # fmt: skip
    table = e.tables["agreement"]
    every = [table.iloc[:1], *(table.iloc[1:2].assign(group=f"subset {k}") for k in range(subsets))]
    tables = {**dict(e.tables), "pairs": pairs, "agreement": pd.concat(every, ignore_index=True)}
    evidence = {**planted.evidence, "compare": dataclasses.replace(e, tables=tables)}
    text = page_of(dataclasses.replace(planted, evidence=evidence, pairs=many))
    assert len(text.encode()) < 500_000
    block = block_of(text)
    assert block["total"] == n
    assert len(block["pairs"]) <= 200
    assert {p["subset"] for p in block["pairs"]} == set(many.subsets)
    assert f"{len(block['pairs'])} of 10,000 pairs" in block["about"][0]
    assert "(the 24 largest subsets; 56 more in the evidence file)" in text


@pytest.fixture(scope="module")
def written(planted, tmp_path_factory):
    path = tmp_path_factory.mktemp("comparison") / "page.html"
    page = Page("<a> against b", "facts", "reward-lens compare", "e", kind="comparison")
    models = Models(planted.names, planted.facts)
    write_comparison(path, page, models, planted.evidence, planted.pairs)
    assert not list(path.parent.glob("*.part"))
    return path


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@needs_chromium
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_the_page_in_a_browser(browser, written, planted, size):
    table = planted["compare"].tables["pairs"]
    apart = (table["margin_a"] - table["margin_b"]).abs()
    first = table.loc[apart.idxmax()]
    with opened(browser, written, size=size) as found:
        page = found.page
        open_everything(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        outside = "t => t.getBoundingClientRect().right > innerWidth + 1"
        assert page.evaluate(f"[...document.querySelectorAll('svg text')].filter({outside})") == []
        check_numbers(page, planted)
        page.locator("#pair-sort").select_option("apart")
        assert listed(page)[0] == first["pair"]
        row(page, first["pair"]).click()
        detail = page.locator("#pair-detail").inner_text()
        for part in (first["pair"], first["agreement"], f"{first['margin_a']:+.2f}"):
            assert part in detail
        check_numbers(page, planted, "#pair-detail data")
        page.locator("#pair-search").fill(PRAISE.strip())
        praised = planted.pairs.subset("praised").ids
        assert sorted(listed(page)) == sorted(praised)
        assert "undefined" not in page.locator("main").inner_text()
        assert found.clean()


@needs_chromium
@needs_axe
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_people_out(browser, written, scheme):
    with opened(browser, written, color_scheme=scheme, bypass_csp=True) as found:
        open_everything(found.page)
        assert faults(found.page) == []
