"""`reward-lens evidence`: what it prints, writes, and exits with."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reward_lens.cli_evidence import evidence_app
from reward_lens.evidence import EvidenceStore, read_jsonl

sys.path.insert(0, str(Path(__file__).parent / "evidence"))
from trust_kit import calibrated, grid, organisms, prediction, scorecard


def run(*args):
    return CliRunner().invoke(evidence_app, [str(a) for a in args])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "e.db"
    with EvidenceStore(path) as store:
        card = calibrated(store)
        registration = store.register(prediction())
        e = grid({"L1.mlp_out": 0.9})
        store.append(e)
        outcome = store.adjudicate(registration.id, e.id)
        return {"path": path, "head": store.head, "card": card.id, "e": e.id,
                "registration": registration.id, "outcome": outcome.id}  # fmt: skip


def test_ls_lists_records_with_their_rung(made):
    found = run("ls", made["path"], "--kind", "evidence")
    assert found.exit_code == 0
    header, row, *end = found.output.splitlines()
    assert header.split() == [
        "seq", "id", "kind", "instrument", "readout", "trust", "added", "note",
    ]  # fmt: skip
    assert row.split()[:6] == ["123", made["e"], "evidence", "patch_grid", "reward", "adjudicated"]
    assert end == [
        f"1 of 124 records, head {made['head']}",
        "120 more were measured with a rule planted in the model: --all lists them",
    ]


def test_ls_all_flags_what_was_measured_on_organisms(made):
    lines = run("ls", made["path"], "--all").output.splitlines()
    assert len(lines) == 126
    assert sum(x.endswith("a rule was planted") for x in lines) == 120
    assert lines[-1] == f"124 records, head {made['head']}"


def test_ls_flags_an_organism_that_no_card_names(tmp_path):
    bare, organism = grid(), grid(interventions=("planted write in L0.mlp_out", "patch"))
    with EvidenceStore(tmp_path / "e.db") as store:
        store.append_all([bare, organism])
    lines = run("ls", tmp_path / "e.db", "--all").output.splitlines()
    flagged = [made in x and x.endswith("planted") for x in lines for made in (organism.id,)]
    assert flagged == [False, False, True, False]
    assert "1 of 2 records" in run("ls", tmp_path / "e.db").output


def test_ls_shows_whether_a_scorecard_passed_and_its_dose(made, tmp_path):
    _, row, count = run("ls", made["path"], "--kind", "scorecard").output.splitlines()
    assert made["card"] in row
    assert row.endswith("passed, detects from 0.5 SD on")
    assert count == f"1 of 124 records, head {made['head']}"
    with EvidenceStore(tmp_path / "e.db") as store:
        evidence, trials = organisms(missed=20)
        store.append_all([*evidence, scorecard(trials)])
    assert "FAILED, detects no dose reliably" in run("ls", tmp_path / "e.db").output
    said = run("ls", tmp_path / "e.db", "--kind", "scorecard", "--json").output
    (record,) = json.loads(said)["records"]
    assert (record["passed"], record["detection_dose"]) == (False, None)


def test_ls_refuses_a_kind_that_there_is_none_of(made):
    found = run("ls", made["path"], "--kind", "card")
    assert found.exit_code == 2
    assert "--kind card: choose one of evidence, scorecard, registration, outcome" in found.output


def test_ls_warns_where_the_store_does_not_verify(made, tmp_path):
    copy = tmp_path / "copy.db"
    copy.write_bytes(made["path"].read_bytes())
    with sqlite3.connect(copy) as raw:
        raw.execute("DROP TRIGGER records_no_update")
        raw.execute("UPDATE records SET content = '{' WHERE kind = 'scorecard' OR seq = 1")
    raw.close()
    found = run("ls", copy)
    assert found.exit_code == 0
    assert "copy.db does not verify" in found.stderr
    assert "'records_no_update'" in found.stderr
    assert "adjudicated" not in found.stdout
    assert "cannot be read" in found.stdout
    assert run("ls", made["path"]).stderr == ""


def test_looking_leaves_the_file_as_it_was(made, tmp_path):
    before = made["path"].read_bytes()
    for command in (["ls"], ["show", made["e"]], ["verify"], ["export", tmp_path / "all.jsonl"]):
        name, *rest = command
        assert run(name, made["path"], *rest).exit_code == 0
    assert made["path"].read_bytes() == before


def test_ls_as_json(made):
    ls = ("ls", made["path"], "--instrument", "patch_grid", "--json")
    said = json.loads(run(*ls).output)
    assert (said["head"], said["total"], said["hidden"]) == (made["head"], 124, 120)
    assert [r["kind"] for r in said["records"]] == ["scorecard", "registration", "evidence"]
    assert [r["planted"] for r in said["records"]] == [False] * 3
    said = json.loads(run(*ls, "--all").output)
    assert (said["total"], said["hidden"]) == (124, 0)
    kinds = [r["kind"] for r in said["records"]]
    assert (kinds.count("evidence"), kinds.count("scorecard"), kinds.count("registration")) == (
        121, 1, 1,
    )  # fmt: skip
    assert said["records"][-1]["trust"] == "adjudicated"
    assert (
        json.loads(run("ls", made["path"], "--instrument", "x", "--json").output)["records"] == []
    )


def test_show_prints_the_receipt_or_what_the_record_says(made):
    text = run("show", made["path"], made["e"]).output
    assert "trust: adjudicated: the registered expectation held" in text
    assert "you may say: what was predicted" in text
    assert "found in nine of ten from 0.5 SD" in run("show", made["path"], made["card"]).output
    assert "the last MLP carries" in run("show", made["path"], made["registration"]).output
    assert " held on " in run("show", made["path"], made["outcome"][:9]).output


def test_show_as_json(made):
    said = json.loads(run("show", made["path"], made["e"], "--json").output)
    assert said["record"]["id"] == made["e"]
    assert said["trust"]["level"] == "ADJUDICATED"
    assert said["trust"]["records"] == [made["card"], made["registration"], made["outcome"]]
    assert "trust" not in json.loads(run("show", made["path"], made["card"], "--json").output)


@pytest.mark.parametrize(("id", "said"), [("ev-", "121 records begin"), ("zz", "0 records begin")])
def test_show_wants_one_record(made, id, said):
    found = run("show", made["path"], id)
    assert found.exit_code == 2
    assert said in found.output


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_out_and_in_again(made, tmp_path, suffix):
    out, new = tmp_path / f"all.{suffix}", tmp_path / "new.db"
    assert f"124 records, head {made['head']}" in run("export", made["path"], out).output
    said = json.loads(run("import", new, out, "--head", made["head"], "--json").output)
    assert said == {"added": 124, "records": 124, "head": made["head"]}
    assert run("verify", new, "--head", made["head"]).exit_code == 0


def test_evidence_alone(made, tmp_path):
    out = tmp_path / "e.jsonl"
    said = json.loads(run("export", made["path"], out, "--evidence-only", "--json").output)
    assert said["records"] == len(read_jsonl(out)) == 121
    assert "121 records added" in run("import", tmp_path / "new.db", out).output


def test_a_forged_file_exits_2(made, tmp_path):
    out = tmp_path / "all.jsonl"
    run("export", made["path"], out)
    out.write_text(out.read_text().replace("0.98", "0.99"))
    found = run("import", tmp_path / "new.db", out, "--head", "f" * 32)
    assert found.exit_code == 2
    assert "no record has the hash ffff" in found.output
    assert run("import", tmp_path / "new.db", tmp_path / "none.jsonl").exit_code == 2
    assert run("export", made["path"], tmp_path / "all.csv").exit_code == 2


def test_verify_exits_0_and_says_what_it_cannot_find(made):
    found = run("verify", made["path"])
    assert found.exit_code == 0
    assert f"124 records, head {made['head']}: every record and the chain verify" in found.output
    assert "note the head elsewhere" in found.output
    assert "note the head" not in run("verify", made["path"], "--head", made["head"]).output


def test_verify_exits_1_and_names_what_was_altered(made, tmp_path):
    copy = tmp_path / "copy.db"
    copy.write_bytes(made["path"].read_bytes())
    with sqlite3.connect(copy) as raw:
        raw.execute("DROP TRIGGER records_no_update")
        raw.execute("UPDATE records SET readout = 'other' WHERE id = ?", (made["e"],))
    raw.close()
    found = run("verify", copy)
    assert found.exit_code == 1
    assert f"record 123, {made['e']}: altered" in found.output
    said = json.loads(run("verify", copy, "--json").output)
    assert said["ok"] is False
    assert made["e"] in [f["id"] for f in said["faults"]]
    assert run("verify", made["path"], "--head", "f" * 32).exit_code == 1


def test_a_file_that_is_no_store_exits_2(tmp_path):
    for command in ("ls", "verify"):
        found = run(command, tmp_path / "none.db")
        assert found.exit_code == 2
        assert "there is no such file" in found.output
    assert list(tmp_path.iterdir()) == []
