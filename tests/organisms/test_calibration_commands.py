"""``reward-lens calibrate`` and ``audit --calibrate``: what they print, keep and show."""

from __future__ import annotations

import json
from functools import partial

import pytest
from families import PAIRS, make_model, make_tokenizer
from typer.testing import CliRunner

import reward_lens as rl
from reward_lens import auditing
from reward_lens.audit_plan import Plan
from reward_lens.cli import app
from reward_lens.data import as_pairs
from reward_lens.errors import DataError
from reward_lens.evidence import EvidenceStore, TrustLevel
from reward_lens.organisms import calibration

#: Few of everything, and what a card demands as few.
FEW = {"organisms": 3, "nulls": 3, "fixing": 4}


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model("llama", initializer_range=0.1).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [
        {
            "id": f"{k}-{j}",
            "prompt": f"{p} ({j})",
            "chosen": f"{a} {j}.",
            "rejected": f"{b} {j}!",
        }
        for j in range(4)
        for k, (p, a, b) in enumerate(PAIRS)
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


@pytest.fixture
def small(monkeypatch):
    """Calibrations of few organisms, whose cards may pass."""
    from reward_lens.evidence import scorecard

    few = partial(calibration.calibrate, **FEW)
    monkeypatch.setattr(calibration, "calibrate", few)
    monkeypatch.setattr(auditing, "make_scorecards", few)
    monkeypatch.setattr(scorecard, "MIN_ORGANISMS", 3)
    monkeypatch.setattr(scorecard, "MIN_NULLS", 3)
    monkeypatch.setattr(scorecard, "MAX_FALSE_POSITIVES", 1.0)


def test_calibrate_prints_what_each_card_says(model, pairs, tmp_path, small):
    store = tmp_path / "s.db"
    named = "patch_grid,path_effects"
    result = run("calibrate", model, pairs, "--store", store, "--instruments", named,
                 "--doses", "2", "--max-pairs", "12")  # fmt: skip
    assert result.exit_code == 0, result.output
    for part in ("patch_grid: passed", "path_effects: passed", "finds rules from 2 SD on",
                 "3 of 3 at 2",
                 "of 3 nulls for rules: at most", "intervals hold", "12 to 120 pairs",
                 "s for planting", f"{store}: "):  # fmt: skip
        assert part in result.output, part
    assert "calibration ..." in result.stderr
    with EvidenceStore(store) as opened:
        assert [opened.get(p.id).instrument for p in opened.places("scorecard")] == [
            "patch_grid", "path_effects"
        ]  # fmt: skip
        assert opened.head in result.output


def test_calibrate_as_json_and_its_exit_code(model, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "calibrate", partial(calibration.calibrate, **FEW))
    result = run("calibrate", model, pairs, "--store", tmp_path / "s.db", "--instruments", "lens",
                 "--doses", "1", "--json")  # fmt: skip
    assert result.exit_code == 1  # too few of everything for a card
    said = json.loads(result.stdout)
    assert not said["passed"]
    (card,) = said["cards"]
    assert card["instrument"] == "lens"
    assert card["detection_dose"] is None
    assert any("3 nulls were tried, 60 are needed" in why for why in card["failures"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--doses", "a"), "--doses a: give numbers"),
        (("--instruments", "preference"), "'preference': what can be calibrated is lens"),
    ],
)
def test_calibrate_refuses_what_makes_no_sense(model, pairs, tmp_path, options, why):
    result = run("calibrate", model, pairs, "--store", tmp_path / "s.db", *options)
    assert result.exit_code == 2
    assert why in result.stderr


def test_help_names_what_can_be_calibrated():
    from reward_lens.organisms.instrument_specs import SPECS

    said = " ".join(run("calibrate", "--help").output.replace("│", " ").split())
    assert f"of {', '.join(SPECS)}; what an audit leans on" in said
    assert f"by default: {', '.join(calibration.INSTRUMENTS)}." in said


def test_an_interrupted_calibration_says_what_is_kept_and_goes_on(
    model, pairs, tmp_path, small, monkeypatch
):
    store = tmp_path / "s.db"
    command = ("calibrate", model, pairs, "--store", store, "--instruments", "lens",
               "--doses", "2", "--max-pairs", "12")  # fmt: skip
    with monkeypatch.context() as patched:
        planted, calls = calibration.Course._planted, []

        def interrupt(*args):
            calls.append(args)
            if len(calls) == 4:
                raise KeyboardInterrupt
            return planted(*args)

        patched.setattr(calibration.Course, "_planted", interrupt)
        result = run(*command)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-3:] == [
        "reward-lens: interrupted; no scorecard was made",
        f"{store} keeps what was measured (3 new: lens)",
        "the same command goes on from there",
    ]
    with EvidenceStore(store) as opened:
        kept = [e.id for e in opened.find(instrument="lens")]
    run(*command)
    with EvidenceStore(store) as opened:
        assert [e.id for e in opened.find(instrument="lens")][:3] == kept
        assert len(opened.places("scorecard")) == 1


def test_a_model_that_cannot_be_calibrated_is_said_first(model, pairs, tmp_path):
    said = "reward-lens: cannot be calibrated: this head reads the mean"
    result = run("calibrate", model, pairs, "--store", tmp_path / "s.db", "--position", "mean")
    assert result.exit_code == 2
    assert said in result.stderr
    assert (
        "Without scorecards everything that is read on this model stays exploratory"
        in result.stderr
    )
    out = tmp_path / "r.html"
    result = run("audit", model, pairs, "-o", out, "--calibrate", "--position", "mean", "--json",
                 "--causal-sample", 2, "--biases", 0)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert said in result.stderr
    found = json.loads(result.stdout)
    assert found["calibration"]["cards"] == {}
    (why,) = found["calibration"]["notes"]
    assert why in found["notes"]
    assert why.startswith("no scorecards were made: this head reads the mean")
    assert found["because"]["lens"][0].startswith("no scorecard of lens v")


def test_where_every_instrument_is_skipped_no_card_is_said(model, pairs, tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise DataError("not on these pairs")

    monkeypatch.setattr("reward_lens.organisms.instrument_specs.Spec.run", refuse)
    few = partial(calibration.calibrate, **FEW)
    monkeypatch.setattr(calibration, "calibrate", few)
    result = run("calibrate", model, pairs, "--store", tmp_path / "s.db", "--max-pairs", "12",
                 "--instruments", "lens,attribution", "--doses", "2")  # fmt: skip
    assert result.exit_code == 1
    assert (
        "reward-lens: cannot be calibrated: lens, attribution: not on these pairs. Without"
    ) in result.stderr


def test_an_audit_calibrates_first_and_its_page_shows_the_rungs(model, pairs, tmp_path, small):
    out = tmp_path / "report.html"
    result = run("audit", model, pairs, "-o", out, "--calibrate", "--json", "--causal-sample", 12)
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["store"] == str(tmp_path / "report.evidence.db")
    page = out.read_text()
    assert "How far can it be trusted?" in page
    assert "Trust, and why" in page
    with EvidenceStore(said["store"], create=False) as store:
        cards = [store.get(p.id) for p in store.places("scorecard")]
        assert [c.instrument for c in cards] == [
            "lens", "attribution", "patch_grid", "path_effects"
        ]  # fmt: skip
        (own,) = [e for e in store.find(instrument="lens") if not e.subject.interventions]
        assert store.trust(own.id).name.lower() == said["trust"]["lens"]
        assert list(store.standing(own.id).because) == said["because"]["lens"]
        assert said["calibration"]["cards"] == {c.instrument: c.passed for c in cards}
        # Each card speaks of what the audit measured: options, token, number of pairs.
        for card in cards:
            same = [e for e in store.find(instrument=card.instrument) if not card.mismatch(e)]
            assert any(not "".join(e.subject.interventions).startswith("planted ") for e in same)
    # The page again, by another audit into the same store, which makes no cards.
    again = run("audit", model, pairs, "-o", tmp_path / "again.html", "--store", said["store"],
                "--causal-sample", 24)  # fmt: skip
    assert again.exit_code == 0, again.output
    assert f"store: {said['store']}" in again.output
    assert "How far can it be trusted?" in (tmp_path / "again.html").read_text()


def test_without_a_store_the_page_has_no_such_section(model, pairs, tmp_path):
    out = tmp_path / "report.html"
    assert run("audit", model, pairs, "-o", out, "--causal-sample", 2).exit_code == 0
    assert "Trust, and why" not in out.read_text()


def test_an_instrument_that_failed_says_so_on_the_page(model, pairs, tmp_path, monkeypatch):
    few = partial(calibration.calibrate, **FEW)  # too few of everything for a card
    monkeypatch.setattr(auditing, "make_scorecards", few)
    out = tmp_path / "report.html"
    result = run("audit", model, pairs, "-o", out, "--calibrate", "--causal-sample", 12)
    assert result.exit_code == 0, result.output
    assert "lens: FAILED: at the largest doses" in result.output
    page = out.read_text()
    for part in ("trust exploratory, FAILED its scorecard", "FAILED on planted rules on this model",
                 "lens FAILED its scorecard on this model"):  # fmt: skip
        assert part in page, part


def test_an_audit_needs_a_store_to_calibrate_into(pairs):
    with pytest.raises(DataError, match="calibrate=True keeps its scorecards in an evidence store"):
        rl.audit(rl.from_tiny(), as_pairs(rl.load_pairs(pairs)), calibrate=True)


def test_a_model_that_carries_no_rules_is_audited_all_the_same(tmp_path):
    import zoo

    signal = rl.wrap_hf_model(zoo.make("llama"), zoo.tokenizer_for("llama"), position="mean")
    given = [(f"{p} {k}", a, b) for k in range(3) for p, a, b in PAIRS]
    with EvidenceStore(tmp_path / "s.db") as store:
        found = rl.audit(signal, given, causal_sample=4, store=store, calibrate=True)
        assert found.calibration is None
        assert any("no scorecards were made: this head reads the mean" in n for n in found.notes)
        assert found["lens"].trust is TrustLevel.EXPLORATORY


def test_where_every_patch_is_a_whole_forward_nothing_that_patches_is_calibrated():
    import zoo

    signal = rl.wrap_hf_model(zoo.make("bloom"), zoo.tokenizer_for("bloom"))
    given = as_pairs([(f"{p} {k}", a, b) for k in range(3) for p, a, b in PAIRS])
    plan = Plan(signal, given, given, None, 0, calibrated=True)
    assert plan.calibration() == (("lens", "attribution"), given)
