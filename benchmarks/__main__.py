"""Measure everything, print the table, end with 1 over a target: ``python -m benchmarks``.

This process only starts others and judges: each measurement gets a fresh process with one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.targets import MEMORY_CALLS, MEMORY_PAIRS, Result, judge, table

ROOT = Path(__file__).resolve().parent.parent
STARTS = 5

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
# Freed memory goes back to the system at once, so that the peak is that of memory in use; glibc
# otherwise keeps tens of MB, more or less by chance (it did for the bare forward too).
_GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}

_IMPORT = "import time; t = time.process_time(); import reward_lens; print(time.process_time() - t)"
# The classes are named because `import transformers` alone loads next to nothing of it.
_FROM_TINY = """
import time
import torch
from transformers import GPT2TokenizerFast
from transformers.models.llama.modeling_llama import LlamaForSequenceClassification
t = time.process_time()
import reward_lens
reward_lens.from_tiny()
print(time.process_time() - t)
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks; 0 if every target is met, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the small model only")
    quick = parser.parse_args(arguments).quick
    results = []
    for result in measure(("small",) if quick else ("small", "medium")):
        sys.stderr.write(f"{result.measure} {result.subject}: {result.value:.3f}\n")
        results.append(result)
    misses = judge(results, ("medium",) if quick else ())
    sys.stdout.write(
        "CPU seconds of one thread; x = bare transformers forward over the same texts; models "
        f"with random weights\n\n{table(results)}\n\n"
    )
    sys.stdout.write("\n".join(misses or ["all targets met"]) + "\n")
    return 1 if misses else 0


def measure(shapes: tuple[str, ...]) -> Iterator[Result]:
    """All results, quickest first; memory on the small model."""
    yield startup("import reward_lens", _IMPORT)
    yield startup("from_tiny", _FROM_TINY)
    for shape in shapes:
        for part in ("benchmarks.ratios", "benchmarks.causal"):
            yield from (Result(**r) for r in run("-m", part, shape))
    for call in ("bare", *MEMORY_CALLS):
        yield memory("small", call)


def startup(name: str, code: str) -> Result:
    """CPU seconds that ``code`` prints, each time in a fresh process."""
    times = [float(run("-c", code)) for _ in range(STARTS)]
    detail = f"median of {STARTS} processes"
    return Result(name, "", statistics.median(times), min(times), max(times), "s", detail)


def memory(shape: str, call: str) -> Result:
    """How much the peak over the model grows with the number of pairs, beyond what is returned."""
    few, many = (
        run("-m", "benchmarks.memory", shape, call, str(n), environment=_GIVE_BACK)
        for n in MEMORY_PAIRS
    )
    grown = (many["peak"] - many["returned"]) - (few["peak"] - few["returned"])
    detail = (
        f"peak {few['peak']:.1f} MB over the model at {MEMORY_PAIRS[0]} pairs, {many['peak']:.1f} "
        f"at {MEMORY_PAIRS[1]}; returned {few['returned']:.1f} and {many['returned']:.1f}"
    )
    return Result(f"memory {call}", shape, grown, grown, grown, "MB", detail)


def run(*arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    """Run Python with these arguments; the JSON value in the last line it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **_ONE_THREAD, **_OFFLINE, **(environment or {})},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
