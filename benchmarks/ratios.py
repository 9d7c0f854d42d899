"""CPU time of each call in units of its floor; ``python -m benchmarks.ratios small``."""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from dataclasses import asdict

import numpy as np
import torch

from benchmarks.targets import CALLS, Result
from benchmarks.workload import Work, build_model, build_pairs, calls, floors
from reward_lens.signals import wrap_hf_model

#: Pairs of one run, and how often it is run: a run lasts seconds. On a machine that does other work
#: at the same time, many short runs in turn vary less than a few long ones.
PAIRS = {"small": 32, "medium": 8}
REPEATS = {"small": 15, "medium": 7}


def seconds(work: Work) -> float:
    """CPU seconds of one run, garbage of earlier ones collected first."""
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def interleave(ours: Work, floor: Work, repeats: int) -> list[tuple[float, float]]:
    """Run both in turn, each first every other time; seconds of ours and of the floor."""
    found = []
    for k in range(repeats):
        if k % 2:
            mine, bare = seconds(ours), seconds(floor)
        else:
            bare, mine = seconds(floor), seconds(ours)
        found.append((mine, bare))
    return found


def refuse_wrong_floor(measured: dict[str, Work], bare: dict[str, Work]) -> None:
    """Raise unless floors and calls compute the same numbers; this also warms both up."""
    scores, prefixes = bare["score"](), bare["score_prefixes"]()
    margins = np.subtract(*np.split(scores, 2))
    pairs = {
        "score": (measured["score"]().value.values, scores),
        "score_prefixes": (measured["score_prefixes"]().value.values, prefixes),
        "lens": (measured["lens"]().value.sel(reading="applied").values[:, -1], margins),
        "attribution": (
            measured["attribution"]().value.sel(side="margin").sum("write").values,
            margins,
        ),
    }
    for name, (ours, expected) in pairs.items():
        np.testing.assert_allclose(
            ours, expected, atol=1e-4, err_msg=f"{name} and its floor differ, so no ratio"
        )


def measure(shape: str) -> list[Result]:
    """Measure all calls on one model."""
    model, tokenizer = build_model(shape)
    pairs = build_pairs(PAIRS[shape])
    signal = wrap_hf_model(model, tokenizer)
    once = seconds(lambda: signal.fingerprint)
    measured, bare = calls(signal, pairs), floors(model, pairs)
    refuse_wrong_floor(measured, bare)
    results = []
    for name in CALLS:
        runs = interleave(measured[name], bare[name], REPEATS[shape])
        ratios = [mine / floor for mine, floor in runs]
        mine, floor = (statistics.median(side) for side in zip(*runs, strict=True))
        detail = (
            f"{mine:.2f} s against {floor:.2f} s, {PAIRS[shape]} pairs, {REPEATS[shape]} repeats"
        )
        value = statistics.median(ratios)
        results.append(Result(name, shape, value, min(ratios), max(ratios), "x", detail))
    results.append(
        Result("hash of weights", shape, once, once, once, "s", "once a signal; not in x")
    )
    return results


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps([asdict(r) for r in measure(sys.argv[1])]) + "\n")
