"""The head as a function of the state it reads: what lies between the trunk and the logits."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN

from reward_lens.backbone.linear import is_affine, linear_map

#: Which tokens a head reads: ``read`` is one token by the checkpoint's convention, ``first`` the
#: first, ``mean`` the mean over tokens, ``late`` the mean over tokens of the head's own output.
POOLS = ("read", "first", "mean", "late")


@dataclass(frozen=True)
class HeadStep:
    """One module of the head, and the activation applied to its input where there is one."""

    name: str
    module: nn.Module = field(repr=False)
    activation: str | None = None
    unsqueeze: bool = False  # it picks a token itself and is handed a text of one


@dataclass(frozen=True)
class HeadMap:
    """What the model does to the pooled state ``[n, width]`` to get its logits ``[n, rows]``.

    Attributes
    ----------
    steps : tuple of HeadStep
        In order; the last is an affine map.
    pool : str
        One of :data:`POOLS`.
    width : int
        Of the state that is read.
    affine : bool
        Whether all steps together are one affine map.
    """

    steps: tuple[HeadStep, ...]
    pool: str
    width: int
    affine: bool

    @property
    def through(self) -> tuple[str, ...]:
        """Names of what lies between the state and the last affine map."""
        if self.affine:
            return ()
        names: list[str] = []
        for step in self.steps:
            names += [step.activation] if step.activation else []
            names.append(step.name)
        return tuple(names[:-1])

    def features(self, x: Tensor) -> Tensor:
        """What the last affine map is handed: ``[n, features]`` of states ``[n, width]``.

        Computed in the dtype of ``x``, by copies of the modules where the model holds another;
        the states themselves where the whole head is affine.
        """
        if self.affine:
            return x
        for step in self.steps[:-1]:
            x = _apply(step, x)
        last = self.steps[-1].activation
        return ACT2FN[last](x) if last else x

    def native(self, x: Tensor) -> Tensor:
        """The model's own modules on states ``[n, width]`` in the model's own dtype."""
        for step in self.steps:
            x = _call(step.module, step, x)
        return x

    def rows(self) -> tuple[Tensor, Tensor]:
        """Rows and biases of the last affine map (of the head, if it is affine) as held now.

        Returns
        -------
        weight : Tensor
            float32 ``[rows, width or features]``.
        bias : Tensor
            float32 ``[rows]``.
        """
        module: nn.Module = self.steps[-1].module
        if isinstance(module, nn.Linear) and (len(self.steps) == 1 or not self.affine):
            weight, bias = module.weight.detach().float(), getattr(module, "bias", None)
            zero = torch.zeros(len(weight), device=weight.device)
            return weight, zero if bias is None else bias.detach().float()
        device = next(p.device for s in self.steps for p in s.module.parameters())
        whole: nn.Module = _Chain(self.steps) if self.affine else module
        width = self.width if self.affine else _features(self, device)
        matrix, constant = linear_map(whole, width, device)
        return matrix.T.float(), constant.float()


class _Chain(nn.Module):
    """The steps as one module."""

    def __init__(self, steps: tuple[HeadStep, ...]) -> None:
        super().__init__()
        self.steps = steps
        self.held = nn.ModuleList(s.module for s in steps)

    def forward(self, x: Tensor) -> Tensor:
        for step, module in zip(self.steps, self.held, strict=True):
            x = _call(module, step, x)
        return x


def _features(head: HeadMap, device: torch.device) -> int:
    with torch.no_grad():
        return int(head.features(torch.zeros(1, head.width, device=device)).shape[-1])


def _apply(step: HeadStep, x: Tensor) -> Tensor:
    dtypes = {p.dtype for p in step.module.parameters() if p.is_floating_point()}
    module = step.module if dtypes <= {x.dtype} else copy.deepcopy(step.module).to(x.dtype)
    return _call(module, step, x)


def _call(module: nn.Module, step: HeadStep, x: Tensor) -> Tensor:
    if step.activation:
        x = ACT2FN[step.activation](x)
    if not step.unsqueeze:
        out: Tensor = module(x)
        return out
    out = module(x.reshape(-1, 1, x.shape[-1]))
    return out.reshape(*x.shape[:-1], out.shape[-1])


def is_affine_head(steps: tuple[HeadStep, ...], probe: Tensor) -> bool:
    """Whether the steps together are affine, on probes ``[n, width]`` in the model's dtype."""
    return is_affine(_Chain(steps), probe)
