"""Training with the Bradley–Terry loss: a row on frozen states, or a copy of a whole model.

The loss is ``−log σ(r_chosen − r_rejected)``, the mean over pairs (Bradley and Terry 1952); a
learned margin is thus the log odds of the better side.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import softplus

from reward_lens.backbone import Encoded, Trunk, masked_mean, read_rows, registered_names
from reward_lens.errors import CapabilityError, NumericsError
from reward_lens.progress import Progress
from reward_lens.signals import ClassifierRM

_LONGEST_GRADIENT = 1.0
_ONE_BATCH = 10**9  # tokens

Floats = npt.NDArray[np.float64]


def train_row(
    differences: Floats,
    *,
    steps: int,
    lr: float,
    decay: float,
    progress: Progress | None = None,
) -> tuple[Floats, list[float]]:
    """Train a row on differences of frozen states, from 0, all pairs in every step.

    Parameters
    ----------
    differences : ndarray, [pair, width]
        Chosen minus rejected, divided by the SD of the states.
    steps : int
    lr : float
        Of Adam, at the first step.
    decay : float
        Times half the squared length of the row, added to the loss.
    progress : callable, optional
        Told 1 after each step.

    Returns
    -------
    row : ndarray of float64, [width]
    losses : list of float
        Before each step, without the penalty.

    Raises
    ------
    NumericsError
        If the loss is not finite.
    """
    gaps = torch.from_numpy(differences)
    row = torch.zeros(gaps.shape[1], dtype=torch.float64, requires_grad=True)

    def loss() -> Tensor:
        return softplus(-(gaps @ row)).mean()

    def penalty() -> Tensor:
        return 0.5 * decay * row.square().sum()

    losses = _minimise([row], torch.optim.Adam([row], lr=lr), loss, penalty, steps, progress)
    return row.detach().numpy(), losses


def train_copy(
    signal: ClassifierRM,
    chosen: Sequence[Encoded],
    rejected: Sequence[Encoded],
    *,
    steps: int,
    lr: float,
    decay: float,
    groups: Sequence[Sequence[int]],
    pairs_per_step: int,
    seed: int,
    progress: Progress | None = None,
) -> tuple[Any, list[float]]:
    """Train all parameters of a copy of a signal's model, head included.

    Dropout stays off, so that the run is the same every time; the rewards are the signal's own
    reading: its tokens, its mean over rows, its sign.

    Parameters
    ----------
    signal : ClassifierRM
        In float32, without a gate.
    chosen, rejected : sequence of Encoded, [pair]
    steps : int
    lr, decay : float
        Of AdamW; the rate at the first step.
    groups : sequence of sequences of int
        Pairs that go into one step together.
    pairs_per_step : int
        At least; groups are drawn without replacement until all have been used, then anew.
    seed : int
        Of the order.
    progress : callable, optional
        Told 1 after each step.

    Returns
    -------
    model : nn.Module
        The trained copy.
    losses : list of float
        Before each step, on its pairs.

    Raises
    ------
    CapabilityError
        If the trunk is in half precision.
    NumericsError
        If the loss is not finite.
    """
    if signal.trunk.dtype != torch.float32:
        raise CapabilityError(
            f"this trunk is in {signal.meta.dtype}, in which small steps are lost: load it with "
            f"dtype='float32' to train all of it, or train the head alone (train='head')"
        )
    model: Any = copy.deepcopy(signal.trunk.model)
    names = registered_names(str(getattr(model.config, "model_type", "")))
    trunk = Trunk(model, names)
    flags = [p.requires_grad for p in model.parameters()]
    weights = [p.requires_grad_(True) for p in model.parameters() if p.is_floating_point()]
    order = _Order(groups, pairs_per_step, seed)
    encoded = [*chosen, *rejected]

    def loss() -> Tensor:
        picked = next(order)
        both = [encoded[i] for i in picked] + [encoded[i + len(chosen)] for i in picked]
        rewards = _rewards(trunk, both, signal.read_index(both), signal.meta.sign)
        return softplus(rewards[len(picked) :] - rewards[: len(picked)]).mean()

    optimiser = torch.optim.AdamW(weights, lr=lr, weight_decay=decay)
    losses = _minimise(weights, optimiser, loss, None, steps, progress)
    for p, flag in zip(model.parameters(), flags, strict=True):
        p.grad = None
        p.requires_grad_(flag)
    return model, losses


class _Order:
    """Which pairs each step takes."""

    def __init__(self, groups: Sequence[Sequence[int]], size: int, seed: int) -> None:
        self.groups, self.size = groups, size
        self.rng = np.random.default_rng(seed)
        self.left: list[int] = []

    def __next__(self) -> list[int]:
        taken: list[int] = []
        while len(taken) < self.size:
            if not self.left:
                if taken:  # a short step ends each round, so that no pair is in one step twice
                    break
                self.left = self.rng.permutation(len(self.groups)).tolist()
            taken.extend(self.groups[self.left.pop()])
        return taken


def _rewards(trunk: Trunk, encoded: Sequence[Encoded], read: Sequence[int], sign: float) -> Tensor:
    """Differentiable rewards of items, ``[item]``, in one batch unless they must run alone."""
    found: list[Tensor | None] = [None] * len(encoded)
    for batch in trunk.batches(encoded, _ONE_BATCH):
        seen: list[Tensor] = []
        with torch.enable_grad():
            trunk.forward(batch, {trunk.anatomy.normed: seen.append})
            states = seen[0].reshape(*batch.ids.shape, -1)
            head = trunk.anatomy.head
            if head.pool == "late":
                rows = masked_mean(batch, head.native(states))
            else:
                rows = head.native(read_rows(read)(batch, states))
        for k, i in enumerate(batch.index):
            found[int(i)] = sign * rows[k].mean()
    return torch.stack([r for r in found if r is not None])


def _minimise(
    weights: Sequence[Tensor],
    optimiser: torch.optim.Optimizer,
    loss: Callable[[], Tensor],
    penalty: Callable[[], Tensor] | None,
    steps: int,
    progress: Progress | None,
) -> list[float]:
    """Take the steps, at a rate that falls to 0 in a straight line; the loss before each."""
    losses = []
    falling = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1 - step / steps)
    for step in range(steps):
        optimiser.zero_grad()
        with torch.enable_grad():
            value = loss()
            whole = value if penalty is None else value + penalty()
            whole.backward()  # type: ignore[no-untyped-call]
        losses.append(float(value.detach()))
        if not math.isfinite(losses[-1]):
            raise NumericsError(
                f"the loss is {losses[-1]} at step {step}: lower lr (it is "
                f"{optimiser.param_groups[0]['lr']:g} there)"
            )
        torch.nn.utils.clip_grad_norm_(weights, _LONGEST_GRADIENT)
        optimiser.step()
        falling.step()
        if progress is not None:
            progress(1)
    return losses
