"""Whether a grader keeps what its capabilities claim, as far as that shows from outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from reward_lens.signals.grader_probe import Floats, Outcome, ProbedGrader, check, largest_gap, said
from reward_lens.signals.protocol import Capability


@check("claims", "each kept", "an instrument starts on what the capabilities say, and breaks")
def claims(s: ProbedGrader) -> Outcome:
    """What each capability stands for works on the probes."""
    kept, broken = [], []
    for capability, tried in _CLAIMS.items():
        if capability not in s.signal.caps:
            continue
        try:
            fault = tried(s)
        except Exception as error:
            fault = said(error)
        if fault:
            broken.append(f"{capability}: {fault}")
        else:
            kept.append(str(capability))
    return not broken, "; ".join(broken) or ", ".join(kept) or "nothing beyond scores"


def _prefixes(s: ProbedGrader) -> str:
    """``[item, position]``, with the score at the token that is read, else at the last one."""
    curves = s.signal.score_prefixes(list(s.pairs)).value
    if curves.dims != ("item", "position") or len(curves) != len(s.pairs):
        return f"score_prefixes() gave {dict(curves.sizes)}, not [item, position]"
    there = np.isfinite(curves.values)
    if not there.any(1).all():
        return f"item {int(np.argmin(there.any(1)))} has no finite prefix score"
    last = there.shape[1] - 1 - np.argmax(there[:, ::-1], 1)
    read = s.read_index()
    at = last if read is None else np.where(read < 0, last, read)
    close, share = s.close(largest_gap(curves.values[range(len(at)), at].astype(float), s.together))
    return "" if close else f"the whole prefix misses the score by {share}"


def _numbers(tensor: Any) -> Floats:
    found: Floats = torch.as_tensor(tensor).detach().double().cpu().numpy()
    return found


def _captured(s: ProbedGrader) -> Any:
    site = str(s.signal.readout().site)
    return s.signal.capture(list(s.pairs), [site])[site]


def _activations(s: ProbedGrader) -> str:
    """The site of the readout can be captured, one state for each item."""
    states = _numbers(_captured(s))
    sound = states.ndim == 2 and len(states) == len(s.pairs) and np.isfinite(states).all()
    return "" if sound else f"capture() gave states of shape {states.shape}, not [item, width]"


def _gradients(s: ProbedGrader) -> list[Any]:
    found: list[Any] = s.signal.gradient(list(s.pairs), str(s.signal.readout().site))
    return found


def _gradient(s: ProbedGrader) -> str:
    """A gradient ``[token, width]`` for each item."""
    found = [_numbers(g) for g in _gradients(s)]
    sound = len(found) == len(s.pairs) and all(g.ndim == 2 for g in found)
    return "" if sound else f"gradient() gave shapes {[g.shape for g in found]}"


def _hvp(s: ProbedGrader) -> str:
    """A product of the gradient's shape for each item."""
    vectors = _gradients(s)
    found = s.signal.hvp(list(s.pairs), str(s.signal.readout().site), vectors)
    shapes = [tuple(x.shape) for x in found], [tuple(v.shape) for v in vectors]
    return "" if shapes[0] == shapes[1] else f"hvp() gave shapes {shapes[0]} for {shapes[1]}"


def _linear(s: ProbedGrader) -> str:
    """A direction and a bias, which give the score from the states where those can be had."""
    readout = s.signal.readout()
    if _numbers(readout.direction).ndim != 1 or not np.isfinite(float(readout.bias)):
        return "the readout's direction is no vector, or its bias no number"
    read = s.read_index()
    averaged = read is not None and bool((read < 0).any())
    if Capability.ACTIVATIONS not in s.signal.caps or averaged:
        return ""  # a mean over tokens is taken after the norm: no one state gives the score
    close, share = s.close(largest_gap(_numbers(readout.project(_captured(s))), s.together))
    return "" if close else f"the readout of the captured states misses the score by {share}"


_CLAIMS: Mapping[Capability, Callable[[ProbedGrader], str]] = MappingProxyType({
    Capability.PREFIX_SCORES: _prefixes,
    Capability.ACTIVATIONS: _activations,
    Capability.GRADIENTS: _gradient,
    Capability.HVP: _hvp,
    Capability.LINEAR_READOUT: _linear,
})  # fmt: skip
