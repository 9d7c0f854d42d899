"""Readouts: the named scalars of a signal, each a direction read at a site and a position."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from reward_lens.backbone import Position, Site

if TYPE_CHECKING:
    from reward_lens.backbone import Trunk


@dataclass(frozen=True, eq=False)
class Readout:
    """A named scalar: ``direction · through(state) + bias``.

    Attributes
    ----------
    name : str
    kind : str
        ``"linear"`` for a head that is one linear map.
    site : Site
        Where the state is read.
    position : Position
        Which token is read.
    through : tuple of str
        What lies between the site and the direction, e.g. ``("final_norm",)``.
    direction : Tensor
        float32 ``[width]``, in the coordinates after ``through``.
    bias : float
    meta : mapping
        For the mean over the rows of a multi-row head:
        ``{"aggregate": "row_mean", "legacy": True, "bias": ...}``.
    rows : tuple of int
        The rows of the head that the readout averages.
    """

    name: str
    kind: str
    site: Site
    position: Position
    through: tuple[str, ...]
    direction: Tensor
    bias: float
    rows: tuple[int, ...]
    trunk: Trunk = field(repr=False)
    meta: Mapping[str, Any] = field(default_factory=dict)

    def project(self, state: Tensor) -> Tensor:
        """Read states taken at ``site``.

        Parameters
        ----------
        state : Tensor
            ``[..., width]``, any dtype.

        Returns
        -------
        Tensor
            float32 ``[...]``: everything in ``through`` applied, then the direction and the bias.
        """
        flat = state.reshape(-1, state.shape[-1])
        if "final_norm" in self.through:
            flat = self.trunk.apply_final_norm(flat)
        return self.read(flat).reshape(state.shape[:-1])

    def read(self, normed: Tensor) -> Tensor:
        """Read states that already passed ``through``: ``[..., width]`` to float32 ``[...]``."""
        return normed.to(torch.float32) @ self.direction + self.bias

    @property
    def note(self) -> str:
        """What must stand beside every number of this readout; empty if nothing."""
        if self.meta.get("aggregate") == "row_mean":
            return f"legacy row mean of {len(self.rows)} objectives"
        return ""
