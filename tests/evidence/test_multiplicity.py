"""p values adjusted for their number: values from the papers' definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_lens.errors import DataError
from reward_lens.evidence.multiplicity import adjusted


def test_holm_on_paper():
    np.testing.assert_allclose(adjusted([0.01, 0.04, 0.03], "holm"), [0.03, 0.06, 0.06])


def test_benjamini_hochberg_on_paper():
    np.testing.assert_allclose(adjusted([0.01, 0.04, 0.03], "bh"), [0.03, 0.04, 0.04])


def test_what_was_not_answered_is_not_counted():
    found = adjusted([0.02, np.nan, 0.5])
    np.testing.assert_allclose(found[[0, 2]], [0.04, 0.5])
    assert np.isnan(found[1])
    assert np.isnan(adjusted([np.nan])).all()


@settings(max_examples=12, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.sampled_from(["holm", "bh"]))
def test_adjusting_raises_and_keeps_the_order(p, method):
    found = adjusted(p, method)
    assert (found >= np.array(p) - 1e-12).all()
    assert (found <= 1).all()
    order = np.argsort(p, kind="stable")
    assert (np.diff(found[order]) >= -1e-12).all()


def test_what_is_no_probability_is_refused():
    with pytest.raises(DataError, match="p value 1 is 1.5"):
        adjusted([0.1, 1.5])
    with pytest.raises(DataError, match="choose one of holm, bh"):
        adjusted([0.1], "bonferroni")
    with pytest.raises(DataError, match=r"array of shape \(1, 1\)"):
        adjusted([[0.1]])
