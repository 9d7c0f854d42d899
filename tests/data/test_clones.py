"""Exact clones up to case, spacing and Unicode form."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reward_lens.data import Item, as_pairs
from reward_lens.data.clones import clone_key, join_clones, normalised

ROWS = [
    ("Why is the sky blue?", "Air scatters it.", "No idea."),
    ("why is  the sky BLUE?", "Air scatters it.\n", "no idea."),  # the first again
    ("Name a colour.", "Blue.", "Ask me later."),
    ("Name  a colour.", "Ask me later.", "Blue."),  # the third, turned round
    ("Say hi.", "Hi!", "No."),
    ("Say hi.", "Hello!", "No."),  # one text in common, the same prompt anyway
]


def test_normal_form():
    assert normalised(" Straße\n\tＡ  b ") == "strasse a b"


@given(st.text())
def test_the_normal_form_of_a_normal_form_is_itself_in_spacing(text):
    assert "  " not in normalised(text)
    assert normalised(text) == normalised(f"  {text}\n")


def test_clones_are_counted_and_their_lineages_joined():
    pairs = as_pairs(ROWS)
    found, count = join_clones(pairs)
    assert (count.pairs, count.reversed, count.lineages_joined) == (2, 1, 2)
    labels = list(found.lineages)
    assert labels[0] == labels[1] == pairs.lineages[0]
    assert labels[2] == labels[3] == pairs.lineages[2]
    assert len(set(labels)) == 3
    assert found.chosen[1].lineage == labels[0]
    assert found.ids == pairs.ids
    assert [p.chosen.content() for p in found] == [p.chosen.content() for p in pairs]


def test_without_clones_nothing_changes():
    pairs = as_pairs(ROWS[::2])
    found, count = join_clones(pairs)
    assert found is pairs
    assert (count.pairs, count.reversed, count.lineages_joined) == (0, 0, 0)


def test_joining_is_carried_on():
    """a shares a text with b, b with c: all three are one lineage."""
    rows = [
        {"prompt": "p", "chosen": x, "rejected": y, "lineage": label}
        for x, y, label in (("1", "2", "a"), ("2", "3", "b"), ("3", "4", "c"), ("5", "6", "d"))
    ]
    found, count = join_clones(as_pairs(rows))
    assert list(found.lineages) == ["a", "a", "a", "d"]
    assert count.lineages_joined == 2
    assert count.pairs == 0


def test_roles_count_and_ids_are_compared_as_they_are():
    assert clone_key(Item(ids=(1, 2))) != clone_key(Item(ids=(2, 1)))
    assert clone_key(Item(text="A b")) == clone_key(Item(text="a  B"))
    assert clone_key(Item.of("p", "r")) != clone_key(Item.of("r", "p"))
