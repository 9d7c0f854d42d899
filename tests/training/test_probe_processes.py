"""The probe in a training run of two processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

_TESTS = Path(__file__).resolve().parent.parent
_RUN = """
import json, sys
from pathlib import Path
from test_reward_probe import PROBE, RewardProbe, make_trainer

trainer = make_trainer(Path(sys.argv[1]), max_steps=4, eval_steps=2)
probe = RewardProbe(PROBE).attach(trainer)
trainer.train()
metrics = {k: v for k, v in trainer.evaluate().items() if k.startswith("eval_probe_")}
print(json.dumps([type(trainer.model_wrapped).__name__, len(probe.history), metrics]))
"""


@pytest.mark.slow  # two processes, each importing everything
def test_one_process_measures_and_every_process_has_the_values(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(_TESTS), str(_TESTS / "training")])
    running = [
        subprocess.Popen(
            [sys.executable, "-c", _RUN, str(tmp_path / rank)],
            env={
                **os.environ, "PYTHONPATH": path, "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank,
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]  # fmt: skip
    try:
        first, second = (
            json.loads(p.communicate(timeout=120)[0].strip().splitlines()[-1]) for p in running
        )
    finally:
        for p in running:
            p.kill()
    assert first[0] == second[0] == "DistributedDataParallel"
    assert (first[1], second[1]) == (3, 0)
    assert first[2] == second[2]
    assert 0 <= first[2]["eval_probe_accuracy"] <= 1
