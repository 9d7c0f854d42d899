"""Surface features: counts known by construction, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward_lens.data import Item
from reward_lens.errors import DataError, NumericsError
from reward_lens.organisms.surface_features import (
    FEATURES,
    TOKENS,
    Feature,
    feature_name,
    feature_values,
)

TEXT = """# A heading

Great question! You are right: it **might** be 42, or 7 (perhaps).

- one
- two
3. three

```python
# no heading - no list
x = 10
```
Thanks, does this help? 🎉"""

EXPECTED = {
    "question_marks": 1,
    "exclamation_marks": 1,
    "digits": 6,
    "commas": 2,
    "list_items": 3,
    "bold": 1,
    "code_blocks": 1,
    "emoji": 1,
    "flattery": 2,
    "hedges": 2,
    "politeness": 1,
    "words": 37,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_counts_on_paper(name):
    assert FEATURES[name].of(TEXT) == EXPECTED[name]


def test_code_is_no_list_and_counts_once_in_markdown():
    code = "```\n- a\n- b\n# c\n```"
    assert FEATURES["markdown"].of(code) == 1
    assert FEATURES["markdown"].of("- a\n- b\n# c\n**d**") == 4


def test_phrases_are_whole_words():
    assert FEATURES["hedges"].of("The mighty displease kindlyness") == 0
    assert FEATURES["hedges"].of("MAYBE, maybe: it might.") == 3


@given(st.sampled_from(sorted(FEATURES)), st.text(max_size=60))
def test_every_feature_is_a_count(name, text):
    value = FEATURES[name].of(text)
    assert value >= 0
    assert value == int(value)
    assert FEATURES[name].of("") == 0


@given(st.text("ab1?! ", max_size=30), st.text("ab1?! ", max_size=30))
@pytest.mark.parametrize("name", ["characters", "digits", "question_marks", "exclamation_marks"])
def test_counts_of_signs_add_up(name, a, b):
    of = FEATURES[name].of
    assert of(a + b) == of(a) + of(b)


def test_values_of_items():
    items = [Item.of("How many? 12", "1, 2"), Item.of("?", "none")]
    assert feature_values("digits", items).tolist() == [2, 0]  # the prompt's are not counted
    assert feature_values(TOKENS, items, [5, 6]).tolist() == [5, 6]
    mine = Feature("a", "letters a", lambda text: float(text.count("a")))
    assert feature_values(mine, items).tolist() == [0, 0]
    prompts = feature_values(lambda item: len(item.prompt_text), items)
    assert prompts.tolist() == [12, 1]
    assert [feature_name(f) for f in ("digits", mine, len)] == ["digits", "a", "len"]
    assert feature_values("digits", items).dtype == np.float64


def test_refusals():
    item = Item.of("a", "b")
    with pytest.raises(DataError, match="no feature 'lenght'; there are characters, words"):
        feature_values("lenght", [item])
    with pytest.raises(DataError, match="counted by a signal's tokenizer: pass tokens="):
        feature_values(TOKENS, [item])
    with pytest.raises(DataError, match="item 1 is text that is already rendered"):
        feature_values("digits", [item, Item(text="a 1")])
    with pytest.raises(DataError, match="item 0 is ids, which does not say where the response"):
        feature_values("digits", [Item(ids=(1, 2))])
    with pytest.raises(NumericsError, match="item 0: the feature '<lambda>' is nan"):
        feature_values(lambda item: float("nan"), [item])
