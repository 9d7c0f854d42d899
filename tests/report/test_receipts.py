"""Receipts on a page: what is shared is said once, and nothing is lost by it."""

from __future__ import annotations

import pytest

import reward_lens as rl
from reward_lens.data import as_pairs
from reward_lens.evidence.receipt import lines
from reward_lens.report.receipts import MOST_RESULTS, Receipts

PAIRS = [(f"question {k}", f"a good answer {k}", f"bad {k}") for k in range(20)]


@pytest.fixture(scope="module")
def evidence():
    signal = rl.from_tiny()
    pairs = as_pairs(
        [
            {"prompt": p, "chosen": c, "rejected": r, "subset": f"s{k % 12}"}
            for k, (p, c, r) in enumerate(PAIRS)
        ]
    )
    scores = rl.preference(signal, pairs)
    return {
        "preference": scores,
        "lens": rl.lens(signal, pairs[:6]),
        "margin_distribution": rl.margin_distribution(scores),
        "attribution": rl.attribution(signal, pairs[:6]),
    }


def test_shared_and_own_lines_together_are_the_receipt(evidence):
    found = Receipts.of(evidence)
    assert [name for name, _ in found.own] == list(evidence)
    for name, own in found.own:
        headings = {heading for heading, _ in own}
        together = [*own, *(line for line in found.shared if line[0] not in headings)]
        results = [line for line in lines(evidence[name]) if line[0].startswith("result ")]
        wanted = [line for line in lines(evidence[name]) if line not in results[MOST_RESULTS:]]
        assert sorted(line for line in together if line[0] != "more results") == sorted(wanted)
        left = max(0, len(results) - MOST_RESULTS)
        said = [text for heading, text in own if heading == "more results"]
        assert said == ([f"{left} more with their intervals, in the evidence file"] if left else [])


def test_what_differs_is_not_shared(evidence):
    shared = dict(Receipts.of(evidence).shared)
    assert {"gauge", "trust", "circumstances"} <= set(shared)
    assert not {"measured", "subject", "id", "cost"} & set(shared)


def test_a_heading_that_one_lacks_is_not_shared(evidence):
    found = Receipts.of(evidence)
    parents = [dict(own).get("computed from") for _, own in found.own]
    assert "computed from" not in dict(found.shared)
    assert parents[2] == evidence["preference"].id


def test_one_receipt_shares_nothing(evidence):
    found = Receipts.of({"lens": evidence["lens"]})
    assert found.shared == []
    assert found.own == [("lens", lines(evidence["lens"]))]
