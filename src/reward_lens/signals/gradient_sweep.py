"""Values and gradients of a readout at many sites, item by item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from reward_lens.backbone import Encoded, Site
from reward_lens.backbone.gradients import score_gradients
from reward_lens.signals.classifier import ClassifierRM
from reward_lens.signals.derivatives import row_score
from reward_lens.signals.readouts import Readout

#: What a forward and a backward cost, in forwards: no weight gets a gradient, so that the backward
#: multiplies by each weight once, as the forward does.
FORWARD_AND_BACKWARD = 2.0


@dataclass(frozen=True)
class ItemGradients:
    """What one item's forward and backward gave.

    Attributes
    ----------
    item : int
    score : float
    values, slopes : dict
        Site -> its tensor and the gradient of the score with respect to it, ``[n_tokens, width]``
        in the trunk's dtype.
    """

    item: int
    score: float
    values: dict[Site, Tensor]
    slopes: dict[Site, Tensor]


def gradient_sweep(
    signal: ClassifierRM,
    encoded: Sequence[Encoded],
    items: Sequence[int],
    sites: Sequence[Site],
    readout: Readout,
    read: Sequence[int],
    batch_tokens: int,
    embedded: Mapping[int, Tensor] | None = None,
) -> Iterator[ItemGradients]:
    """Run some items forward and backward, a batch at a time.

    Parameters
    ----------
    encoded, read : sequences
        All items, and the token that is read of each.
    items : sequence of int
        Which of them to run.
    sites : sequence of Site
        As :func:`~reward_lens.backbone.gradients.score_gradients` takes them.
    embedded : mapping, optional
        Item -> ``[n_tokens, width]`` to run with in place of the stream entering the first block.

    Raises
    ------
    AnatomyError, NumericsError
    """
    trunk, numbers = signal.trunk, np.asarray(items, dtype=np.int64)
    score = row_score(readout, read)
    for batch in trunk.batches([encoded[i] for i in items], batch_tokens):
        batch = replace(batch, index=numbers[batch.index])
        given = None
        if embedded is not None:
            rows = [embedded[int(i)] for i in batch.index]
            given = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        found = score_gradients(trunk, batch, sites, score, given)
        for row, (item, length) in enumerate(zip(batch.index, batch.lengths.tolist(), strict=True)):
            yield ItemGradients(
                int(item),
                float(found.score[row]),
                {site: t[row, :length] for site, t in found.values.items()},
                {site: t[row, :length] for site, t in found.slopes.items()},
            )


def quadrature(steps: int) -> list[tuple[float, float]]:
    """Points between 0 and 1 and their weights, which add up to 1 (Gauss–Legendre)."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return [(float(x + 1) / 2, float(w) / 2) for x, w in zip(nodes, weights, strict=True)]
