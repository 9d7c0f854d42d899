"""Scores read off the stream at every depth, in both readings of the lens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import Encoded, Site, freeze_stream, stream_sites
from reward_lens.progress import Progress
from reward_lens.signals.classifier import ClassifierRM
from reward_lens.signals.readouts import Readout
from reward_lens.signals.sweeping import Swept

Floats = npt.NDArray[np.float64]


def depth_readings(
    signal: ClassifierRM,
    encoded: Sequence[Encoded],
    read: Sequence[int],
    readout: Readout,
    batch_tokens: int,
    progress: Progress | None,
) -> Floats:
    """Read every item at every depth.

    Returns
    -------
    ndarray of float64, [item, reading, depth]
        Readings ``frozen`` and ``applied``.

    Raises
    ------
    AnatomyError
        If the stream is normed inside blocks that did not verify: then it cannot be frozen.
    """
    trunk = signal.trunk
    depths = [Site("embed"), *(Site("resid_post", k) for k in range(trunk.n_layers))]
    normed_inside = any(b.norms or b.scaled for b in trunk.anatomy.blocks)
    sites = stream_sites(trunk.anatomy) if normed_inside else depths
    values = np.empty((len(encoded), 2, len(depths)))
    sweep = signal.sweep(
        encoded, [*sites, Site("final_norm")], read, batch_tokens=batch_tokens, progress=progress
    )
    for seen in sweep:
        exact = signal.linearize(readout, seen)
        stream = freeze_stream(trunk.anatomy, seen.sites, exact.u) if normed_inside else None
        rest = exact.constant + exact.head_constant
        for depth, site in enumerate(depths):
            u = exact.u if stream is None else stream.depth[depth]
            partial = (seen.sites[site].double() * u).sum(-1)
            if stream is not None:  # the biases of norms that are still to come
                partial = partial + stream.constant[depth]
            values[seen.index, 0, depth] = (seen.total(partial) + rest).cpu().numpy()
            values[seen.index, 1, depth] = _applied(readout, seen, site).cpu().numpy()
    return values


@torch.no_grad()
def _applied(readout: Readout, seen: Swept, site: Site) -> Tensor:
    """Norm and head on the stream at one depth, as if the network ended there."""
    state = seen.sites[site]
    if len(state) == len(seen.index):
        return readout.project(state, seen.index)
    normed = readout.trunk.apply_final_norm(state).float()
    weight = seen.weight.float()
    if readout.head.pool == "late":
        return seen.total(readout.read(normed, seen.index[seen.owner.cpu().numpy()]) * weight)
    return readout.read(seen.total(normed * weight[:, None]), seen.index)
