"""Out to JSON lines and Parquet and back, and what a file cannot bring with it."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from trust_kit import calibrated, grid, prediction, scorecard

from reward_lens.errors import EvidenceError
from reward_lens.evidence import EvidenceStore, TrustLevel, read_jsonl, write_jsonl
from reward_lens.evidence.transfer import export_records, import_records

STRONG = {"L1.mlp_out": 0.9}
ODD = grid(value=xr.DataArray(np.array([np.nan, -0.0, 1 / 3], np.float16), dims="pair", name="v"))


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A store with every kind of record."""
    with EvidenceStore(tmp_path_factory.mktemp("full") / "e.db") as store:
        calibrated(store)
        registration = store.register(prediction())
        e = grid(STRONG)
        store.append(e)
        store.adjudicate(registration.id, e.id)
        store.append(ODD)
        yield store


@pytest.fixture
def empty(tmp_path):
    with EvidenceStore(tmp_path / "new.db") as store:
        yield store


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_whole_store_goes_out_and_comes_back(full, empty, tmp_path, suffix):
    out = tmp_path / f"all{suffix}"
    assert export_records(full, out) == len(full)
    assert import_records(empty, out, head=full.head) == len(full)
    assert empty.rows() == full.rows()
    assert empty.verify(full.head).ok
    assert empty.trust(grid(STRONG).id) is TrustLevel.ADJUDICATED
    assert np.array_equal(empty.get(ODD.id).value, ODD.value, equal_nan=True)
    assert [p.name for p in tmp_path.glob(".*")] == []


def test_parquet_is_one_row_a_record_with_its_exact_json(full, tmp_path):
    export_records(full, tmp_path / "all.parquet")
    table = pd.read_parquet(tmp_path / "all.parquet")
    assert len(table) == len(full)
    assert table["content"].tolist() == [r.content for r in full.rows()]
    assert table["seq"].tolist() == list(range(1, len(full) + 1))


def test_evidence_alone_is_a_file_of_evidence(full, empty, tmp_path):
    out = tmp_path / "e.jsonl"
    n = export_records(full, out, evidence_only=True)
    found = read_jsonl(out)
    assert found == full.find()
    assert n == len(found)
    assert import_records(empty, out) == n
    assert import_records(empty, out) == 0
    assert empty.find() == found
    assert empty.trust(grid(STRONG).id) is TrustLevel.EXPLORATORY


def test_evidence_from_parquet_into_a_store_that_holds_some(full, empty, tmp_path):
    out = tmp_path / "e.parquet"
    n = export_records(full, out, evidence_only=True)
    empty.append(ODD)
    assert import_records(empty, out) == n - 1
    assert empty.verify().ok


def test_what_a_file_says_of_scorecards_and_registrations_is_not_merged(full, empty, tmp_path):
    export_records(full, tmp_path / "all.jsonl")
    empty.append(grid(data="mine"))
    with pytest.raises(EvidenceError, match=r"3 records that are no evidence \(the first: scorec"):
        import_records(empty, tmp_path / "all.jsonl")
    assert len(empty) == 1


def edited(full, tmp_path, change):
    export_records(full, tmp_path / "all.jsonl")
    lines = [json.loads(x) for x in (tmp_path / "all.jsonl").read_text().splitlines()]
    change(lines)
    path = tmp_path / "edited.jsonl"
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return path


def set_content(line, **fields):
    line["content"] = json.dumps({**json.loads(line["content"]), **fields})


FORGED = {
    "a verdict": (lambda x: set_content(x[120], passed=True), r"unknown \['passed'\]"),
    "a rung": (lambda x: set_content(x[0], trust="ADJUDICATED"), r"unknown \['trust'\]"),
    "a rung beside": (lambda x: x[0].update(trust=3), r"line 1: malformed row: .*'trust'"),
    "a threshold": (lambda x: set_content(x[120], threshold=0.01), "its content is sc-"),
    "an outcome": (lambda x: set_content(x[123], held=False), "its content is oc-"),
    "an anchor": (lambda x: set_content(x[121], anchor="git commit 1"), "its content is rg-"),
    "a number": (
        lambda x: x[0].update(content=x[0]["content"].replace("0.2", "1.8")), "altered",
    ),
    "a record left out": (lambda x: x.pop(3), "3 records that are no evidence"),
    "the tail left out": (lambda x: x.pop(), "no record has the hash"),
    "the order": (lambda x: x.reverse(), "3 records that are no evidence"),
    "a clock": (lambda x: x[7].update(added="1999"), "record 8.*altered"),
    "a hash": (lambda x: x[7].update(hash="f" * 32), "store is append-only|altered"),
    "half a row": (lambda x: x[7].pop("previous"), r"line 8: malformed row: missing \['prev"),
    "a type": (lambda x: x[7].update(seq="8"), "malformed row: seq='8'"),
    "no id": (lambda x: x[7].update(id=None), "malformed row: id=None"),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_file_is_refused_and_nothing_of_it_is_kept(full, empty, tmp_path, what):
    change, why = FORGED[what]
    path = edited(full, tmp_path, change)
    with pytest.raises(EvidenceError, match=why):
        import_records(empty, path, head=full.head)
    assert len(empty) == 0
    assert empty.verify().ok


def test_a_card_in_a_file_of_evidence_is_no_evidence(empty, tmp_path):
    path = tmp_path / "e.jsonl"
    write_jsonl(path, [grid(STRONG)])
    with path.open("a") as out:
        out.write(json.dumps(scorecard(()).to_dict()) + "\n")
    with pytest.raises(EvidenceError, match="line 2: evidence: malformed record: missing"):
        import_records(empty, path)
    path.write_text(json.dumps({**grid().to_dict(), "trust": "CALIBRATED"}) + "\n")
    with pytest.raises(EvidenceError, match=r"line 1: .*unknown \['trust'\]"):
        import_records(empty, path)
    assert len(empty) == 0


def test_files_that_do_not_fit_are_refused(full, empty, tmp_path):
    with pytest.raises(EvidenceError, match=r"end it in \.jsonl or \.parquet"):
        export_records(full, tmp_path / "all.csv")
    path = tmp_path / "e.jsonl"
    write_jsonl(path, [grid()])
    with pytest.raises(EvidenceError, match="without a chain, so that no head"):
        import_records(empty, path, head="f")
    export_records(full, tmp_path / "all.jsonl")
    path.write_text(path.read_text() + (tmp_path / "all.jsonl").read_text())
    with pytest.raises(EvidenceError, match="some lines have a place in a chain and some do not"):
        import_records(empty, path)
    (tmp_path / "bad.parquet").write_text("no")
    with pytest.raises(EvidenceError, match="no Parquet file"):
        import_records(empty, tmp_path / "bad.parquet")
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(EvidenceError, match=r"row 1: malformed row.*unknown \['a'\]"):
        import_records(empty, tmp_path / "other.parquet")
    write_jsonl(path, [grid(parents=("ev-9",))])
    with pytest.raises(EvidenceError, match="ev-9, which is not in the store"):
        import_records(empty, path)


def test_an_export_that_fails_leaves_the_old_file(full, tmp_path, monkeypatch):
    path = tmp_path / "all.jsonl"
    path.write_text("old")
    monkeypatch.setattr("reward_lens.evidence.transfer.json.dumps", lambda x: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_records(full, path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["all.jsonl"]
