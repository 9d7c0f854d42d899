"""Norms, known by what they compute and frozen at their value on an item.

A norm is a map ``x -> bias + gain * r(x) * (x - c * mean(x))`` with one positive number ``r`` per
row; ``c`` is 0 for the root-mean-square kind and 1 for LayerNorm. Nothing is read from attribute
names: bias is the value at 0, gain follows from a vector of ones with alternating signs, and the
form is accepted only if it reproduces the module. Freezing means keeping ``r(x)``: then the map is
linear and the writes of a residual stream add up through it exactly.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_TOLERANCE = 1e-5  # relative; a norm computed in float32 reproduces to about 3e-7


@dataclass(frozen=True)
class Norm:
    """A module that was verified to be a norm.

    Parameters
    ----------
    module : nn.Module
        The model's own module; its parameters are read at every use, so that a model that is
        trained further is read as it is.
    centred : bool
        Whether the mean is removed (LayerNorm) or not (RMSNorm).
    width : int
        Length of the normalised vectors.
    """

    module: nn.Module
    centred: bool
    width: int

    def freeze(self, x: Tensor) -> FrozenNorm:
        """Freeze the norm at the rows ``x`` ``[n, width]`` (any dtype).

        The module is evaluated in float32, in a copy where the model holds it in less.
        """
        f = _in_float32(self.module)
        x32 = x.detach().to(torch.float32)
        gain, bias = _gain_and_bias(f, self.width, self.centred, x.device)
        basis = gain * _centre(x32.double(), self.centred)
        with torch.no_grad():
            out = f(x32).double()
        r = ((out - bias) * basis).sum(-1) / (basis * basis).sum(-1)
        return FrozenNorm(gain, bias, r, self.centred)


@dataclass(frozen=True)
class FrozenNorm:
    """A norm held at its value on ``n`` rows: linear, in float64.

    Attributes
    ----------
    gain, bias : Tensor
        float64 ``[width]``.
    r : Tensor
        float64 ``[n]``, the reciprocal scale of each row.
    """

    gain: Tensor
    bias: Tensor
    r: Tensor
    centred: bool

    def pull_back(self, u: Tensor) -> Tensor:
        """Turn a functional on the norm's output into one on its input.

        Parameters
        ----------
        u : Tensor
            float64 ``[width]`` or ``[n, width]``.

        Returns
        -------
        Tensor
            float64 ``[n, width]``: ``r * P(gain * u)``, so that
            ``u @ norm(x) == pulled @ x + u @ bias``.
        """
        scaled = (self.gain * u) * self.r[:, None]
        return _centre(scaled, self.centred)  # the centring projection is symmetric

    def apply(self, x: Tensor) -> Tensor:
        """Return the frozen norm of the rows ``x`` ``[n, width]``, in float64."""
        return self.bias + self.gain * _centre(x.double(), self.centred) * self.r[:, None]


def probe_norm(module: nn.Module, width: int, device: torch.device) -> Norm | None:
    """Return the :class:`Norm` a module computes, or None if it is none."""
    f = _in_float32(module)
    generator = torch.Generator().manual_seed(0)
    x = (4 * torch.randn(5, width, generator=generator)).to(device)
    try:
        with torch.no_grad():
            fx, f3x = f(x), f(3 * x)
    except Exception:  # whatever a module that is no norm raises on such an input
        return None
    if not isinstance(fx, Tensor) or fx.shape != x.shape:
        return None
    scale = fx.abs().max()
    invariant = (fx - f3x).abs().max() <= 1e-3 * scale  # eps leaves a trace of the scale
    if not invariant or (3 * fx - f3x).abs().max() <= 1e-3 * scale:
        return None
    for centred in (False, True):
        norm = Norm(module, centred, width)
        rebuilt = norm.freeze(x).apply(x)
        if (rebuilt - fx.double()).abs().max() <= _TOLERANCE * scale:
            return norm
    return None


def _in_float32(module: nn.Module) -> nn.Module:
    """The module itself where it is float32 throughout, else a float32 copy of this one module."""
    params = list(module.parameters())
    if any(p.is_floating_point() and p.dtype != torch.float32 for p in params):
        return copy.deepcopy(module).float()
    return module


def _gain_and_bias(
    f: nn.Module, width: int, centred: bool, device: torch.device
) -> tuple[Tensor, Tensor]:
    ones = torch.ones(width, device=device)
    ones[1::2] = -1
    with torch.no_grad():
        out = f(torch.stack([torch.zeros_like(ones), ones])).double()
    bias = out[0]
    # The scale of the alternating vector is left inside the gain; r absorbs its inverse.
    return (out[1] - bias) / _centre(ones.double(), centred), bias


def _centre(x: Tensor, centred: bool) -> Tensor:
    return x - x.mean(-1, keepdim=True) if centred else x
