"""The exact decomposition of a score into the writes to the residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import Encoded, Site
from reward_lens.errors import CapabilityError, NumericsError
from reward_lens.signals.classifier import BATCH_TOKENS, ClassifierRM, Progress
from reward_lens.signals.linearized import Linearized
from reward_lens.signals.readouts import Readout

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
        ``embed``, one per sublayer or head, ``bias`` (what the biases of the norm and the head
        add), and last ``rounding``.
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
        writes = self.shares[:, :-1]
        return float((np.abs(writes.sum(1) - self.score) / np.abs(writes).sum(1)).max())

    @property
    def closure(self) -> float:
        """The same with ``rounding``."""
        size = np.abs(self.shares).sum(1)
        return float((np.abs(self.shares.sum(1) - self.score) / size).max())

    def refuse_if_incomplete(self, dtype: str) -> None:
        """Raise unless the writes add up to the score.

        Raises
        ------
        NumericsError
            If the bookkeeping does not close, or, in float32, the writes miss the score.
        """
        if self.closure > CLOSURE:
            raise NumericsError(
                f"the writes and their rounding miss the score by {self.closure:.1e} of their size "
                f"(allowed {CLOSURE:.0e}): a fault of the decomposition, please report it"
            )
        if dtype == "float32" and self.completeness > COMPLETENESS_FP32:
            raise NumericsError(
                f"the writes miss the score by {self.completeness:.1e} of their size (allowed "
                f"{COMPLETENESS_FP32:.0e} in float32): something is added to the stream that was "
                f"not found"
            )


def decompose(
    signal: ClassifierRM,
    encoded: Sequence[Encoded],
    read: Sequence[int],
    readout: Readout,
    *,
    by: str = "component",
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> Decomposition:
    """Project every write of every item on the readout, the final norm frozen at the item.

    Parameters
    ----------
    encoded, read : sequences
        Items and the token index to read of each.
    by : {"component", "head"}

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
    layers = range(signal.meta.n_layers)
    kinds = [
        "attn_out",
        "mlp_out",
        "resid_post",
        *(("head_in", "attn_raw") if by == "head" else ()),
    ]
    sites = [Site("embed"), Site("final_norm"), *(Site(k, i) for i in layers for k in kinds)]
    names: list[str] = []
    shares: Floats | None = None
    score = np.empty(len(encoded))
    sweep = signal.sweep(encoded, sites, read, batch_tokens=batch_tokens, progress=progress)
    for seen in sweep:
        names, parts, exact_score = _project(signal, seen.sites, readout, by)
        if shares is None:
            shares = np.empty((len(encoded), len(names)))
        shares[seen.index] = parts.cpu().numpy()
        score[seen.index] = exact_score.cpu().numpy()
    assert shares is not None  # there is at least one item, so there was at least one batch
    return Decomposition(names, shares, score)


def _project(
    signal: ClassifierRM, states: dict[Site, Tensor], readout: Readout, by: str
) -> tuple[list[str], Tensor, Tensor]:
    """Writes of one batch: their names, ``[batch, write]``, and the score, all in float64."""
    last_state = states[Site("resid_post", signal.meta.n_layers - 1)]
    normed = states[Site("final_norm")]
    exact = signal.linearize(readout, last_state)
    x = states[Site("embed")].double()
    names, parts = ["embed"], [(x * exact.u).sum(-1)]
    rounding = exact.norm_rounding(last_state, normed)
    for layer in range(signal.meta.n_layers):
        attn = states[Site("attn_out", layer)].double()
        mlp = states[Site("mlp_out", layer)].double()
        y = states[Site("resid_post", layer)].double()
        attn_share = (attn * exact.u).sum(-1)
        if by == "head":
            each, constant = _heads(signal, states, exact, layer)
            names += [f"L{layer}.H{h}" for h in range(each.shape[-1])] + [f"L{layer}.attn_bias"]
            parts += [*each.unbind(-1), constant]
            rounding = rounding + attn_share - each.sum(-1) - constant
        else:
            names.append(f"L{layer}.attn_out")
            parts.append(attn_share)
        names.append(f"L{layer}.mlp_out")
        parts.append((mlp * exact.u).sum(-1))
        rounding = rounding + ((y - x - attn - mlp) * exact.u).sum(-1)
        x = y
    names += ["bias", "rounding"]
    parts += [torch.full_like(rounding, exact.constant), rounding]
    score = normed.double() @ exact.direction + readout.bias
    return names, torch.stack(parts, -1), score


def _heads(
    signal: ClassifierRM, states: dict[Site, Tensor], exact: Linearized, layer: int
) -> tuple[Tensor, Tensor]:
    return signal.trunk.head_shares(
        layer, exact.u, states[Site("head_in", layer)], states[Site("attn_raw", layer)]
    )
