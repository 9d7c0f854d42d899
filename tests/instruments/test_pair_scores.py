"""What is said of pairs does not depend on the form they come in."""

from __future__ import annotations

import numpy as np
import pytest
from families import PAIRS, make_signal

import reward_lens as rl


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


def test_accuracy_and_margins_by_hand(signal):
    ev = rl.preference(signal, PAIRS)
    scores = [signal.score([(p, a), (p, b)]).value.values for p, a, b in PAIRS]
    margins = np.array([a - b for a, b in scores])
    np.testing.assert_allclose(ev.value.sel(side="margin"), margins, atol=1e-6)
    assert ev.interval("accuracy").estimate == (margins > 0).mean()


def test_ids_have_no_response_length_and_say_so(signal):
    encoded = signal.encode([(p, r) for p, a, b in PAIRS for r in (a, b)])
    rows = [
        {"input_ids_chosen": c.ids.tolist(), "input_ids_rejected": r.ids.tolist()}
        for c, r in zip(encoded[::2], encoded[1::2], strict=True)
    ]
    texts, ids = rl.preference(signal, PAIRS), rl.preference(signal, rows)
    np.testing.assert_allclose(texts.value, ids.value, atol=1e-6)
    assert np.isfinite(texts.interval("length.correlation").estimate)
    for name in ("length.correlation", "length.slope"):
        assert np.isnan(ids.interval(name).estimate)
        assert "where the response begins" in ids.interval(name).note
    audit = rl.audit(signal, rows)
    assert audit.passed
    from reward_lens.report import Page, render

    assert "where the response begins" in render(
        Page("m", "f", "c", "e"), audit.evidence, audit.shown
    )


def test_identical_sides_are_ties_and_degenerate_in_both_readings(signal):
    pairs = [(f"prompt {k}", "the same", "the same") for k in range(3)]
    assert rl.preference(signal, pairs).tables["accuracy"]["ties"][0] == 3
    table = rl.lens(signal, pairs).tables["crystallization"]
    assert list(table["degenerate"]) == [3, 3]
    assert table["median_first"].isna().all()
