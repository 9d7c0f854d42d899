"""What a page says of trust: it was checked and holds, is too small, failed, or was not checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from reward_lens.evidence import Standing, TrustLevel
from reward_lens.report.parts import labels, rung
from reward_lens.report.standings import standings_section, trust_answer, under_the_limit


class Rated:
    """Evidence of which only its standing is asked."""

    has_store = True

    def __init__(self, standing: Standing) -> None:
        self.standing = standing


LOW = TrustLevel.EXPLORATORY
NEVER = Rated(Standing(LOW, ("no scorecard of it is in the store",)))
SMALL = Rated(Standing(
    LOW,
    ("scorecard c passed: ...", "under the detection limit of 0.5 SD: 2 readings; the largest is "
     "0.27 SD"),
    below={"3": 0.271, "4": 0.1},
    records=("c",),
    detection_dose=0.5,
))  # fmt: skip
FAILED = Rated(Standing(LOW, ("the instrument FAILED",), records=("c",), failed=True))
HIGH = Rated(Standing(
    TrustLevel.CALIBRATED, ("scorecard c passed: ...",), {"3": 1.2}, {"4": 0.1}, ("c",)
))  # fmt: skip


def test_four_kinds_of_trust_are_told_apart():
    said = trust_answer({"lens": HIGH, "attribution": SMALL, "patch_grid": FAILED, "scores": NEVER})
    high, small, failed, never = (
        said.index(part)
        for part in (
            "Calibrated or higher: lens. ",
            "smaller than what is found reliably (sizes in SDs of the margin): attribution finds "
            "planted rules of 0.5 SD, its largest reading is 0.27 SD. ",
            "FAILED on planted rules on this model: patch_grid. ",
            "no scorecard that can be relied on speaks of it: scores. ",
        )
    )
    assert high < small < failed < never
    assert "--calibrate" not in said


def test_what_passed_is_not_said_to_be_unchecked():
    said = trust_answer({"lens": SMALL, "patch_grid": SMALL})
    assert "no planted rule has shown" not in said
    assert "--calibrate" not in said
    assert said.startswith("Checked on planted rules and passed, but all that is read")
    assert said.count("finds planted rules of 0.5 SD") == 2


def test_where_nothing_was_checked_all_is_exploratory():
    said = trust_answer({"lens": NEVER, "scores": NEVER})
    assert said.startswith("Every number here is exploratory: no planted rule has shown")
    assert "Calibrated" not in said
    assert said.endswith("An audit with --calibrate finds out what the instruments can see here.")


@pytest.mark.parametrize(
    ("rated", "name"),
    [
        (NEVER, "exploratory"),
        (SMALL, "exploratory, under the detection limit"),
        (FAILED, "exploratory, FAILED its scorecard"),
        (HIGH, "calibrated"),
    ],
)
def test_a_rung_says_whether_it_was_checked(rated, name):
    assert rung(rated.standing) == name
    (row,) = standings_section({"lens": rated}).tables[0].rows
    assert row[1] == name


def test_the_limit_is_the_one_that_the_store_computes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "evidence")
    from trust_kit import calibrated, grid

    from reward_lens.evidence import EvidenceStore

    with EvidenceStore(tmp_path / "s.db") as store:
        calibrated(store)
        weak, strong = grid({"L0.mlp_out": 0.25}), grid({"L0.mlp_out": 0.75}, data="other")
        store.append_all([weak, strong])
        assert weak.standing.below
        assert under_the_limit(weak.standing) == (
            "finds planted rules of 0.5 SD, its largest reading is 0.25 SD"
        )
        assert "trust exploratory, under the detection limit" in labels(weak)
        assert "trust calibrated" in labels(strong)
