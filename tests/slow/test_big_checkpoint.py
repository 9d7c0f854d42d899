"""A checkpoint of a gigabyte in shards: how much memory its load takes, and what it scores.

What was measured is written to ``big_checkpoint.json`` when all of it held, with a hash of the code
it speaks of.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from code_fingerprint import code_fingerprint
from families import BOS, EOS, PAD, VOCAB, make_tokenizer
from transformers import LlamaConfig, LlamaForSequenceClassification

pytestmark = pytest.mark.slow

RECORD = Path(__file__).with_name("big_checkpoint.json")
ITEMS = [("Why is the sky blue?", "Air scatters blue light most."), ("Name a colour.", "Blue.")]

#: Loads in a process of its own. A tiny checkpoint first, so that everything that is imported when
#: it is first needed is there, and what is measured is the load. The kernel's own figures are read:
#: what getrusage calls the peak starts with that of the process that forked this one.
_LOAD = """
import json, re, sys
import reward_lens as rl

def memory(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1])

tiny, big, items = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
rl.load_signal(tiny, dtype="bfloat16").score(items)
before, earlier = memory("VmRSS"), memory("VmHWM")
signal = rl.load_signal(big, dtype="bfloat16")
loaded = memory("VmHWM")
scores = signal.score(items).value.values
print(json.dumps({
    "earlier": earlier - before,
    "load": loaded - before,
    "scored": memory("VmHWM") - before,
    "scores": scores.tobytes().hex(),
    "dtype": signal.meta.dtype,
    "granularity": signal.meta.granularity,
    "quickcheck": signal.meta.quickcheck,
}))
"""


def save(folder: Path, **sizes: int) -> int:
    """Save a random bfloat16 model and its tokenizer in shards; return the bytes of its weights."""
    config = LlamaConfig(
        vocab_size=VOCAB, num_attention_heads=16, num_key_value_heads=8, num_labels=1,
        max_position_embeddings=256, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, **sizes,
    )  # fmt: skip
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = LlamaForSequenceClassification(config)
    finally:
        torch.set_default_dtype(default)
    model.save_pretrained(folder, max_shard_size="300MB")
    make_tokenizer().save_pretrained(folder)
    return sum(p.numel() * p.element_size() for p in model.parameters())


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The checkpoint's size, its shards, and two processes' loads of it."""
    if not Path("/proc/self/status").is_file():
        pytest.skip("this system does not tell a process's peak memory in /proc")
    tiny, big = tmp_path_factory.mktemp("tiny"), tmp_path_factory.mktemp("big")
    save(tiny, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
    weights = save(big, hidden_size=1024, intermediate_size=2816, num_hidden_layers=48)
    command = [sys.executable, "-c", _LOAD, str(tiny), str(big), json.dumps(ITEMS)]
    runs = []
    for _ in range(2):  # one after the other: together they would share what is in memory
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return weights, len(list(big.glob("*.safetensors"))), runs


@pytest.fixture(scope="module")
def record(request):
    """Collects what the tests measured; written at the end if none failed."""
    found = {}
    failed, code = request.session.testsfailed, code_fingerprint()  # of the code that runs now
    yield found
    if request.session.testsfailed == failed and len(found) == 4:
        body = {"code": code, "measured": found}
        RECORD.write_text(json.dumps(body, indent=1, sort_keys=True) + "\n")


def test_it_is_a_gigabyte_in_at_least_three_shards(measured, record):
    weights, shards, _ = measured
    record["weights in GB"] = round(weights / 1e9, 2)
    record["shards"] = shards
    assert weights > 0.95e9
    assert shards >= 3


def test_a_load_takes_little_more_memory_than_the_weights(measured, record):
    weights, _, runs = measured
    share = max(r["load"] for r in runs) / weights
    record["peak memory of a load over the weights"] = round(share, 3)
    for run in runs:
        assert run["earlier"] < 0.05 * weights  # nothing before hides the peak
        assert run["dtype"] == "bfloat16"
        assert run["quickcheck"] == "passed"
    assert 0.5 < share <= 1.1
    assert max(r["scored"] for r in runs) / weights <= 1.1


def test_two_processes_score_the_same_bits(measured, record):
    _, _, runs = measured
    scores = [np.frombuffer(bytes.fromhex(r["scores"]), dtype=np.float32) for r in runs]
    record["finest writes found"] = runs[0]["granularity"]
    assert runs[0]["scores"] == runs[1]["scores"]
    assert np.isfinite(scores[0]).all()
    assert scores[0][0] != scores[0][1]
