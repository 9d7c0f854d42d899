"""Whether what else is in a batch changes a text's states by the model's own formula.

Some models choose rotary frequencies by the longest text of a batch, some experts compete for the
tokens of all rows. No padding is at fault there, and the only cure is to run such texts alone.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from reward_lens.backbone.tokenise import Encoded

if TYPE_CHECKING:
    from reward_lens.backbone.trunk import Trunk

#: Rotary kinds whose frequencies follow the longest text; the first also remembers earlier texts.
_BY_LENGTH = ("dynamic", "longrope")
#: Settings up to which an attention that chooses its keys has them all.
_CHOOSES_KEYS = ("keep_window_size", "index_topk")
_EFFECT = {torch.float32: 1e-3}  # of the states' size; rounding leaves about 1e-6
_COARSE = 0.1  # half precision; rounding leaves about 1e-2
_COPY_LIMIT = 2 * 10**9  # bytes up to which a half-precision trunk is measured in a float32 copy


@torch.no_grad()
def batch_limit(trunk: Trunk) -> tuple[int | None, str]:
    """Up to which length items of a trunk may share a batch.

    Returns
    -------
    limit : int or None
        ``None``: any length. 0: every item runs alone.
    why : str
        Empty where there is no limit.
    """
    limit = _rotary_limit(trunk.config)
    if limit is not None:
        return limit, (
            f"rotary frequencies depend on the longest text of a batch beyond {limit} tokens: "
            f"longer items run alone"
        )
    gap, dtype = _measured(trunk)
    if gap > _EFFECT.get(dtype, _COARSE):
        return 0, (
            f"what else is in a batch changes a text's states (by {gap:.0%} of their size), as the "
            f"model's own formula has it: items run alone"
        )
    limits = [int(n) for name in _CHOOSES_KEYS if (n := getattr(trunk.config, name, None))]
    if limits:
        return min(limits), (
            f"beyond {min(limits)} tokens attention chooses its keys from the whole text: longer "
            f"items share no batch and have no prefix scores"
        )
    return None, ""


def remembers(config: Any) -> bool:
    """Whether a long text leaves the rotary frequencies changed for the texts after it."""
    return any(k.get("rope_type", k.get("type")) == "dynamic" for k in _rotary_kinds(config))


def _rotary_kinds(config: Any) -> list[dict[str, Any]]:
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return [rope, *(v for v in rope.values() if isinstance(v, dict))]


def _rotary_limit(config: Any) -> int | None:
    for kind in _rotary_kinds(config):
        if kind.get("rope_type", kind.get("type")) in _BY_LENGTH:
            original = kind.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            return int(original or config.max_position_embeddings)
    return None


def _measured(trunk: Trunk) -> tuple[float, torch.dtype]:
    """Largest relative change of one text's states when others join its batch; in which dtype."""
    base: Any = trunk.base
    dtype = trunk.dtype
    size = 4 * sum(p.numel() for p in base.parameters())
    if dtype not in (torch.float32, torch.float64) and size <= _COPY_LIMIT:
        base, dtype = copy.deepcopy(base).float(), torch.float32
    generator = np.random.default_rng(0)
    top = max(2, min(trunk.config.vocab_size - 1, 200))
    limit = getattr(trunk.config, "max_position_embeddings", None) or 12
    lengths = [min(n, limit) for n in (12, 7, 9, 5)]
    texts = [Encoded(generator.integers(1, top, size=n).astype(np.int64), n - 1) for n in lengths]
    for text in texts:
        text.ids[text.ids == trunk.config.pad_token_id] = 0 if trunk.pad_id else 1

    def states(chosen: list[Encoded]) -> torch.Tensor:
        (batch,) = trunk.batches(chosen, 10**6)
        trunk.forget()
        seen: torch.Tensor = base(**trunk.inputs.of_batch(batch))[0]
        at = int(np.flatnonzero(batch.index == len(chosen) - 1)[0])
        return seen[at, : len(chosen[-1].ids)].float()

    gaps = []
    for text in texts:
        alone = states([text])
        together = states([t for t in texts if t is not text] + [text])
        gaps.append(float((together - alone).abs().max() / alone.abs().max()))
    return max(gaps), dtype
