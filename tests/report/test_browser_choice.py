"""Which pairs a page holds and how much of their texts, whatever is in them."""

from __future__ import annotations

import math
import re
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair_kit import drawn

from reward_lens.data import Item, Message, Pair, Pairs
from reward_lens.report import browser_choice
from reward_lens.report.browser_choice import CAPS, GAP, cut, order_of_showing
from reward_lens.report.browser_data import Budgets, as_block, browser_data, fitting
from reward_lens.report.browser_json import packed, size, unpacked

labels = st.lists(st.sampled_from("abcde"), min_size=1, max_size=60)


@given(labels, st.integers(0, 5), st.data())
def test_every_beginning_of_the_order_is_a_good_choice(subsets, seed, data):
    n = len(subsets)
    margins = np.array(data.draw(st.lists(st.floats(-9, 9), min_size=n, max_size=n)))
    first = data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=n))
    preferred = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    order = order_of_showing(subsets, margins, first, preferred, seed)
    assert sorted(order) == list(range(n))
    assert order[: len(first)] == first
    kinds = len(set(subsets))
    assert len({subsets[k] for k in order[: len(first) + kinds]}) == kinds


@given(labels, st.integers(0, 5))
def test_the_sample_is_in_proportion_wherever_it_is_cut(subsets, seed):
    rows = np.random.default_rng(seed).permutation(len(subsets))
    spread = browser_choice._spread(np.array(subsets, dtype=object), rows)
    n, kinds = len(subsets), set(subsets)
    for cut_at in range(n + 1):
        there = [subsets[k] for k in spread[:cut_at]]
        for kind in kinds:
            share = cut_at * subsets.count(kind) / n
            # A count is a rounding of its share; a shared cut can move it by half a row a subset.
            assert abs(there.count(kind) - share) <= 0.5 + len(kinds) / 2


@given(st.text(max_size=80), st.integers(1, 60))
def test_a_cut_text_says_how_much_is_gone(text, cap):
    shown, gone = cut(text, cap)
    assert gone == max(0, len(text) - cap)
    if gone:
        head, _, tail = shown.partition(GAP) if GAP not in text else (shown, "", "")
        assert len(shown) == cap + len(GAP)
        assert GAP in text or (text.startswith(head) and text.endswith(tail))
    else:
        assert shown == text


NASTY = "</script><!--<script>&amp;\u2028\u2029\r\n\t\x00\x7f\"'\\🙂🏳️‍🌈é"


def test_whatever_is_written_stays_inside_its_element():
    written = packed({NASTY: [NASTY, None, 1.5]})
    assert re.fullmatch(r"[A-Za-z0-9+/]+=*", written)
    assert unpacked(written) == {NASTY: [NASTY, None, 1.5]}
    assert packed({NASTY: [NASTY, None, 1.5]}) == written  # no clock is in it
    with pytest.raises(ValueError, match="Out of range float"):
        packed(math.nan)


@pytest.fixture(scope="module")
def odd():
    """Pairs of every form, with long and unusual texts."""
    long = NASTY * 1500
    turns = (Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Yes?"),
             Message("user", NASTY))  # fmt: skip
    items = [
        (Item.of("q", long), Item.of("q", long + "!")),
        (Item.of(long, "a"), Item.of(long, "b")),
        (Item.of(turns, "good"), Item.of(turns, " \n.")),
        (Item(text="User: q\nBot: " + NASTY), Item(text="User: q\nBot: no")),
        (Item(ids=tuple(range(40))), Item(ids=(1, 2))),
    ]
    return Pairs(
        Pair(a, b, f"{k}, a=b/c|d%20{NASTY}", f"l{k}", NASTY if k else "all")
        for k, (a, b) in enumerate(items)
    )


def test_odd_and_huge_texts(odd):
    data = unpacked(as_block(browser_data({"preference": drawn(odd)}, odd)))
    by_id = {p["id"]: p for p in data["pairs"]}
    assert set(by_id) == set(odd.ids)
    texts = [by_id[i]["t"] for i in odd.ids]
    whole = next(p for p in odd if p.id == odd.ids[0]).chosen.response
    shown, gone = texts[0]["chosen"]
    assert gone > 10_000
    assert len(shown) - len(GAP) + gone == len(whole)
    assert whole.startswith(shown.split(GAP)[0])
    assert texts[1]["chosen"] == ["a", 0]
    assert (
        texts[2]["prompt"][0]
        == f"system: Be brief.\n\nuser: Hi\n\nassistant: Yes?\n\nuser: {NASTY}"
    )
    assert texts[2]["rejected"] == [" \n.", 0]
    assert texts[3] == {"prompt": ["", 0], "chosen": ["User: q\nBot: " + NASTY, 0],
                        "rejected": ["User: q\nBot: no", 0]}  # fmt: skip
    assert texts[4]["chosen"] == ["(given as 40 ids)", 0]
    assert texts[4]["rejected"] == ["(given as 2 ids)", 0]
    raw = [by_id[i]["r"] for i in odd.ids]
    assert raw[3]["length"] is None is raw[3]["ratio"]
    assert raw[0]["length"] == 2 * len(whole) + 1
    cuts = sum(gone > 0 for t in texts for _, gone in t.values())
    cap = next(c for c in CAPS if f"{c:,} characters" in data["about"][1])
    assert (
        data["about"][1]
        == f"{cuts} texts of more than {cap:,} characters are cut in the middle, at […]."
    )


@pytest.mark.parametrize("room", [150_000, 40_000, 6_000])
@pytest.mark.parametrize("alike", [True, False])
def test_a_block_fills_its_room_and_no_more(room, alike):
    """Whether texts pack well or not at all."""
    rng = np.random.default_rng(0)
    letters = [chr(k) for k in range(0x4E00, 0x5E00)]

    def text(k):
        return "the same words again " * 60 if alike else "".join(rng.choice(letters, 700))

    pairs = Pairs(
        Pair(Item.of("q", text(k)), Item.of("q", f"no {k}"), str(k), str(k), f"s{k % 4}")
        for k in range(300)
    )
    scored = {"preference": drawn(pairs)}
    asked = []

    def make(budgets):
        asked.append(budgets)
        return browser_data(scored, pairs, budgets=budgets)

    data, block = fitting(make, room)
    assert len(block) <= room
    assert data.pairs
    assert block == as_block(data)
    full = len(data.pairs) == Budgets().pairs
    assert full or len(block) > 0.8 * room
    assert len(asked) < 8


@pytest.mark.parametrize("room", [0, -30_000, 300])
def test_without_room_a_block_holds_no_pair(room):
    pairs = Pairs(
        Pair(Item.of("q", "a" * 999), Item.of("q", "b"), str(k), str(k)) for k in range(4)
    )
    scored = {"preference": drawn(pairs)}
    data, block = fitting(lambda b: browser_data(scored, pairs, budgets=b), room)
    assert data.pairs == []
    assert unpacked(block)["total"] == 4


def test_two_hundred_pairs_of_huge_texts_are_cut_and_some_left_out():
    pairs = Pairs(
        Pair(Item.of("漢字" * 20_000, "<b>" * 13_000), Item.of("漢字" * 20_000, "x" * 40_000),
             str(k), str(k), f"s{k % 20}")
        for k in range(200)
    )  # fmt: skip
    limits = Budgets(texts=120_000, maps=90_000, curves=35_000)
    data = browser_data({"preference": drawn(pairs)}, pairs, budgets=limits)
    assert size(asdict(data)) < sum(limits.bytes) + 3000
    assert 20 < len(data.pairs) < 200
    assert {p["subset"] for p in data.pairs} == set(pairs.subsets)
    assert data.about[1] == (
        f"{3 * len(data.pairs)} texts of more than {CAPS[-1]} characters are cut in the middle, at "
        f"[…]."
    )


def test_orders_are_offered_where_they_tell_pairs_apart(odd):
    def keys(pairs):
        return [s.key for s in browser_data({"preference": drawn(pairs)}, pairs).sorts]

    assert keys(odd) == ["low", "high", "close", "subset", "length", "ratio"]
    assert keys(odd[3:4]) == ["low", "high", "close"]
