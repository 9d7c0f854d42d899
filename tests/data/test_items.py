from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from reward_lens.data import Item, Message, Pairs, as_item, as_items, as_pairs, items_fingerprint
from reward_lens.errors import DataError

TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    "form",
    [
        ("q", "a"),
        ["q", "a"],
        {"prompt": "q", "response": "a"},
        {"messages": TURNS},
        TURNS,
        ([{"role": "user", "content": "q"}], "a"),
        Item.of("q", "a"),
    ],
)
def test_every_form_is_one_item(form):
    item = as_item(form)
    assert item.messages == (Message("user", "q"), Message("assistant", "a"))
    assert item == Item.of("q", "a")


def test_rendered_text_and_ids():
    assert as_item({"text": "<s>q a"}).text == "<s>q a"
    assert as_item({"ids": [1, 2]}).ids == (1, 2)
    assert as_item({"input_ids": np.array([0, 1, 2]), "attention_mask": [0, 1, 1]}).ids == (1, 2)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("just text", "bare string.*could be a prompt or a response"),
        (("p", "c", "r"), "tuple of 3.*is a pair, not an item"),
        ((7, "a"), "prompt is a int"),
        (("q", None), "response is a NoneType"),
        (("q", "  "), "response is empty"),
        (("", "a"), "prompt is empty"),
        (3.5, "is a float"),
        (None, "is a NoneType"),
        ({"prompt": "q"}, "no field 'response'"),
        ({"question": "q"}, r"has fields \['question'\]"),
        ([{"role": "user", "content": "q"}], "last turn must be the response"),
        ([{"role": "assistant", "content": "a"}], "needs a prompt"),
        (
            [{"role": "user", "content": ["part"]}, TURNS[1]],
            "turn 0.*must be text, got str and list",
        ),
        ([{"content": "q"}, TURNS[1]], "turn 0 is no message"),
        ({"ids": []}, "non-empty row of integers"),
        ({"ids": [1.5]}, "integers"),
    ],
)
def test_what_is_no_item_is_refused_by_name(bad, message):
    with pytest.raises(DataError, match=f"item 1.*{message}"):
        as_items([("q", "a"), bad])


@pytest.mark.parametrize("bad", ["text", {"prompt": "q", "response": "a"}, Item.of("q", "a")])
def test_one_item_is_no_list(bad):
    with pytest.raises(DataError, match="put it in a list"):
        as_items(bad)


def test_no_items():
    with pytest.raises(DataError, match="no items"):
        as_items([])
    with pytest.raises(DataError, match="got int"):
        as_items(5)
    with pytest.raises(DataError, match="exactly one of"):
        Item()


def test_a_table_of_items():
    frame = pd.DataFrame({"prompt": ["q"], "response": ["a"]})
    assert as_items(frame) == [as_item({"prompt": "q", "response": "a"})]


def test_lineage_is_the_prompt_unless_said():
    a, b, c = Item.of("q", "1"), Item.of("q", "2"), Item.of("other", "1")
    assert a.lineage == b.lineage != c.lineage
    assert Item.of("q", "1", lineage="row 3").lineage == "row 3"


def test_the_fingerprint_counts_content_order_and_lineage():
    a, b = Item.of("q", "1"), Item.of("q", "2")
    assert items_fingerprint([a, b]) != items_fingerprint([b, a])
    assert items_fingerprint([a]) != items_fingerprint([Item.of("q", "1", lineage="x")])
    assert items_fingerprint([a]) == items_fingerprint([Item.of("q", "1", id="named")])


@pytest.fixture
def pairs():
    rows = [
        {"prompt": f"p{k // 2}", "chosen": f"c{k}", "rejected": f"r{k}", "id": str(k),
         "subset": "big" if k < 9 else "small"}
        for k in range(12)
    ]  # fmt: skip
    return as_pairs(rows)


def test_a_sample_is_seeded_stratified_and_in_order(pairs):
    some = pairs.sample(8, seed=1)
    assert some.ids == pairs.sample(8, seed=1).ids
    assert some.ids != pairs.sample(8, seed=2).ids
    assert some.subset_counts == {"big": 6, "small": 2}
    assert [int(i) for i in some.ids] == sorted(int(i) for i in some.ids)
    assert pairs.sample(12) is pairs
    with pytest.raises(DataError):
        pairs.sample(0)


def test_a_split_parts_by_id(pairs):
    parts = pairs.split({"train": ["0", "1", "not here"], "test": ["2"], "none": ["zzz"]})
    assert {k: p.ids for k, p in parts.items()} == {"train": ["0", "1"], "test": ["2"]}
    with pytest.raises(DataError, match="in two parts"):
        pairs.split({"a": ["0"], "b": ["0"]})
    with pytest.raises(DataError, match="none of the pairs"):
        pairs.split({"a": ["zzz"]})
    with pytest.raises(DataError, match="no list of pair ids"):
        pairs.split({"a": "0"})


def test_pairs_are_a_sequence(pairs):
    assert isinstance(pairs[:3], Pairs)
    assert pairs[0].prompt == (Message("user", "p0"),)
    assert pairs.subset("small").ids == ["9", "10", "11"]
    assert len(set(pairs.lineages)) == 6
    with pytest.raises(DataError, match="two pairs have the id"):
        Pairs([pairs[0], pairs[0]])
    with pytest.raises(DataError, match="no pairs"):
        Pairs([])
    with pytest.raises(DataError, match="no pair is of subset"):
        pairs.subset("x")
