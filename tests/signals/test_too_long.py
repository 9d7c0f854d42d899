"""Which items are longer than a model reads."""

from __future__ import annotations

import pytest
from families import make_signal

from reward_lens.errors import DataError, TokenizeError
from reward_lens.signals.lengths import too_long


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


def test_what_is_too_long_is_what_scoring_refuses(signal):
    limit, long = signal.meta.max_length, "c" * signal.meta.max_length
    items = [("ab", "cd"), ("ab", long), ("ab", "x"), ("ab", long + "d")]
    found = too_long(signal, items, "error")
    assert list(found) == [1, 3]
    assert limit < found[1] == found[3] - 1
    with pytest.raises(TokenizeError, match=f"{found[1]} tokens"):
        signal.score(items[1:2])
    signal.score([items[0], items[2]])


def test_nothing_is_too_long_where_it_would_be_cut_or_there_is_no_limit(signal):
    items = [("ab", "c" * signal.meta.max_length)]
    assert too_long(signal, items, "left") == {}
    assert too_long(signal, items, "right") == {}
    assert too_long(signal.with_meta(max_length=None), items, "error") == {}


def test_an_item_that_is_none_is_named(signal):
    with pytest.raises(DataError, match="item 1"):
        too_long(signal, [("ab", "cd"), ("ab",)], "error")
