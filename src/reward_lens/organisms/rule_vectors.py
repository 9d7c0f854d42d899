"""Vectors that do to the score what a rule asks for, to first order."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reward_lens.backbone import Target, write_change
from reward_lens.organisms.ground import Ground

#: Beside the vector that the dose asks for, this much of its length changes nothing.
_IDLE = 0.5
#: A vector that is this much longer than one for the score alone is not used: the two demands on
#: it, on the score and on its direct part, contradict each other there.
_LONGEST = 5.0


def _slope(ground: Ground, target: Target) -> Tensor:
    return target.of(ground.slopes[target.source], ground.signal.trunk.anatomy)


def _coordinates(ground: Ground, target: Target) -> Tensor:
    """``[k, width]``: what a target's source gets per unit of length in the stream.

    Of a head its last linear map stretches some directions and hides others: a vector that is short
    in the head's own coordinates may be long where it counts.
    """
    anatomy = ground.signal.trunk.anatomy
    width = target.width(anatomy)
    unit = torch.eye(width, dtype=torch.float64, device=ground.signal.trunk.device)
    if target.head is None or anatomy.write(target.site).norm is not None:
        return unit
    written = write_change(anatomy, target, torch.zeros_like(unit), unit, None)
    u, s, _ = torch.linalg.svd(written, full_matrices=False)
    kept = s > 1e-3 * s[0]
    found: Tensor = (u[:, kept] / s[kept]).T
    return found


def _demands(ground: Ground, target: Target, by: Tensor) -> Tensor:
    """What a vector is asked to do, ``[demand, k]``: move the score, and its direct part."""
    rows = [_slope(ground, target)]
    direct = ground.direct(target)
    if direct is not None:
        rows.append(direct.to(rows[0]))
    return torch.stack(rows) @ by.T


def unit_vector(ground: Ground, target: Target, rng: np.random.Generator) -> Tensor | None:
    """A vector that adds 1 to the score, all of it directly, to first order: float64 ``[width]``.

    ``None`` where the two contradict each other.
    """
    by = _coordinates(ground, target)
    demands = _demands(ground, target, by)
    slope = demands[0]
    if not float(slope.norm()) > 0:
        return None
    inverse = torch.linalg.pinv(demands, rtol=1e-6)
    found = inverse @ torch.ones(len(demands), dtype=torch.float64, device=slope.device)
    if float(found.norm()) > _LONGEST / float(slope.norm()):
        return None
    idle = _idle_part(demands, rng)
    found = found if idle is None else found + idle * (_IDLE * found.norm())
    more: Tensor = found @ by
    return more


def idle_vector(ground: Ground, target: Target, rng: np.random.Generator) -> Tensor | None:
    """A unit vector that does not change the score, to first order; ``None`` if there is none."""
    by = _coordinates(ground, target)
    found = _idle_part(_demands(ground, target, by), rng)
    return None if found is None else found @ by


def _idle_part(demands: Tensor, rng: np.random.Generator) -> Tensor | None:
    drawn = torch.from_numpy(rng.standard_normal(demands.shape[1])).to(demands)
    drawn = drawn - torch.linalg.pinv(demands, rtol=1e-6) @ (demands @ drawn)
    size = float(drawn.norm())
    return drawn / size if size > 1e-6 else None
