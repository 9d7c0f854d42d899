"""The exact decomposition of a score into the writes to the residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import (
    Encoded,
    FrozenStream,
    Site,
    freeze_stream,
    head_shares,
    stream_sites,
    write_sites,
)
from reward_lens.errors import CapabilityError, NumericsError
from reward_lens.progress import Progress
from reward_lens.signals.classifier import BATCH_TOKENS, ClassifierRM
from reward_lens.signals.readouts import Readout
from reward_lens.signals.sweeping import Swept

BY = ("component", "head")
#: Largest gap between the sum of the writes and the score, in shares of the sum of their sizes.
COMPLETENESS_FP32 = 1e-6
#: The same with the write ``rounding``: this tests the bookkeeping and holds in any dtype.
CLOSURE = 1e-9

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Decomposition:
    """Every write's projection, per item.

    Attributes
    ----------
    names : list of str
        ``embed``, one per sublayer or head, ``bias`` (what the biases of norms and of a linear
        head add), ``head_constant`` where the head is not linear (what it has beside its
        direction at the item), and last ``rounding``.
    shares : ndarray, [item, write]
    score : ndarray, [item]
        In float64, from the same final state.
    """

    names: list[str]
    shares: Floats
    score: Floats

    @property
    def completeness(self) -> float:
        """Largest ``|Σ writes − score| / Σ|writes|`` over items, ``rounding`` left out."""
        return _largest_gap(self.shares[:, :-1], self.score)

    @property
    def closure(self) -> float:
        """The same with ``rounding``."""
        return _largest_gap(self.shares, self.score)

    def refuse_if_incomplete(self, dtype: str, interventions: Sequence[str] = ()) -> None:
        """Raise unless the writes add up to the score.

        Parameters
        ----------
        dtype : str
            Of the trunk.
        interventions : sequence of str
            What is done in every forward, which may change the stream beside its writes.

        Raises
        ------
        NumericsError
            If the bookkeeping does not close, or, in float32, the writes miss the score.
        """
        done = (
            f" What is done in every forward of this signal ({'; '.join(interventions)}) changes "
            f"the stream itself, or a write as a whole, and is no component's part: attribution "
            f"takes interventions on embed, attn_out, mlp_out and, by head, on heads."
        ) * bool(interventions)
        if not self.closure <= CLOSURE:
            raise NumericsError(
                f"the writes and their rounding miss the score by {self.closure:.1e} of their size "
                f"(allowed {CLOSURE:.0e}): a fault of the decomposition, please report it." + done
            )
        if dtype == "float32" and not self.completeness <= COMPLETENESS_FP32:
            raise NumericsError(
                f"the writes miss the score by {self.completeness:.1e} of their size (allowed "
                f"{COMPLETENESS_FP32:.0e} in float32): something is added to the stream that was "
                f"not found." + done
            )


def _largest_gap(shares: Floats, score: Floats) -> float:
    size = np.abs(shares).sum(
        1
    )  # all zero where a head or a gain is: then there is nothing to miss
    gap = np.abs(shares.sum(1) - score)
    return float(np.where(size > 0, gap / np.where(size > 0, size, 1), gap).max())


def decompose(
    signal: ClassifierRM,
    encoded: Sequence[Encoded],
    read: Sequence[int],
    readout: Readout,
    *,
    by: str = "component",
    directions: Tensor | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Decomposition:
    """Project every write of every item on the readout, with all norms frozen at the item.

    Parameters
    ----------
    encoded, read : sequences
        Items and the token index to read of each.
    by : {"component", "head"}
    directions : Tensor, optional
        float64 ``[item, width]``: directions on the normed state instead of the head's own
        gradient at the item.

    Raises
    ------
    CapabilityError
        If ``by`` is unknown.
    AnatomyError
        If a block's writes, or its heads, did not verify.

    Notes
    -----
    Whether the writes add up is not judged here; see :meth:`Decomposition.refuse_if_incomplete`.
    """
    if by not in BY:
        raise CapabilityError(f"by={by!r}: choose one of {', '.join(BY)}")
    sites = [*stream_sites(signal.trunk.anatomy), Site("final_norm")]
    if by == "head":
        sites += [Site(k, s.layer) for s in write_sites(signal.trunk.anatomy)
                  if s.kind == "attn_out" for k in ("head_in", "attn_raw")]  # fmt: skip
    names: list[str] = []
    shares: Floats | None = None
    score = np.empty(len(encoded))
    sweep = signal.sweep(encoded, sites, read, batch_tokens=batch_tokens, progress=progress)
    for seen in sweep:
        names, parts, exact_score = _project(signal, seen, readout, by, directions)
        if shares is None:
            shares = np.empty((len(encoded), len(names)))
        shares[seen.index] = parts.cpu().numpy()
        score[seen.index] = exact_score.cpu().numpy()
    assert shares is not None  # there is at least one item, so there was at least one batch
    return Decomposition(names, shares, score)


def _project(
    signal: ClassifierRM, seen: Swept, readout: Readout, by: str, directions: Tensor | None
) -> tuple[list[str], Tensor, Tensor]:
    """Writes of one batch: their names, ``[item, write]``, and the score, all in float64."""
    states, anatomy = seen.sites, signal.trunk.anatomy
    exact = signal.linearize(readout, seen, directions)
    stream = freeze_stream(anatomy, states, exact.u)
    names = ["embed"]
    parts = [_share(states[Site("embed")], stream.depth[0])]
    lost = stream.rounding
    for site in write_sites(anatomy):
        share = _share(states[site], stream.writes[site])
        if by == "head" and site.kind == "attn_out":
            each, constant = _heads(signal, states, stream, site)
            names += [f"L{site.layer}.H{h}" for h in range(each.shape[-1])]
            names.append(f"L{site.layer}.attn_bias")
            parts += [*each.unbind(-1), constant]
            lost = lost + share - each.sum(-1) - constant
        else:
            names.append(str(site))
            parts.append(share)
    totals = [seen.total(p) for p in parts]
    names.append("bias")
    totals.append(exact.constant + seen.total(stream.constant[0]))
    if not readout.affine:
        names.append("head_constant")
        totals.append(exact.head_constant)
    names.append("rounding")
    totals.append(exact.rounding + seen.total(lost))
    return names, torch.stack(totals, -1), exact.score


def _share(state: Tensor, functional: Tensor) -> Tensor:
    return (state.double() * functional).sum(-1)


def _heads(
    signal: ClassifierRM, states: dict[Site, Tensor], stream: FrozenStream, site: Site
) -> tuple[Tensor, Tensor]:
    write = signal.trunk.anatomy.write(Site("head_out", site.layer))
    mixed, raw = states[Site("head_in", site.layer)], states[Site("attn_raw", site.layer)]
    return head_shares(write, stream.writes[site], mixed, raw)
