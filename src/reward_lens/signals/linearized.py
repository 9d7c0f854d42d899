"""A readout with the final norm frozen: exact and linear in the residual stream."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from reward_lens.backbone import FrozenNorm, Trunk
from reward_lens.signals.readouts import Readout


@dataclass(frozen=True)
class Linearized:
    """A readout with the final norm held at its value on ``n`` last states: exact and linear.

    Attributes
    ----------
    u : Tensor
        float64 ``[n, width]``: the functional on the residual stream.
    constant : float
        What the norm's and the head's biases add.
    direction : Tensor
        float64 ``[width]``, in the coordinates after the norm.
    norm : FrozenNorm, optional
    """

    u: Tensor
    constant: float
    direction: Tensor
    norm: FrozenNorm | None

    def norm_rounding(self, last_state: Tensor, normed: Tensor) -> Tensor:
        """What the norm's own arithmetic loses, read along the direction: float64 ``[n]``."""
        exact = self.norm.apply(last_state) if self.norm is not None else last_state.double()
        return (normed.double() - exact) @ self.direction


def linearize(trunk: Trunk, readout: Readout, last_state: Tensor) -> Linearized:
    """Hold the final norm at its value on last states.

    Parameters
    ----------
    last_state : Tensor
        ``[n, width]``, the stream after the last block.
    """
    w = readout.direction.double()
    frozen = trunk.freeze_final_norm(last_state)
    if frozen is None:
        return Linearized(w.expand(len(last_state), -1), readout.bias, w, None)
    constant = float(w @ frozen.bias) + readout.bias
    return Linearized(frozen.pull_back(w), constant, w, frozen)
