"""What verify finds, and what trust makes of it: rows edited, deleted, moved, chains rebuilt."""

from __future__ import annotations

import json
import shutil
import sqlite3

import pytest
from trust_kit import calibrated, grid, prediction

from reward_lens.errors import EvidenceError
from reward_lens.evidence import EvidenceStore, TrustLevel
from reward_lens.evidence.chain import START, Row

STRONG = {"L1.mlp_out": 0.9}


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A store with an adjudicated evidence, closed, and that evidence's id."""
    path = tmp_path_factory.mktemp("honest") / "e.db"
    with EvidenceStore(path) as store:
        calibrated(store)
        registration = store.register(prediction())
        e = grid(STRONG)
        store.append(e)
        store.adjudicate(registration.id, e.id)
        store.append_all([grid(data=f"after-{k}") for k in range(3)])
        return path, e.id, store.head


@pytest.fixture
def tampered(tmp_path, honest):
    """Runs statements on a copy with the triggers dropped and put back."""
    path = tmp_path / "copy.db"

    def tamper(*statements):
        shutil.copy(honest[0], path)
        raw = sqlite3.connect(path)
        triggers = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        triggers = triggers.fetchall()
        with raw:
            for name, _ in triggers:
                raw.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                if callable(statement):
                    statement(raw)
                else:
                    raw.execute(statement)
            for _, sql in triggers:
                raw.execute(sql)
        raw.close()
        return EvidenceStore(path)

    return tamper


def test_an_honest_store_verifies(honest):
    with EvidenceStore(honest[0]) as store:
        found = store.verify(honest[2])
        assert found.ok
        assert found.records == len(store)
        assert store.trust(honest[1]) is TrustLevel.ADJUDICATED
        assert "every record and the chain verify" in str(found)


LAST = "(SELECT max(seq) FROM records)"
EDITS = {
    "content": "UPDATE records SET content = replace(content, '0.9', '1.9') WHERE seq = 5",
    "another kind": "UPDATE records SET kind = 'scorecard' WHERE seq = 5",
    "a clock": "UPDATE records SET added = '1999' WHERE seq = 5",
    "an index": "UPDATE records SET signal = 'sig' WHERE seq = 5",
    "an absent field": "UPDATE records SET data = '' WHERE kind = 'scorecard'",
    "a hash": "UPDATE records SET hash = 'f' WHERE seq = 5",
    "a link of the chain": "UPDATE records SET previous = 'f' WHERE seq = 5",
    "the last one": f"UPDATE records SET content = '{{}}' WHERE seq = {LAST}",
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edited_record_is_named_and_nothing_is_trusted(tampered, honest, what):
    with tampered(EDITS[what]) as store:
        found = store.verify()
        seq = {"an absent field": 121, "the last one": found.records}.get(what, 5)
        named = [r.id for r in store.rows() if r.seq == seq]
        assert next((f.seq, f.id) for f in found.faults) == (seq, *named)
        assert "altered" in str(found.faults[0])
        standing = store.standing(honest[1])
        assert standing.level is TrustLevel.EXPLORATORY
        assert "the store does not verify" in standing.because[0]
        assert f"record {seq}, {named[0]}: altered" in standing.because[0]
        assert "the store does not verify" in store.get(honest[1]).receipt()


def test_an_edit_of_the_evidence_itself_is_no_other_evidence(tampered, honest):
    edit = f"UPDATE records SET content = replace(content, '1.8', '9.8') WHERE id = '{honest[1]}'"
    with tampered(edit) as store:
        assert store.trust(honest[1]) is TrustLevel.EXPLORATORY
        with pytest.raises(EvidenceError, match="altered after it was measured"):
            store.get(honest[1])


def test_deleted_records_are_told_by_their_place(tampered, honest):
    with tampered("DELETE FROM records WHERE seq BETWEEN 5 AND 7", "DELETE FROM links") as store:
        found = store.verify()
        assert "record 8" in str(found.faults[0])
        assert "missing: 5 to 7" in str(found.faults[0])
        assert store.trust(honest[1]) is TrustLevel.EXPLORATORY
    with tampered("DELETE FROM records WHERE seq = 1") as store:
        assert "the records before it are missing: 1" in str(store.verify().faults[0])


def test_records_that_close_the_gap_are_found(tampered, honest):
    with tampered(
        "DELETE FROM records WHERE seq = 5", "UPDATE records SET seq = seq - 1 WHERE seq > 5"
    ) as store:
        found = store.verify()
        assert found.faults[0].seq == 5
        assert store.trust(honest[1]) is TrustLevel.EXPLORATORY


def test_records_in_another_order_are_found(tampered, honest):
    with tampered(
        "UPDATE records SET seq = -1 WHERE seq = 5",
        "UPDATE records SET seq = 5 WHERE seq = 6",
        "UPDATE records SET seq = 6 WHERE seq = -1",
    ) as store:
        assert {5, 6} <= {f.seq for f in store.verify().faults}
        assert store.trust(honest[1]) is TrustLevel.EXPLORATORY


def test_a_record_rehashed_alone_breaks_the_next_link(tampered, honest):
    def rehash(raw):
        row = Row(*raw.execute("SELECT * FROM records WHERE seq = 5").fetchone())
        row = row._replace(added="1999")
        new = (row.added, row.computed())
        raw.execute("UPDATE records SET added = ?, hash = ? WHERE seq = 5", new)

    with tampered(rehash) as store:
        (fault,) = store.verify().faults
        assert fault.seq == 6
        assert "does not follow the record before it" in fault.what
        assert store.trust(honest[1]) is TrustLevel.EXPLORATORY


def rebuild(raw, change=lambda row: row):
    previous = START
    rows = [Row(*r) for r in raw.execute("SELECT * FROM records ORDER BY seq").fetchall()]
    raw.execute("DELETE FROM records")
    for row in map(change, rows):
        row = row._replace(previous=previous)
        row = row._replace(hash=row.computed())
        raw.execute(f"INSERT INTO records VALUES ({', '.join('?' * len(row))})", row)
        previous = row.hash


def test_a_chain_written_anew_is_found_by_an_old_head(tampered, honest):
    def earlier(row):
        return row._replace(added="1999")

    with tampered(lambda raw: rebuild(raw, earlier)) as store:
        assert store.verify().ok  # nothing inside can tell
        found = store.verify(honest[2])
        assert not found.ok
        assert f"no record has the hash {honest[2]}" in str(found)
        assert "the chain was written anew" in str(found)


def test_a_cut_tail_is_found_by_an_old_head(tampered, honest):
    with tampered(f"DELETE FROM records WHERE seq = {LAST}") as store:
        assert store.verify().ok
        assert "records were cut off the end" in str(store.verify(honest[2]))


def test_an_old_head_still_holds_when_more_came(honest, tmp_path):
    shutil.copy(honest[0], tmp_path / "more.db")
    with EvidenceStore(tmp_path / "more.db") as store:
        store.append(grid(data="more"))
        assert store.head != honest[2]
        assert store.verify(honest[2]).ok


def test_a_rebuilt_chain_around_a_changed_number_is_found_by_its_id(tampered, honest):
    def better(row):
        if row.id != honest[1]:
            return row
        record = json.loads(row.content)
        record["tables"]["components"][2]["data"][3] = 9.0
        return row._replace(content=json.dumps(record))

    with tampered(lambda raw: rebuild(raw, better)) as store:
        (fault,) = store.verify().faults
        assert fault.id == honest[1]
        assert "altered after it was measured" in fault.what


def test_columns_and_links_that_say_something_else_are_found(tampered, honest):
    def moved(row):
        return row._replace(data="elsewhere") if row.id == honest[1] else row

    with tampered(lambda raw: rebuild(raw, moved)) as store:
        (fault,) = store.verify().faults
        assert "columns do not say what its content says" in fault.what
    with tampered("DELETE FROM links WHERE child LIKE 'oc-%'") as store:
        (fault,) = store.verify().faults
        assert fault.id.startswith("oc-")
        assert "its links are not those to the parents" in fault.what
