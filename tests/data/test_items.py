from __future__ import annotations

import datasets
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
        ("q", TURNS[1]),
        (TURNS[:1], [Message("assistant", "a")]),
        {"prompt": "q", "response": "a", "text": None, "lineage": float("nan"), "id": pd.NA},
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
            "turn 0: content is a list of parts; join its text",
        ),
        ([{"content": "q"}, TURNS[1]], "turn 0 is no message"),
        ({"ids": []}, "non-empty row of integers"),
        ({"ids": [1.5]}, "integers"),
        ({"ids": [[1, 2], [3]]}, "one non-empty row of integers"),
        ({"ids": [5, -100]}, "negative id -100"),
        ({"ids": [1, 2], "attention_mask": [1]}, "a 0 or 1 for each of its 2 ids"),
        ({"ids": [1, 2], "attention_mask": [0, 0]}, "leaves no id"),
        ({"response": "a"}, "no field 'prompt'"),
        ({"prompt": "q", "text": "qa"}, "'prompt' and 'text', so it is not clear what is scored"),
        ({"messages": TURNS, "response": "b"}, "'messages' and 'response'"),
        ({"prompt": "q", "response": "a", "lineage": 1.0}, "lineage is a float, expected a label"),
        ({"text": " "}, "text is empty"),
        (
            {"prompt": "q", "response": "a", "lineage": "l\udfff"},
            r"lineage holds the lone surrogate '\\udfff'",
        ),
        (("q", "a\ud800"), r"lone surrogate '\\ud800' at character 1"),
        (("q", [*TURNS]), r"response must be text or the assistant's one message.*'user'"),
        ([TURNS[0], {**TURNS[1], "tool_calls": [{}]}], "turn 1 has the field 'tool_calls'"),
        (b"bytes", "is a bytes"),
    ],
)
def test_what_is_no_item_is_refused_by_name(bad, message):
    with pytest.raises(DataError, match=f"item 1.*{message}"):
        as_items([("q", "a"), bad])


@pytest.mark.parametrize("bad", ["text", {"prompt": "q", "response": "a"}, Item.of("q", "a")])
def test_one_item_is_no_list(bad):
    with pytest.raises(DataError, match="put it in a list"):
        as_items(bad)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (("q", "a"), r"one tuple of 2 texts; put it in a list, as in \[\(prompt, response\)\]"),
        (TURNS, "one conversation; put it in a list"),
        ({"train": datasets.Dataset.from_list([{"a": 1}])}, r"the splits \['train'\]; pass one"),
        ({("q", "a")}, "got set"),
        (b"text", "put it in a list"),
        (pd.DataFrame([["q", "a", "b"]], columns=["prompt", "response", "response"]), "twice"),
    ],
)
def test_what_is_no_list_of_items_is_refused(bad, message):
    with pytest.raises(DataError, match=message):
        as_items(bad)


def test_pairs_are_no_items(pairs):
    with pytest.raises(DataError, match=r"item 0 is a pair; its items are pair\.chosen"):
        as_items(pairs)
    assert as_items(pairs.chosen) == pairs.chosen


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"messages": TURNS[:1]}, "last turn must be the response"),
        ({"messages": [Message("user", "q"), Message("assistant", "")]}, "response is empty"),
        ({"text": "\n"}, "text is empty"),
        ({"ids": ()}, "non-empty"),
        ({"ids": (1, 2.0)}, "must be integers"),
        ({"ids": (-1,)}, "negative id -1"),
    ],
)
def test_an_item_cannot_be_built_wrong(bad, message):
    with pytest.raises(DataError, match=f"an item.*{message}"):
        Item(**bad)


def test_an_item_takes_what_means_the_same():
    assert Item(ids=np.array([3, 4])) == Item(ids=(3, 4))
    assert Item(messages=TURNS) == Item.of("q", "a") == Item.of(TURNS[:1], "a")
    assert Item.of(TURNS, "again").prompt_text == "user: q\n\nassistant: a"


def test_a_lineage_may_be_the_number_zero():
    assert as_item({"prompt": "q", "response": "a", "lineage": 0, "id": 0}).lineage == "0"


def test_no_items():
    with pytest.raises(DataError, match="no items"):
        as_items([])
    with pytest.raises(DataError, match="got int"):
        as_items(5)
    with pytest.raises(DataError, match="exactly one of"):
        Item()


def test_a_table_of_items():
    rows = [
        {"prompt": "q", "response": "a", "lineage": None},
        {"prompt": "p", "response": "b", "lineage": "l"},
    ]
    expected = [Item.of("q", "a"), Item.of("p", "b", lineage="l")]
    assert as_items(pd.DataFrame(rows)) == expected
    assert as_items(datasets.Dataset.from_list(rows)) == expected
    assert as_items(iter(rows)) == expected


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
    plain = pairs.sample(8, seed=1, stratify=False)
    assert plain.ids == pairs.sample(8, seed=1, stratify=False).ids
    assert len(set(plain.ids)) == 8
    with pytest.raises(DataError):
        pairs.sample(0)


def test_a_split_parts_by_id(pairs):
    listed = {"train": ["0", "1", "not here"], "test": ["2"], "none": ["zzz"]}
    with pytest.raises(DataError, match=r"2 of the split's 5 ids are not .*'not here'.*partial="):
        pairs.split(listed)
    parts = pairs.split(listed, partial=True)
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
    assert pairs.subset(pairs.subsets == "small").ids == ["9", "10", "11"]
    with pytest.raises(DataError, match=r"12 values of dtype bool.*shape \(2,\) and dtype int"):
        pairs.subset([0, 1])
    assert len(set(pairs.lineages)) == 6
    with pytest.raises(DataError, match="two pairs have the id"):
        Pairs([pairs[0], pairs[0]])
    with pytest.raises(DataError, match="no pairs"):
        Pairs([])
    with pytest.raises(DataError, match="no pair is of subset"):
        pairs.subset("x")
