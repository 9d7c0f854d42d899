"""The matrix behind a module that is linear up to a constant."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


def linear_map(module: nn.Module, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ``(W, c)`` in float64 with ``module(x) == x @ W + c``.

    Parameters
    ----------
    module : nn.Module
        Verified to be affine.
    width : int
        Length of its input.

    Returns
    -------
    W : Tensor, [width, out]
    c : Tensor, [out]

    Notes
    -----
    The stored weight is used where it is that matrix (either way round, checked on a probe);
    otherwise the module is evaluated on the identity, which covers adapters and packed weights.
    """
    f = module if _is_float32(module) else copy.deepcopy(module).float()
    generator = torch.Generator().manual_seed(3)
    probe = torch.randn(2, width, generator=generator).to(device)
    with torch.no_grad():
        constant = f(torch.zeros(1, width, device=device)).double()[0]
        expected = f(probe).double() - constant
        weight = getattr(f, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() == 2:
            for matrix in (weight.detach().T, weight.detach()):
                if matrix.shape != (width, expected.shape[-1]):
                    continue
                gap = (probe.double() @ matrix.double() - expected).abs().max()
                if gap <= 1e-5 * expected.abs().max():
                    return matrix.double(), constant
        eye = torch.eye(width, device=device)
        return f(eye).double() - constant, constant


def _is_float32(module: nn.Module) -> bool:
    return all(p.dtype == torch.float32 for p in module.parameters() if p.is_floating_point())


@torch.no_grad()
def is_affine(module: nn.Module, x: Tensor) -> bool:
    """Whether ``f(x + y) - f(x) == f(y) - f(0)`` on two unrelated inputs, judged in float32."""
    f = module if _is_float32(module) else copy.deepcopy(module).float()
    x = x.float()
    generator = torch.Generator().manual_seed(2)
    y = torch.randn(x.shape, generator=generator).to(x) * x.std()
    left, right = f(x + y) - f(x), f(y) - f(torch.zeros_like(x))
    return bool((left - right).abs().max() <= 1e-4 * right.abs().max())
