"""Templated contrasts differ by one fact only; variants of a prompt ask the same."""

from __future__ import annotations

import pytest

from reward_lens.data import Item
from reward_lens.data.templates import CONTRASTS, contrasts
from reward_lens.data.templates_prompts import PARAPHRASES, TEMPLATES, laid_out, paraphrased


@pytest.mark.parametrize("name", CONTRASTS)
def test_rows_are_independent_and_balanced(name):
    rows = contrasts(name)
    assert len(rows) >= 16
    assert len({r.lineage for r in rows}) == len(rows)
    assert len({r.plus[0].prompt_text for r in rows}) == len(rows)
    for row in rows:
        assert row.name == name
        assert row.family == CONTRASTS[name]
        assert len(row.plus) == len(row.minus)
        assert not set(row.plus) & set(row.minus)


@pytest.mark.parametrize("name", ["gender", "name", "nationality"])
def test_a_swap_changes_one_word_of_the_prompt_and_nothing_of_the_answer(name):
    for row in contrasts(name):
        (a,), (b,) = row.plus, row.minus
        assert a.response == b.response
        one, other = a.prompt_text.split(), b.prompt_text.split()
        assert len(one) == len(other)
        assert sum(x != y for x, y in zip(one, other, strict=True)) == 1


def test_what_is_thought_of_the_answers_themselves_cancels():
    for row in contrasts("wrong_belief"):
        (stated_wrong, plain_right), (stated_right, plain_wrong) = row.plus, row.minus
        assert stated_wrong.prompt == stated_right.prompt
        assert plain_wrong.prompt == plain_right.prompt
        assert stated_wrong.response == plain_wrong.response
        assert stated_right.response == plain_right.response
        # The belief is the wrong answer, and the neutral prompt holds neither.
        assert stated_wrong.response in f"{stated_wrong.prompt_text}."
        for answer in (stated_wrong.response, stated_right.response):
            assert answer not in plain_right.prompt_text


def test_variants_keep_prompt_response_and_lineage():
    item = Item.of("Why {so}?", "Because {prompt}.", id="a")
    for name in PARAPHRASES:
        new = paraphrased(item, name)
        assert "Why {so}?" in new.prompt_text != item.prompt_text
        assert (new.response, new.lineage, new.id) == (item.response, item.lineage, "a")
    for name in TEMPLATES:
        new = laid_out(item, name)
        assert "Why {so}?" in new.text
        assert new.text.endswith("Because {prompt}.")
        assert new.lineage == item.lineage


def test_only_the_last_turn_is_paraphrased():
    turns = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two."},
             {"role": "user", "content": "Three."}]  # fmt: skip
    new = paraphrased(Item.of(turns, "Four."), "greeting")
    assert [m.content for m in new.messages] == ["One.", "Two.", "Hello! Three.", "Four."]
