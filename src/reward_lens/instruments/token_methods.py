"""What each token of a text adds to its score, by gradients and by leaving it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from reward_lens.backbone import Encoded, Site
from reward_lens.backbone.batching import plan_batches
from reward_lens.backbone.reading import read_index
from reward_lens.errors import TokenizeError
from reward_lens.instruments.sides import Sides
from reward_lens.instruments.token_units import Floats, Ragged, Span
from reward_lens.progress import Progress, expect
from reward_lens.signals import ClassifierRM
from reward_lens.signals.gradient_sweep import gradient_sweep, quadrature
from reward_lens.signals.readouts import Readout
from reward_lens.signals.scoring import scores_at

#: Baseline of integrated gradients -> what stands in place of each embedding of the response.
BASELINES = {"mean": "the mean over the response's own tokens", "zero": "zero"}

_EMBED = Site("embed")


@dataclass(frozen=True)
class EmbeddingGradients:
    """Gradient × input and integrated gradients of every item.

    Attributes
    ----------
    gradient, integrated : list of ndarray, [item]
        float64 ``[token]`` in reward units; ``integrated`` is NaN outside the response, and without
        steps.
    score, baseline : ndarray, [item]
        The score of the item, and that of its baseline (NaN without steps).
    """

    gradient: Ragged
    integrated: Ragged
    score: Floats
    baseline: Floats


def embedding_gradients(
    signal: ClassifierRM,
    sides: Sides,
    responses: Sequence[Span],
    readout: Readout,
    baseline: str,
    steps: int,
    batch_tokens: int,
    progress: Progress | None,
) -> EmbeddingGradients:
    """Differentiate every item's score with respect to what enters the first block.

    Parameters
    ----------
    responses : sequence of (int, int), [item]
        The tokens that move between baseline and item; what is around them stays.
    baseline : str
        A key of :data:`BASELINES`.
    steps : int
        Points between baseline and item over which the gradient is averaged (Gauss–Legendre); 0 for
        none.
    """
    gradient = [np.full(len(e.ids), np.nan) for e in sides.encoded]
    integrated = [np.full(len(e.ids), np.nan) for e in sides.encoded]
    score, bottom = (np.full(len(sides.encoded), np.nan) for _ in range(2))
    sweep = partial(gradient_sweep, signal, sides.encoded, sites=[_EMBED], readout=readout,
                    read=sides.read, batch_tokens=batch_tokens)  # fmt: skip
    expect(progress, len(sides.encoded))
    for group in plan_batches(sides.encoded, batch_tokens):
        embeddings = {}
        for one in sweep(group):
            embeddings[one.item] = one.values[_EMBED]
            score[one.item] = one.score
            gradient[one.item] = _dot(one.values[_EMBED], one.slopes[_EMBED])
        if steps:
            moves = {i: _move(embeddings[i], responses[i], baseline) for i in group}
            ends = {i: embeddings[i] - moves[i] for i in group}
            for one in sweep(group, sites=[], embedded=ends):
                bottom[one.item] = one.score
            mean = {i: torch.zeros_like(embeddings[i], dtype=torch.float64) for i in group}
            for share, weight in quadrature(steps):
                for one in sweep(group, embedded={i: ends[i] + share * moves[i] for i in group}):
                    mean[one.item] += weight * one.slopes[_EMBED]
            for i in group:
                where = slice(*responses[i])
                integrated[i][where] = _dot(moves[i], mean[i])[where]
        if progress is not None:
            progress(len(group))
    return EmbeddingGradients(gradient, integrated, score, bottom)


def _move(embedding: Tensor, response: Span, baseline: str) -> Tensor:
    """The item's embeddings less the baseline's: ``[token, width]``, zero around the response."""
    move = torch.zeros_like(embedding)
    inside = embedding[slice(*response)]
    mean = inside.double().mean(0).to(inside.dtype)
    move[slice(*response)] = inside if baseline == "zero" else inside - mean
    return move


def _dot(a: Tensor, b: Tensor) -> Floats:
    """Products summed over channels, in float64: ``[token, width]`` to ``[token]``."""
    out: Floats = (a.double() * b.double()).sum(-1).cpu().numpy()
    return out


def leave_out(
    signal: ClassifierRM,
    sides: Sides,
    readout: str,
    position: str | None,
    parts: Sequence[Sequence[Span]],
    batch_tokens: int,
    progress: Progress | None,
) -> Ragged:
    """What the score loses when a part of an item's ids is dropped and the rest is run again.

    Parameters
    ----------
    parts : sequence, [item]
        Half-open token spans of each item, each left out alone.

    Returns
    -------
    list of ndarray, [item]
        float64 ``[part]``: the score less that of the rest; NaN where the rest has nothing that the
        head, or the gate of a composite, could read.
    """
    losses: Ragged = []
    gated = signal.readout(readout).kind == "composite"
    done = None if progress is None else partial(progress)  # all of it is announced here
    expect(progress, sum(1 + len(spans) for spans in parts))
    for encoded, spans in zip(sides.encoded, parts, strict=True):
        rests = [_without(signal, encoded, span, gated=gated) for span in spans]
        runs = [encoded, *(rest for rest in rests if rest is not None)]
        bound = signal.bound(readout, runs, batch_tokens)
        reads = signal.read_index(runs, position)
        found = scores_at(signal, runs, bound, (reads,), batch_tokens, done)[:, 0].astype(
            np.float64
        )
        loss = np.full(len(spans), np.nan)
        loss[[rest is not None for rest in rests]] = found[0] - found[1:]
        losses.append(loss)
    return losses


def _without(signal: ClassifierRM, encoded: Encoded, span: Span, *, gated: bool) -> Encoded | None:
    """An item without some of its tokens; ``None`` where nothing is left to read."""
    gone = slice(*span)
    ids = np.delete(encoded.ids, gone)
    try:
        native = read_index(ids, signal.encoder.rule, signal.encoder.pad_id)
        if gated:
            signal.gate.index(ids)  # refuses ids without what it is read at
    except TokenizeError:
        return None
    types = None if encoded.types is None else np.delete(encoded.types, gone)
    return replace(encoded, ids=ids, native=native, types=types)
