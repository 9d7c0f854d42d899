"""Pages of more subsets than a reader looks through: small, and what they leave out is said."""

from __future__ import annotations

import re

import pandas as pd
import pytest
import xarray as xr
from browser_kit import needs_chromium, opened
from comparison_kit import block_of
from pair_kit import drawn, known

import reward_lens as rl
from reward_lens.comparing import compare_models
from reward_lens.data import as_pairs
from reward_lens.instruments import margin_distribution, preference
from reward_lens.report import Page, render
from reward_lens.report.browser_data import Budgets, browser_data
from reward_lens.report.comparison import render_comparison
from reward_lens.report.comparison_parts import Models
from reward_lens.report.page import compose, write_whole
from reward_lens.report.subset_rows import MOST_SUBSETS, SubsetRows

CHECKS = pd.DataFrame(
    [{"check": "c", "passed": True, "measured": "0", "allowed": "1", "meaning": "m"}]
)
_PAGE = Page("m", "facts", "command", "e.jsonl")


def pairs_of(count):
    return as_pairs(
        {"id": f"p{k}", "prompt": f"Q {k}?", "chosen": f"yes {k}", "rejected": f"no {k}",
         "subset": f"s{k}"}
        for k in range(count)
    )  # fmt: skip


def test_the_largest_subsets_are_chosen_and_the_others_counted():
    sizes = {f"s{k:02}": 50 - abs(k - 30) for k in range(40)}
    rows = [("all", 2000), *(row for row in sizes.items())]
    table = pd.DataFrame(rows, columns=["group", "pairs"])
    found = SubsetRows.below_first(table, "group")
    largest = sorted(sizes, key=lambda s: -sizes[s])[:MOST_SUBSETS]
    assert table["group"].iloc[found.which].tolist() == ["all", *sorted(largest)]
    assert found.left == 40 - MOST_SUBSETS
    assert found.more == " (the 24 largest subsets; 16 more in the evidence file)"
    few = SubsetRows.below_first(table.head(5), "group")
    assert (few.which, few.more) == ([0, 1, 2, 3, 4], "")


@pytest.mark.parametrize("count", [400, 1500])
def test_the_page_of_many_subsets_is_small_and_has_pairs(count):
    signal, pairs = rl.from_tiny(), pairs_of(count)
    preferred = preference(signal, pairs)
    evidence = {
        "conformance": known("conformance", xr.DataArray(1.0, name="c"), checks=CHECKS),
        "preference": preferred,
        "margin_distribution": margin_distribution(preferred),
    }
    text = render(_PAGE, evidence, pairs)
    assert len(text.encode()) < 500_000
    data = block_of(text)
    assert len(data["pairs"]) == 200
    assert data["about"][1] == f"{count - 200} of the {count} subsets have no pair on this page."
    left = f"{count - MOST_SUBSETS:,} more in the evidence file"
    assert sum(left in said for said in re.findall(r"<(?:figcaption|caption).*?</", text)) == 4
    body = re.search(
        r"Accuracy by group.*?<tbody>(.*?)</tbody>", text[text.index("<details>") :], re.S
    )
    assert body[1].count("<tr") == MOST_SUBSETS + 1


def test_the_comparison_of_many_subsets_is_small():
    found = compare_models(rl.from_tiny(0), rl.from_tiny(1), pairs_of(400), biases=0,
                           conformance=False)  # fmt: skip
    models = Models(found.names, found.facts)
    text = render_comparison(_PAGE, models, found.evidence, found.pairs, found.left_out)
    assert len(text.encode()) < 500_000
    assert len(block_of(text)["pairs"]) == 200
    assert "the 24 largest subsets; 376 more in the evidence file" in text


def nothing_fits():
    pairs = pairs_of(3)
    return browser_data(
        {"preference": drawn(pairs)}, pairs, budgets=Budgets(texts=0, maps=0, curves=0)
    )


def test_a_page_without_room_for_pairs_says_so():
    (said,) = nothing_fits().about
    assert said == ("No pair is on this page: what else it shows leaves no room for the texts of "
                    "any of the 3 that were scored.")  # fmt: skip


@needs_chromium
def test_a_page_without_pairs_works(browser, tmp_path):
    made = tmp_path / "page.html"
    write_whole(made, compose(_PAGE, {}, [], [], lambda budgets: nothing_fits()))
    with opened(browser, made) as live:
        assert live.page.locator("#pair-about").inner_text() == nothing_fits().about[0]
        for part in (".controls", ".columns", "#pair-count", "#unscripted"):
            assert not live.page.locator(part).is_visible(), part
        live.page.locator("#close-all").click()
        assert live.page.locator("details[open]").count() == 0
        assert live.clean()
