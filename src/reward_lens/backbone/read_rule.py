"""Which token a head reads when a text holds the padding id: found by asking the model.

Read rules cannot be told apart on texts without that id, and models trained with pad = eos meet it
in every text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reward_lens.backbone.anatomy_search import probe_ids
from reward_lens.backbone.inputs import no_cache
from reward_lens.backbone.reading import read_index
from reward_lens.backbone.taps import attach
from reward_lens.errors import AnatomyError

if TYPE_CHECKING:
    from reward_lens.backbone.trunk import Trunk

_RULES = ("rightmost_non_pad", "last", "before_first_pad")
_COARSE = 2e-2  # half precision: the model's head sees one row, ours all of them
_CLOSE = {torch.float32: 1e-5, torch.float64: 1e-5}


@torch.no_grad()
def measured_rule(trunk: Trunk) -> str:
    """The read rule of a model whose head reads one token by a convention.

    Returns
    -------
    str
        A rule of :func:`~reward_lens.backbone.reading.read_index`; ``"last"`` where the
        configuration names no padding id (of the vocabulary).

    Raises
    ------
    AnatomyError
        If no rule gives the model's own logits.
    """
    pad = trunk.config.pad_token_id
    if pad is None or not 0 <= pad < trunk.config.vocab_size:
        return "last"
    a, b, c, *_ = probe_ids(trunk.config, trunk.device)[0].tolist()
    row = [a, b, pad, c, a, pad]
    ids = torch.tensor([row], device=trunk.device)
    seen: list[Tensor] = []
    with attach({trunk.anatomy.normed: seen.append}):
        given = {"attention_mask": torch.ones_like(ids), **no_cache(trunk.model, ids)}
        logits = trunk.model(input_ids=ids, **given).logits[0].float()
    ours = trunk.anatomy.head.native(seen[0][0]).float()
    gaps = {rule: float((ours[read_index(row, rule, pad)] - logits).abs().max()) for rule in _RULES}
    rule = min(gaps, key=lambda name: gaps[name])
    spread = float((ours.max(0).values - ours.min(0).values).max())
    if not gaps[rule] <= _CLOSE.get(trunk.dtype, _COARSE) * max(spread, float(logits.abs().max())):
        raise AnatomyError(
            f"on a text that holds the padding id {pad} the model's logits are those of none of "
            f"the tokens that the rules {', '.join(_RULES)} read"
        )
    return rule
