"""Stores opened to read only, where nothing can be written too; predictions that come too late."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from pathlib import Path

import pytest
from test_store import old_file
from trust_kit import grid, prediction

from reward_lens.errors import EvidenceError
from reward_lens.evidence import EvidenceStore

#: A user without rights, where the tests run as root, whom no mode of a file stops.
NOBODY = 65534


@pytest.fixture
def path(tmp_path):
    with EvidenceStore(tmp_path / "e.db") as store:
        store.append(grid())
    return tmp_path / "e.db"


def test_a_store_opened_to_read_says_all_and_takes_nothing(path):
    before = path.read_bytes()
    with EvidenceStore(path, read_only=True) as store:
        assert store.get(grid().id) == grid()
        assert store.verify(store.head).ok
        assert store.to_dataframe()["trust"].tolist() == ["exploratory"]
        for write in (
            lambda: store.append(grid(data="other")),
            lambda: store.register(prediction(data="other")),
            lambda: store.restore([]),
        ):
            with pytest.raises(EvidenceError, match="opened to read only; to write, open it by"):
                write()
    assert path.read_bytes() == before


def test_a_reader_sees_what_a_writer_adds_meanwhile(path):
    with EvidenceStore(path) as writer, EvidenceStore(path, read_only=True) as reader:
        id = writer.append(grid(data="other"))
        assert id in reader
        assert reader.verify(writer.head).ok


def test_reading_neither_makes_nor_brings_up_a_file(tmp_path):
    with pytest.raises(EvidenceError, match="there is no such file"):
        EvidenceStore(tmp_path / "none.db", read_only=True)
    (tmp_path / "empty.db").touch()
    with pytest.raises(EvidenceError, match="is empty, no evidence store"):
        EvidenceStore(tmp_path / "empty.db", read_only=True)
    old_file(tmp_path / "old.db", [grid()])
    before = (tmp_path / "old.db").read_bytes()
    with pytest.raises(EvidenceError, match="store version 0, this one reads 1.*open it once by"):
        EvidenceStore(tmp_path / "old.db", read_only=True)
    assert (tmp_path / "old.db").read_bytes() == before
    with sqlite3.connect(tmp_path / "songs.db") as raw:
        raw.execute("CREATE TABLE songs (name TEXT)")
    raw.close()
    with pytest.raises(EvidenceError, match="something else; its tables"):
        EvidenceStore(tmp_path / "songs.db", read_only=True)


def as_nobody(call):
    """What the call says, or the error that it ends in, in a process that modes do stop."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            said = call()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, str(said).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as out:
        said = out.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def sealed():
    """Copies files into a folder that may be read by all and written by nobody."""
    # Not below tmp_path, which other users may not enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def seal(*files):
            for file in files:
                shutil.copy(file, folder)
                (folder / file.name).chmod(0o444)
            folder.chmod(0o555)
            return folder / files[0].name

        yield seal
        folder.chmod(0o755)


def checked(path):
    with EvidenceStore(path, read_only=True) as store:
        return f"{len(store)} records, {store.verify().ok}"


def test_where_nothing_can_be_written_a_store_can_be_read(path, sealed):
    there = sealed(path)
    assert as_nobody(lambda: checked(there)) == "1 records, True"
    assert [p.name for p in there.parent.iterdir()] == ["e.db"]
    said = as_nobody(lambda: EvidenceStore(there))
    assert "readonly database; to read it only, open it by EvidenceStore(path, read_only" in said


def test_an_empty_log_beside_it_hides_nothing(path, sealed):
    log = path.with_name("e.db-wal")
    log.touch()
    there = sealed(path, log)
    assert as_nobody(lambda: checked(there)) == "1 records, True"


def test_a_log_beside_it_is_read_or_refused(path, sealed):
    with EvidenceStore(path) as store:
        store.append(grid(data="in the log"))
        files = [path.with_name(f"e.db{end}") for end in ("", "-wal", "-shm")]
        assert files[1].stat().st_size
        there = sealed(*files)
    assert as_nobody(lambda: checked(there)) == "2 records, True"
    there.parent.chmod(0o755)
    there.with_name("e.db-shm").unlink()
    there.parent.chmod(0o555)
    said = as_nobody(lambda: checked(there))
    assert said.startswith("EvidenceError")
    assert "e.db-wal beside it may hold its last records" in said
    assert "copy both files to one that can" in said


# Predictions about what was measured already.


def test_a_prediction_that_could_never_count_is_refused_at_once(path):
    with EvidenceStore(path) as store:
        for readout in (None, "reward"):
            with pytest.raises(EvidenceError, match=f"could never count.*{grid().id}, record 1"):
                store.register(prediction(readout=readout))
        with pytest.raises(EvidenceError, match="or name a readout that it has not read"):
            store.register(prediction())
        assert len(store) == 1
        for open_ in ({"signal": None}, {"data": None}, {"data": "fresh"}, {"signal": "s2"},
                      {"readout": "criterion:1"}, {"instrument": "lens"}):  # fmt: skip
            assert store.register(prediction(**open_)).id in store


def test_the_same_registration_again_is_no_late_one(tmp_path):
    with EvidenceStore(tmp_path / "e.db") as store:
        first = store.register(prediction())
        store.append(grid())
        assert store.register(prediction()) == first
        assert len(store) == 2
        with pytest.raises(EvidenceError, match="could never count"):
            store.register(prediction(), anchor="git commit 1a2b3c")
