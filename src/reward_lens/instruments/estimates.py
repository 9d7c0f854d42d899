"""First-order estimates of patch effects, from one forward and backward of each side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from reward_lens.backbone import Site, Target
from reward_lens.backbone.batching import plan_batches
from reward_lens.data import Pairs
from reward_lens.instruments.sides import Sides
from reward_lens.instruments.token_alignment import Aligned, align_tokens
from reward_lens.progress import Progress, expect
from reward_lens.signals import ClassifierRM
from reward_lens.signals.gradient_sweep import (
    FORWARD_AND_BACKWARD,
    ItemGradients,
    gradient_sweep,
    quadrature,
)
from reward_lens.signals.readouts import Readout

Floats = npt.NDArray[np.float64]
#: Site -> float64 ``[token, width]``.
Rows = dict[Site, Tensor]
Sweep = Callable[..., Iterable[ItemGradients]]

#: Direction -> whether the side that is run is the rejected one.
SIDE_RUN = {"noise": False, "denoise": True}

_EMBED = Site("embed")


@dataclass(frozen=True)
class Estimates:
    """First-order effects of every target, and what they were made from.

    Attributes
    ----------
    effects : ndarray, [direction, pair, target]
        In reward units.
    scores : ndarray, [2, pair]
        Of the chosen and the rejected side.
    moved : ndarray of int, [pair]
        Tokens that became another one on the way to the other side; 0 without steps.
    forwards : float
        Cost in forwards of one item.
    """

    effects: Floats
    scores: Floats
    moved: npt.NDArray[np.int64]
    forwards: float

    def pair_table(
        self, sides: Sides, tokens: Sequence[Aligned], sampled: Pairs | None
    ) -> pd.DataFrame:
        """One row per pair: scores, margin and tokens."""
        n = len(sides.pairs)
        lengths = np.array([len(e.ids) for e in sides.encoded])
        patched = np.array([len(t) for t in tokens])
        return pd.DataFrame(
            {
                "pair": sides.pairs.ids,
                "score_chosen": self.scores[0],
                "score_rejected": self.scores[1],
                "margin": self.scores[0] - self.scores[1],
                "patched": patched,
                "untouched_chosen": lengths[:n] - patched,
                "untouched_rejected": lengths[n:] - patched,
                "moved": self.moved,
                "sampled": np.isin(sides.pairs.ids, sampled.ids if sampled is not None else []),
            }
        )


@dataclass(frozen=True)
class _SideRun:
    """One side of a pair as the one that is run.

    Attributes
    ----------
    item, other : int
        The side that is run, and the other.
    at : tuple of int
        Its patched tokens.
    moving, towards : tuple of int
        Its tokens whose embeddings move, and the tokens of the other side they move to.
    """

    item: int
    other: int
    at: tuple[int, ...]
    moving: tuple[int, ...] = ()
    towards: tuple[int, ...] = ()

    def move(self, seen: Mapping[int, ItemGradients]) -> Tensor:
        """How far each token's embedding is from where it moves to: ``[n_tokens, width]``."""
        own, other = (seen[i].values[_EMBED] for i in (self.item, self.other))
        move = torch.zeros_like(own)
        move[list(self.moving)] = other[list(self.towards)] - own[list(self.moving)]
        return move


def estimate_effects(
    signal: ClassifierRM,
    sides: Sides,
    tokens: Sequence[Aligned],
    targets: Sequence[Target],
    readout: Readout,
    directions: Sequence[str],
    steps: int,
    batch_tokens: int,
    progress: Progress | None,
) -> Estimates:
    """Estimate every target's effect on every pair.

    Parameters
    ----------
    tokens : sequence of Aligned, [pair]
        The tokens that are patched.
    steps : int
        Points of the way to the other side over which gradients are averaged; 0 for the gradient at
        the side itself.

    Notes
    -----
    Both sides of as many pairs as fit a batch are held at a time; products are in float64. Of
    identical sides every effect is 0.
    """
    n = len(sides.pairs)
    effects, scores = np.empty((len(directions), n, len(targets))), np.empty((2, n))
    ways = [_way(sides, k) if steps else Aligned((), (), 0) for k in range(n)]
    sites = list(dict.fromkeys([t.source for t in targets] + ([_EMBED] if steps else [])))
    sweep = partial(gradient_sweep, signal, sides.encoded, sites=sites, readout=readout,
                    read=sides.read, batch_tokens=batch_tokens)  # fmt: skip
    expect(progress, 2 * n)
    for group in _groups(sides, batch_tokens):
        items = [*group, *(n + k for k in group)]
        seen = {one.item: one for one in sweep(items)}
        for k in group:
            scores[:, k] = seen[k].score, seen[n + k].score
        for d, direction in enumerate(directions):
            runs = [_side_run(direction, k, n, tokens[k], ways[k]) for k in group]
            for k, slopes in zip(group, _slopes(sweep, seen, runs, steps), strict=True):
                if not len(tokens[k]):
                    effects[d, k] = np.nan  # nothing of this pair is patched
                    continue
                if sides.identical(k):  # what two rows of a batch differ by is rounding
                    effects[d, k] = 0.0
                    continue
                part = _products(slopes, seen[k].values, seen[n + k].values, tokens[k])
                effects[d, k] = [
                    float(t.of(part[t.source], signal.trunk.anatomy).sum()) for t in targets
                ]
        if progress is not None:
            progress(len(items))
    cost = FORWARD_AND_BACKWARD * n * (2 + steps * len(directions))
    return Estimates(effects, scores, np.array([len(w) - w.same for w in ways]), cost)


def _groups(sides: Sides, batch_tokens: int) -> Iterator[list[int]]:
    """Pairs whose two sides together fill a batch, longest first."""
    n = len(sides.pairs)
    both = zip(sides.encoded[:n], sides.encoded[n:], strict=True)
    longer = [max(pair, key=lambda e: len(e.ids)) for pair in both]
    return plan_batches(longer, max(1, batch_tokens // 2))


def _way(sides: Sides, pair: int) -> Aligned:
    """The tokens of a pair whose embeddings move: all, or those that stand beside each other."""
    a, b = (sides.encoded[i].ids for i in (pair, len(sides.pairs) + pair))
    if len(a) != len(b):
        return align_tokens(a, b)
    every = tuple(range(len(a)))
    return Aligned(every, every, int((a == b).sum()))


def _side_run(direction: str, pair: int, n: int, tokens: Aligned, way: Aligned) -> _SideRun:
    if SIDE_RUN[direction]:
        return _SideRun(n + pair, pair, tokens.rejected, way.rejected, way.chosen)
    return _SideRun(pair, n + pair, tokens.chosen, way.chosen, way.rejected)


def _slopes(
    sweep: Sweep, seen: Mapping[int, ItemGradients], runs: Sequence[_SideRun], steps: int
) -> list[Rows]:
    """The gradient at the patched tokens of each run, or its mean on the way to the other side."""
    if not steps:
        return [_rows(seen[run.item].slopes, run.at) for run in runs]
    by_item = {run.item: run for run in runs}
    moves = {item: run.move(seen) for item, run in by_item.items()}
    mean: dict[int, Rows] = {}
    for share, weight in quadrature(steps):
        embedded = {i: seen[i].values[_EMBED] + share * moves[i] for i in by_item}
        for one in sweep(list(by_item), embedded=embedded):
            for site, rows in _rows(one.slopes, by_item[one.item].at).items():
                so_far = mean.setdefault(one.item, {}).get(site, torch.zeros_like(rows))
                mean[one.item][site] = so_far + weight * rows
    return [mean[run.item] for run in runs]


def _rows(tensors: Mapping[Site, Tensor], at: tuple[int, ...]) -> Rows:
    return {site: tensor[list(at)].double() for site, tensor in tensors.items()}


def _products(
    slopes: Rows, chosen: Mapping[Site, Tensor], rejected: Mapping[Site, Tensor], tokens: Aligned
) -> Rows:
    """Gradient times difference, summed over the patched tokens: site -> float64 ``[width]``."""
    first, second = _rows(chosen, tokens.chosen), _rows(rejected, tokens.rejected)
    return {site: (slope * (first[site] - second[site])).sum(0) for site, slope in slopes.items()}
