"""The store: what goes in comes out, in order, and nothing can be changed."""

from __future__ import annotations

import gc
import json
import os
import sqlite3
import threading
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from test_record import make
from trust_kit import grid

from reward_lens.errors import EvidenceError
from reward_lens.evidence import EvidenceStore, TrustLevel
from reward_lens.evidence.records import entry_of
from reward_lens.evidence.schema import APPLICATION, VERSION


@pytest.fixture
def store(tmp_path):
    with EvidenceStore(tmp_path / "e.db") as opened:
        yield opened


def test_every_bit_comes_back(store):
    values = np.array([np.nan, -0.0, np.inf, 1 / 3], dtype=np.float16)
    labels = np.array(["a", "\u2028", "ß", ""], dtype=object)
    odd = grid(value=xr.DataArray(values, dims="pair", coords={"pair": labels}, name="v"))
    store.append(odd)
    back = store.get(odd.id)
    assert back == odd
    assert back.value.dtype == np.float16
    assert back.value.values.tobytes() == values.tobytes()
    assert back.value["pair"].values.tolist() == labels.tolist()


def test_text_that_utf8_does_not_have_can_be_found(store):
    e = grid(instrument="lens \ud800", readout="\0")
    store.append(e)
    assert store.find(instrument="lens \ud800", readout="\0") == [e]
    assert store.verify().ok


def test_the_same_record_again_is_no_second_one(store):
    e = grid()
    assert store.append(e) == store.append(grid()) == e.id
    assert store.append_all([grid(), grid(data="other"), grid()])[0] == e.id
    assert len(store) == 2
    assert [r.id for r in store] == [e.id, grid(data="other").id]
    assert e.id in store
    assert "ev-0" not in store


def test_a_parent_that_is_missing_is_named(store):
    child = grid(parents=("ev-missing",))
    with pytest.raises(EvidenceError, match=f"{child.id} was computed from ev-missing.*append"):
        store.append(child)
    with pytest.raises(EvidenceError, match="ev-missing"):
        store.append_all([grid(), child])
    assert len(store) == 0


def test_parents_at_hand_go_in_with_it(store):
    grandparent = grid(data="g")
    parent = grid(data="p", parents=(grandparent.id,)).with_parents(grandparent)
    child = grid(parents=(parent.id,)).with_parents(parent)
    assert child.id == grid(parents=(parent.id,)).id
    assert child.at_hand == [grandparent, parent]
    assert store.append(child) == child.id
    assert [r.id for r in store] == [grandparent.id, parent.id, child.id]
    with pytest.raises(EvidenceError, match=f"was not computed from {child.id}"):
        parent.with_parents(child)


@settings(max_examples=8, deadline=None)
@given(st.permutations(range(5)), st.data())
def test_parents_stand_before_their_children_whatever_the_order(tmp_path_factory, order, data):
    family = []
    for k in range(5):
        parents = data.draw(st.sets(st.sampled_from(family), max_size=3)) if family else set()
        family.append(grid(data=str(k), parents=tuple(e.id for e in parents)))
    path = tmp_path_factory.mktemp("store") / "e.db"
    with EvidenceStore(path) as store:
        ids = store.append_all([family[k] for k in order])
        assert ids == [family[k].id for k in order]
        for e in family:
            assert set(store.parents(e.id)) == set(e.provenance.parents)
            assert all(store.seq(p) < store.seq(e.id) for p in store.ancestors(e.id))
        assert store.verify().ok


def test_ancestors_are_parents_of_parents(store):
    a = grid(data="a")
    b = grid(data="b", parents=(a.id,))
    c = grid(data="c", parents=(b.id, a.id, b.id))
    store.append_all([c, b, a])
    assert store.parents(c.id) == store.ancestors(c.id) == [a.id, b.id]
    assert store.ancestors(a.id) == []
    with pytest.raises(EvidenceError, match="there is no record ev-9"):
        store.ancestors("ev-9")


def test_find_by_everything(store):
    first, second = grid(), grid(signal="s2", data="d2", readout="criterion:1", instrument="lens")
    third = grid(value=make().value, data="dat")  # the same request with another answer
    store.append_all([first, second])
    moment = datetime.now(UTC)
    store.append(third)
    assert store.find() == [first, second, third]
    for name, wanted in (("signal", "s2"), ("data", "d2"), ("readout", "criterion:1"),
                         ("instrument", "lens"), ("request_key", second.request_key)):  # fmt: skip
        assert store.find(**{name: wanted}) == [second]
    assert store.find(since=2) == [third]
    assert store.find(since=moment) == [third]
    assert store.find(since=moment + timedelta(hours=1)) == []
    assert store.find(signal="s2", data="dat") == []
    with pytest.raises(EvidenceError, match="time zone"):
        store.find(since=datetime(2026, 1, 1))


def test_a_request_finds_its_answers_newest_first(store):
    again = grid(value=make().value)
    store.append_all([grid(), grid(data="other")])
    store.append(again)
    assert grid().request_key == again.request_key
    assert store.by_request(grid().request_key) == [again, grid()]
    assert store.by_request("rq-none") == []


def test_the_table_has_a_row_a_record(store):
    store.append_all([grid(), grid(data="other")])
    table = store.to_dataframe()
    assert table["id"].tolist() == [grid().id, grid(data="other").id]
    assert table.index.tolist() == [1, 2]
    assert table["data"].tolist() == ["dat", "other"]
    assert table["trust"].tolist() == ["exploratory"] * 2
    assert table["hash"].iloc[-1] == store.head


def test_what_is_read_or_written_asks_the_store(tmp_path):
    with EvidenceStore(tmp_path / "e.db") as store:
        e = grid()
        store.append(e)
        back = store.get(e.id)
        assert e.has_store
        assert back.has_store
        assert "because: no scorecard of patch_grid v1" in back.receipt()
    assert not e.has_store
    assert "attached to no store" in back.receipt()
    assert back.trust is TrustLevel.EXPLORATORY


def test_a_store_that_is_let_go_of_is_closed(tmp_path):
    gc.disable()
    try:
        e = EvidenceStore(tmp_path / "e.db")
        found = e.append(grid())
        del e
        assert not list(tmp_path.glob("*-wal"))  # SQLite removes it with the last connection
    finally:
        gc.enable()
    with EvidenceStore(tmp_path / "e.db") as store:
        assert found in store


def test_a_closed_store_says_so(store):
    store.close()
    store.close()
    with pytest.raises(EvidenceError, match="closed; open it again"):
        store.append(grid())
    assert "closed" in repr(store)


CHANGES = {
    "an update": "UPDATE records SET content = 'x' WHERE seq = 1",
    "a deletion": "DELETE FROM records WHERE seq = 2",
    "a cut": "DELETE FROM records",
    "a replacement": "INSERT OR REPLACE INTO records SELECT * FROM records WHERE seq = 1",
    "a replacement under another name": (
        "REPLACE INTO records SELECT 1, added, kind, 'ev-new', request_key, instrument, version, "
        "signal, data, readout, content, 'p', 'h' FROM records WHERE seq = 1"
    ),
    "a row in between": (
        "INSERT INTO records SELECT -1, added, kind, 'ev-new', request_key, instrument, version, "
        "signal, data, readout, content, 'p', 'h' FROM records WHERE seq = 1"
    ),
    "a fork": (
        "INSERT INTO records SELECT 3, added, kind, 'ev-new', request_key, instrument, version, "
        "signal, data, readout, content, '00000000000000000000000000000000', 'h' FROM records "
        "WHERE seq = 1"
    ),
    "a link taken away": "DELETE FROM links",
    "a link turned": "UPDATE links SET parent = child",
    "a link replaced": "REPLACE INTO links SELECT * FROM links",
}


@pytest.mark.parametrize("what", CHANGES)
def test_nothing_can_be_changed(store, what):
    store.append_all([grid(), grid(data="child", parents=(grid().id,))])
    head = store.head
    raw = sqlite3.connect(store.path)
    with pytest.raises(sqlite3.IntegrityError, match="the store is append-only"), raw:
        raw.execute(CHANGES[what])
    raw.close()
    assert store.head == head
    assert store.verify(head).ok


def test_a_record_whose_content_was_changed_by_force_is_refused(store):
    e = grid()
    said = e.id
    object.__setattr__(e, "instrument", "lens")
    with pytest.raises(EvidenceError, match=f"says it is {said}.*altered"):
        store.append(e)
    assert len(store) == 0


def test_two_writers_and_a_reader_in_threads(store):
    def write(k):
        for j in range(10):
            store.append(grid(data=f"{k}-{j}"))

    threads = [threading.Thread(target=write, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(store) == 30
    assert store.verify().ok


def test_a_forked_process_opens_its_own(store):
    store.append(grid())
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.append(grid(data="other"))
        except EvidenceError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as said:
        assert "opened by another process; open it again" in said.read()
    store.append(grid(data="other"))
    assert len(store) == 2


# The file.


def old_file(path, evidences, *, id=None):
    """A file of version 0, as its description in the schema says, made by hand."""
    raw = sqlite3.connect(path)
    with raw:
        raw.execute("CREATE TABLE evidence (id TEXT PRIMARY KEY, content TEXT NOT NULL)")
        for e in evidences:
            raw.execute("INSERT INTO evidence VALUES (?, ?)", (id or e.id, json.dumps(e.to_dict())))
    raw.close()


def test_an_old_file_is_brought_up_and_loses_nothing(tmp_path):
    parent = grid(data="parent")
    child = grid(parents=(parent.id,))
    old_file(tmp_path / "old.db", [child, parent])
    with EvidenceStore(tmp_path / "old.db") as store:
        assert [r.id for r in store] == [child.id, parent.id]
        assert store.parents(child.id) == [parent.id]
        assert store.verify().ok
        store.append(grid(data="new"))
    raw = sqlite3.connect(tmp_path / "old.db")
    assert raw.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert raw.execute("PRAGMA application_id").fetchone() == (APPLICATION,)
    assert raw.execute("SELECT name FROM sqlite_master WHERE name = 'evidence'").fetchall() == []
    raw.close()


def test_an_old_file_that_was_altered_stays_as_it_was(tmp_path):
    path = tmp_path / "old.db"
    old_file(path, [grid()], id="ev-other")
    with pytest.raises(EvidenceError, match=f"row ev-other of the old file holds {grid().id}"):
        EvidenceStore(path)
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT id FROM evidence").fetchall() == [("ev-other",)]
    raw.close()


def test_what_is_no_store_is_refused(tmp_path):
    with pytest.raises(EvidenceError, match="there is no such file"):
        EvidenceStore(tmp_path / "missing.db", create=False)
    assert not (tmp_path / "missing.db").exists()
    with pytest.raises(EvidenceError, match="cannot be opened"):
        EvidenceStore(tmp_path / "no" / "folder.db")
    text = tmp_path / "notes.txt"
    text.write_text("not a database " * 200)
    with pytest.raises(EvidenceError, match="not a database"):
        EvidenceStore(text)
    assert text.read_text() == "not a database " * 200
    other = sqlite3.connect(tmp_path / "other.db")
    with other:
        other.execute("CREATE TABLE songs (name TEXT)")
    other.close()
    with pytest.raises(EvidenceError, match=r"something else; its tables: \['songs'\]"):
        EvidenceStore(tmp_path / "other.db")


def test_a_newer_store_is_refused(store):
    with sqlite3.connect(store.path) as raw:
        raw.execute(f"PRAGMA user_version = {VERSION + 1}")
    raw.close()
    with pytest.raises(EvidenceError, match=r"newer reward-lens \(store version 2.*update"):
        EvidenceStore(store.path)


def test_a_damaged_file_is_refused(store):
    store.append_all([grid(data=str(k)) for k in range(30)])
    store.close()
    raw = bytearray(store.path.read_bytes())
    raw[4096:] = b"\xff" * (len(raw) - 4096)
    store.path.write_bytes(raw)
    with pytest.raises(EvidenceError, match="damaged|malformed"):
        EvidenceStore(store.path)


def test_without_its_triggers_a_store_takes_nothing(store):
    store.append(grid())
    with sqlite3.connect(store.path) as raw:
        raw.execute("DROP TRIGGER records_no_update")
    raw.close()
    with pytest.raises(EvidenceError, match="'records_no_update'.*missing or changed.*tampered"):
        store.append(grid(data="other"))
    found = store.verify()
    assert not found.ok
    assert "records_no_update" in str(found)


def test_all_that_is_missing_of_the_schema_is_named(store):
    with sqlite3.connect(store.path) as raw:
        names = [n for (n,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
        for name in names:
            raw.execute(f"DROP TRIGGER {name}")
    raw.close()
    (fault,) = store.verify().faults
    assert len(names) == 6
    assert all(repr(name) in fault.what for name in names)
    assert fault.what.endswith("are missing or changed")


def test_a_row_is_what_the_content_says(store):
    e = grid()
    entry = entry_of(e)
    assert (entry.kind, entry.id, entry.request_key) == ("evidence", e.id, e.request_key)
    assert (entry.instrument, entry.signal, entry.data) == ("patch_grid", "sig", "dat")
    assert json.loads(entry.content) == e.to_dict()
