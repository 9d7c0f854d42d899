"""Several processes on one file: nothing lost, nothing twice, and a killed one harms no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from trust_kit import grid

from reward_lens.evidence import EvidenceStore

# A writer makes one evidence and stores it under other ids by changing one setting, since it is
# the file that is tested here.
WRITER = """
import sys
sys.path.insert(0, {here!r})
from trust_kit import grid
from reward_lens.evidence import EvidenceStore
with EvidenceStore(sys.argv[1]) as store:
    for k in range(int(sys.argv[3])):
        print(store.append(grid(data=f"{{sys.argv[2]}}-{{k}}")), flush=True)
"""


def start(path, name, count):
    code = WRITER.format(here=str(Path(__file__).parent))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(name), str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def write_at_once(path, processes, each):
    running = [start(path, k, each) for k in range(processes)]
    said = [p.communicate()[0].split() for p in running]
    assert [p.returncode for p in running] == [0] * processes
    with EvidenceStore(path) as store:
        ids = [r.id for r in store.rows()]
        assert sorted(ids) == sorted(i for s in said for i in s)
        assert len(set(ids)) == processes * each
        for s in said:  # each one's own order is kept
            assert [i for i in ids if i in set(s)] == s
        assert store.verify(store.head).ok


def test_processes_that_make_one_new_file_and_write_to_it(tmp_path):
    write_at_once(tmp_path / "e.db", 4, 50)


@pytest.mark.slow
def test_eight_processes_with_five_hundred_each(tmp_path):
    write_at_once(tmp_path / "e.db", 8, 500)


def test_a_killed_process_loses_at_most_its_last_record(tmp_path):
    path = tmp_path / "e.db"
    victim, other = start(path, "victim", 10_000), start(path, "other", 40)
    said = [victim.stdout.readline().strip() for _ in range(15)]
    victim.send_signal(signal.SIGKILL)
    said += victim.stdout.read().split()
    victim.wait()
    victim.stdout.close()
    others = other.communicate()[0].split()
    assert other.returncode == 0
    with EvidenceStore(path) as store:
        ids = [r.id for r in store.rows()]
        stored = [i for i in ids if i not in set(others)]
        assert said == stored[: len(said)]
        assert len(stored) <= len(said) + 1  # stored, and killed before it could say so
        assert len(ids) == len(set(ids)) == len(stored) + 40
        assert store.verify().ok
        store.append(grid(data="after"))
        assert store.verify().ok
