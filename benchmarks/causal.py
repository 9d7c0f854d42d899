"""CPU time of the causal instruments in bare forwards; ``python -m benchmarks.causal small``.

Pairs are of 64 to 256 tokens. Beside the ratio to the bare forwards over the same texts stand, for
the grid, those of the two ways it is done by hand: a full forward per patch, and all patches of an
item as rows of one batch.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.ratios import interleave
from benchmarks.targets import Result
from benchmarks.workload import BATCH_TOKENS, Bare, build_equal_pairs, build_model, build_pairs
from reward_lens.data import Pairs
from reward_lens.evidence import Evidence
from reward_lens.instruments import (
    attribution_patching,
    concept_dose_response,
    patch_grid,
    path_effects,
)
from reward_lens.signals import ClassifierRM, wrap_hf_model

LENGTHS = (64, 256)
#: Numbers of pairs of the grids, and how often each is run.
GRIDS = {4: 5, 32: 1}
REPEATS = 3
#: Tokens of each text of the pairs whose other positions are patched.
TEXT = 160

Call = Callable[[], Evidence]


@dataclass(frozen=True)
class Bench:
    """One model, and how its calls are measured."""

    shape: str
    model: Any
    signal: ClassifierRM

    def bare(self, pairs: Pairs) -> Bare:
        """The floor: both sides of pairs, once."""
        return Bare(self.model, [list(x.ids or ()) for x in (*pairs.chosen, *pairs.rejected)])

    def ratio(self, name: str, call: Call, pairs: Pairs, repeats: int, per: float = 1.0) -> Result:
        """Time of a call in bare forwards over the same texts, divided by ``per``."""
        runs = interleave(call, self.bare(pairs).score, repeats)
        ratios = [mine / floor / per for mine, floor in runs]
        mine, floor = (statistics.median(side) for side in zip(*runs, strict=True))
        detail = f"{mine:.2f} s against {floor:.2f} s, {len(pairs)} pairs, {repeats} repeats"
        if per != 1:
            detail += f", {per:g} of that floor is one forward for each of what is counted"
        value = statistics.median(ratios)
        return Result(name, self.shape, value, min(ratios), max(ratios), "x", detail)


def measure(shape: str) -> Iterator[Result]:
    """Measure everything on one model."""
    model, tokenizer = build_model(shape)
    bench = Bench(shape, model, wrap_hf_model(model, tokenizer))
    _ = bench.signal.fingerprint  # hashed once a signal; not in x
    refuse_wrong_grid(bench)
    yield from grids(bench)
    yield from by_hand(bench)
    yield from other_positions(bench)
    yield from others(bench)


def refuse_wrong_grid(bench: Bench) -> None:
    """Raise unless the fast grid is that of full forwards; this also warms up."""
    pairs = build_pairs(1, LENGTHS)
    options: dict[str, Any] = {"batch_tokens": BATCH_TOKENS}
    fast = patch_grid(bench.signal, pairs, **options).value.sel(quantity="effect").values
    slow = patch_grid(bench.signal, pairs, executor="full forward", **options)
    effects = slow.value.sel(quantity="effect").values
    np.testing.assert_allclose(
        fast, effects, atol=1e-5 * np.abs(effects).max() + 1e-6, err_msg="so no ratio"
    )


def grids(bench: Bench) -> Iterator[Result]:
    """The grid at the read token, one direction and both."""
    for n, repeats in GRIDS.items():
        pairs = build_pairs(n, LENGTHS)
        for by in ("component", "head"):
            for direction, said in (("noise", "one direction"), ("both", "both directions")):

                def call(
                    by: str = by, direction: str = direction, pairs: Pairs = pairs
                ) -> Evidence:
                    return patch_grid(
                        bench.signal, pairs, by=by, direction=direction, batch_tokens=BATCH_TOKENS
                    )

                yield bench.ratio(f"grid {by}, {said}, {n} pairs", call, pairs, repeats)


def by_hand(bench: Bench) -> Iterator[Result]:
    """The component grid of one pair by a full forward per patch, and by batches of patches."""
    pairs = build_pairs(1, LENGTHS)
    for batch_tokens, said in ((1, "a forward per patch"), (BATCH_TOKENS, "patches batched")):
        call = partial(patch_grid, bench.signal, pairs, direction="noise",
                       executor="full forward", batch_tokens=batch_tokens)  # fmt: skip
        yield bench.ratio(f"grid component by hand, {said}", call, pairs, 1)


def other_positions(bench: Bench) -> Iterator[Result]:
    """Components at every token, in forwards per patch; the clean runs are not counted."""
    for shared, said in ((0, "nothing shared"), (TEXT // 2, "half the text shared")):
        pairs = build_equal_pairs(2, TEXT, shared)
        found = patch_grid(bench.signal, pairs[:1], direction="noise", positions="aligned")
        patches = found.value.sizes["component"]
        call = partial(patch_grid, bench.signal, pairs, direction="noise", positions="aligned",
                       batch_tokens=BATCH_TOKENS)  # fmt: skip
        # A floor is both sides of every pair: half of it is one forward of each run side.
        runs = interleave(call, bench.bare(pairs).score, 1)
        ((mine, floor),) = runs
        value = (mine - floor) / (patches * floor / 2)
        detail = f"{mine:.2f} s, clean runs {floor:.2f} s, {len(pairs)} pairs, {patches} patches"
        yield Result(f"grid at other positions, {said}", bench.shape, value, value, value, "x",
                     detail)  # fmt: skip


def others(bench: Bench) -> Iterator[Result]:
    """Attribution patching, path effects and dose-response."""
    pairs, signal = build_pairs(4, LENGTHS), bench.signal
    options: dict[str, Any] = {"batch_tokens": BATCH_TOKENS}
    for by in ("component", "head"):
        call = partial(attribution_patching, signal, pairs, by=by, direction="noise", sample=0,
                       **options)  # fmt: skip
        yield bench.ratio(f"attribution patching {by}", call, pairs, REPEATS)
    last = signal.meta.n_layers - 1
    senders = ["embed", "L0.attn_out", f"L{last // 2}.mlp_out"]

    paths = partial(path_effects, signal, pairs, senders=senders, direction="noise", **options)
    count = int(paths().value.sel(quantity="effect").notnull().sum()) / len(pairs)
    yield bench.ratio("path effects, a path", paths, pairs, REPEATS, per=count / 2)
    doses = partial(concept_dose_response, signal, pairs, np.ones(signal.meta.width), **options)
    yield bench.ratio("dose-response, last layer", doses, pairs, REPEATS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps([asdict(r) for r in measure(sys.argv[1])]) + "\n")
