"""Items and pairs for the organisms, and what must not change in a subject."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from reward_lens.data import Item, Pair, Pairs

WORDS = ("blue", "river", "seven", "stone", "quick", "letter", "never", "orange", "table", "wind")


def make_pairs(n: int, seed: int = 0) -> Pairs:
    """Pairs of random words; the chosen side is no different from the rejected one."""
    rng = np.random.default_rng(seed)

    def side() -> str:
        return " ".join(rng.choice(WORDS, int(rng.integers(3, 9))))

    made = []
    for k in range(n):
        prompt = f"Say something about {k}."
        chosen, rejected = (Item.of(prompt, side(), lineage=f"row-{k}") for _ in range(2))
        made.append(Pair(chosen, rejected, id=str(k), lineage=f"row-{k}"))
    return Pairs(made)


@contextlib.contextmanager
def untouched(signal: Any, items: Any) -> Iterator[None]:
    """Fail if a subject, or the caller's random state, is not bit for bit what it was."""
    before = _state(signal, items)
    yield
    after = _state(signal, items)
    for what, value in before.items():
        assert after[what] == value, what


def _state(signal: Any, items: Any) -> dict[str, Any]:
    model = signal.trunk.model
    scores = signal.score(items, truncate="right").value.values
    return {
        "weights": {k: v.cpu().numpy().tobytes() for k, v in model.state_dict().items()},
        "scores": scores.tobytes(),
        "hooks": [
            (n, len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks))
            for n, m in model.named_modules()
        ],
        "modules": {n: id(m) for n, m in model.named_modules()},
        "gradients": [(p.requires_grad, p.grad is None) for p in model.parameters()],
        "training": [m.training for m in model.modules()],
        "written": signal.trunk.written_to(),
        "torch": torch.random.get_rng_state().numpy().tobytes(),
        "numpy": str(np.random.get_state()),
        "fingerprint": signal.fingerprint,
        "grad mode": torch.is_grad_enabled(),
    }
