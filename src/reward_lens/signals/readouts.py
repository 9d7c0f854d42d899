"""Readouts: the named scalars of a signal, each a direction read at a site and a position."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reward_lens.backbone import Position, Site
from reward_lens.errors import CapabilityError

if TYPE_CHECKING:
    from reward_lens.backbone import HeadMap, Trunk

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Readout:
    """A named scalar: ``direction · through(state) + bias``.

    Attributes
    ----------
    name : str
    kind : str
        ``"linear"`` for rows of a head; ``"composite"`` where the direction depends on the item.
    site : Site
        Where the state is read.
    position : Position
        Which token is read.
    through : tuple of str
        What lies between the site and the direction: ``"final_norm"``, then the modules and
        activations of a head that is not linear.
    direction : Tensor
        float32 ``[width]``, in the coordinates after ``through``; of a composite, the mean over
        rows, for display (its own directions come with :meth:`at`).
    bias : float
    rows : tuple of int
        The rows of the head that the readout averages.
    sign : float
        What the head's rows were multiplied by.
    meta : mapping
        For the mean over the rows of a multi-row head:
        ``{"aggregate": "row_mean", "legacy": True, "bias": ...}``; ``label`` where the checkpoint
        names the row.
    directions, biases : Tensor, optional
        float32 ``[item, width]`` and ``[item]``: of a composite bound to items.
    """

    name: str
    kind: str
    site: Site
    position: Position
    through: tuple[str, ...]
    direction: Tensor = field(repr=False)
    bias: float
    rows: tuple[int, ...]
    sign: float
    trunk: Trunk = field(repr=False)
    meta: Mapping[str, Any] = field(default_factory=dict)
    directions: Tensor | None = field(default=None, repr=False)
    biases: Tensor | None = field(default=None, repr=False)

    @property
    def head(self) -> HeadMap:
        """The head the readout is part of."""
        return self.trunk.anatomy.head

    @property
    def affine(self) -> bool:
        """Whether the readout is an affine function of the state it reads."""
        return self.head.affine

    @property
    def note(self) -> str:
        """What must stand beside every number of this readout; empty if nothing."""
        if self.meta.get("aggregate") == "row_mean":
            return f"legacy row mean of {len(self.rows)} objectives"
        label = str(self.meta.get("label", ""))
        return label if self.kind == "composite" or not label else f"the row named {label}"

    def project(self, state: Tensor, index: Index | None = None) -> Tensor:
        """Read states taken at ``site``.

        Parameters
        ----------
        state : Tensor
            ``[..., width]``, any dtype.
        index : ndarray of int, optional
            Items that the states belong to (their first dimension); a composite needs it.

        Returns
        -------
        Tensor
            float32 ``[...]``: everything in ``through`` applied, then the direction and the bias.
        """
        flat = state.reshape(-1, state.shape[-1])
        if "final_norm" in self.through:
            flat = self.trunk.apply_final_norm(flat)
        return self.read(flat.reshape(state.shape), index)

    @torch.no_grad()
    def read(self, normed: Tensor, index: Index | None = None) -> Tensor:
        """Read states that passed the final norm: ``[..., width]`` to float32 ``[...]``."""
        return self._read(normed.to(torch.float32), index)

    def _read(self, x: Tensor, index: Index | None) -> Tensor:
        features = self.head.features(x)
        if self.kind == "composite" and self.directions is None:
            raise CapabilityError(
                f"readout {self.name!r} has another direction for every item: take it from "
                f"signal.bound({self.name!r}, encoded), or use score, lens and attribution"
            )
        if self.directions is None or self.biases is None:
            return features @ _usable(self.direction.to(x)) + self.bias
        if index is None:
            raise ValueError(f"readout {self.name!r} depends on the item: pass index")
        at = torch.as_tensor(index, device=x.device)
        w, b = _usable(self.directions.to(x)[at]), _usable(self.biases.to(x)[at])
        more = (1,) * (features.dim() - 2)
        w = w.reshape(len(w), *more, w.shape[-1])
        return (features * w).sum(-1) + b.reshape(len(b), *more)

    @torch.no_grad()
    def own(self, normed: Tensor) -> Tensor:
        """What the model's own head gives in its own dtype: ``[n, width]`` to float32 ``[n]``."""
        rows = self.head.native(normed)[..., list(self.rows)]
        return self.sign * rows.mean(-1).float()

    def differentiable(self, normed: Tensor, index: Index | None = None) -> Tensor:
        """:meth:`read`, kept differentiable and in float32."""
        return self._read(normed.to(torch.float32), index)

    def local(self, normed: Tensor, index: Index) -> tuple[Tensor, Tensor]:
        """Value and gradient at states, in float64.

        Parameters
        ----------
        normed : Tensor
            ``[n, width]``.
        index : ndarray of int, [n]

        Returns
        -------
        value : Tensor
            float64 ``[n]``.
        gradient : Tensor
            float64 ``[n, width]``.
        """
        x = normed.detach().double()
        if self.affine:
            if self.directions is None:
                w = self.direction.double().expand(len(x), -1)
            else:
                w = self.directions.double()[torch.as_tensor(index, device=x.device)]
            return self._read(x, index), w
        with torch.enable_grad():
            leaf = x.requires_grad_(True)
            value = self._read(leaf, index)
            (gradient,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach(), gradient

    def bound(self, directions: Tensor, biases: Tensor) -> Readout:
        """The readout with a direction and a bias for each item."""
        new = copy.copy(self)
        object.__setattr__(new, "directions", directions)
        object.__setattr__(new, "biases", biases)
        return new


def _usable(tensor: Tensor) -> Tensor:
    """The tensor, or a copy that autograd takes where it was made in inference mode."""
    return tensor.clone() if tensor.is_inference() else tensor
