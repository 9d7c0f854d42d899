"""Peak memory of one call over the loaded model; ``python -m benchmarks.memory small lens 128``.

One call in one process: what an earlier call left behind would hide what this one needs.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.workload import build_model, build_pairs, calls, floors
from reward_lens.evidence import Evidence
from reward_lens.signals import wrap_hf_model

_STATUS = Path("/proc/self/status")
MB = 1e6
#: Pairs of the call before the one that is measured: with one, no interval would be computed.
_FIRST = 8


def resident() -> float:
    """Memory of this process now, in MB."""
    return _status("VmRSS")


def peak() -> float:
    """Most memory this process has had since :func:`forget_peak`, in MB."""
    return _status("VmHWM")


def forget_peak() -> None:
    """Start a new peak at the memory of now.

    Without this the peak would be that of loading the model, which can be higher than anything
    after it (and ``getrusage`` starts at the parent's).
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what loading left free must not serve the call unseen
    Path("/proc/self/clear_refs").write_text("5")


def _status(field: str) -> float:
    line = next(x for x in _STATUS.read_text().splitlines() if x.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024 / MB


def returned(value: Any) -> float:
    """Memory of what a call returned, in MB."""
    if not isinstance(value, Evidence):
        return float(value.nbytes) / MB
    arrays = [value.value, *value.value.coords.values()]
    tables = [t.memory_usage(deep=True).sum() for t in value.tables.values()]
    return float(sum(a.nbytes for a in arrays) + sum(tables)) / MB


def measure(shape: str, call: str, n_pairs: int) -> dict[str, float]:
    """Peak over the model and size of the result, in MB; ``call="bare"`` for the bare scores."""
    model, tokenizer = build_model(shape)
    signal = wrap_hf_model(model, tokenizer)

    def work(n: int) -> Any:
        pairs = build_pairs(n)
        return floors(model, pairs)["score"] if call == "bare" else calls(signal, pairs)[call]

    run = work(n_pairs)
    work(_FIRST)()  # what is imported or built at the first call does not depend on the pairs
    forget_peak()
    before = resident()
    value = run()
    return {"peak": peak() - before, "returned": returned(value)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    sys.stdout.write(json.dumps(found) + "\n")
