"""A causal language model whose reward is a row of its output layer, or a difference of two.

Asked for by name only (``head="vocab:0"``): nothing in the files of a language model says that one
of its logits is a reward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reward_lens.backbone.headed import HeadedModel
from reward_lens.errors import CheckpointError, LoadError
from reward_lens.signals.adapter import Adapter, complete
from reward_lens.signals.checkpoint import Checkpoint, zero_head
from reward_lens.signals.head_build import as_linear, widen
from reward_lens.signals.trunk_files import Placement, load_causal_lm, refuse_unfilled

_PREFIX = "vocab:"
_PROBE = 8
#: Largest gap to the model's own logits that rounding explains, in units of their size.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


class VocabularyHead(NamedTuple):
    """A base model with rows of the output layer on it."""

    model: HeadedModel
    note: str
    ignored: tuple[str, ...]
    architecture: str


def read_vocabulary(
    checkpoint: Checkpoint,
    config: Any,
    placement: Placement,
    *,
    spec: str,
    tokenizer: Callable[[], Any],
    adapter: Adapter | None,
    apart: Iterable[str],
) -> VocabularyHead:
    """Load a language model and keep of its output layer the rows that are the reward.

    Parameters
    ----------
    spec : str
        ``vocab:K`` or ``vocab:A-B``; ids, or texts of one token each.

    Raises
    ------
    LoadError
        If the rows cannot be told from ``spec``.
    CheckpointError
        If the model has no output layer, or its logits are not the output layer's alone.
    """
    ids = _ids(spec, tokenizer)
    loaded = load_causal_lm(checkpoint, config, placement)
    lm = loaded.model
    filled = complete(lm, checkpoint.side, adapter, apart=apart)
    refuse_unfilled(checkpoint, loaded, filled=filled, apart=apart)
    output, base = lm.get_output_embeddings(), lm.base_model
    if output is None or base is lm:
        raise CheckpointError(f"{checkpoint.folder}: {type(lm).__name__} has no output layer")
    size = int(output.weight.shape[0])
    if beyond := [i for i in ids if not 0 <= i < size]:
        raise LoadError(f"head={spec!r}: id {beyond[0]} is not among 0 to {size - 1}")
    with torch.no_grad():
        weight = _difference(output.weight, ids)
        if not bool(weight.any()):
            raise zero_head(f"{spec!r} (ids {', '.join(map(str, ids))} of the output layer)")
        bias = getattr(output, "bias", None)
        head = as_linear(weight, _difference(bias, ids) if bias is not None else None)
    lm.config.num_labels = 1
    pad = config.get_text_config().pad_token_id
    model = HeadedModel(base, widen(head, base.dtype), rule="last", pad_id=pad).eval()
    _verify(checkpoint, lm, model, ids)
    names = ["the logit of " + repr(i) for i in ids]
    note = f"the reward is {' minus '.join(names)} at the last token (head={spec!r})"
    return VocabularyHead(model, note, loaded.ignored, type(lm).__name__)


def _difference(rows: Tensor, ids: tuple[int, ...]) -> Tensor:
    """One row as it is, or the first minus the second in float32."""
    if len(ids) == 1:
        return rows[ids[0]].detach().clone().reshape(1, *rows.shape[1:])
    return (rows[ids[0]].float() - rows[ids[1]].float()).reshape(1, *rows.shape[1:])


def _ids(spec: str, tokenizer: Callable[[], Any]) -> tuple[int, ...]:
    parts = spec.removeprefix(_PREFIX).split("-")
    if len(parts) > 2 or not all(parts):
        raise LoadError(
            f"head={spec!r}: write '{_PREFIX}K' or '{_PREFIX}A-B', with ids or with texts of one "
            f"token each; for a token that holds a '-' give its id"
        )
    ids = tuple(int(p) if p.isdigit() else _token(spec, p, tokenizer()) for p in parts)
    if len(ids) == 2 and ids[0] == ids[1]:
        raise LoadError(f"head={spec!r} is the difference of token {ids[0]} and itself")
    return ids


def _token(spec: str, text: str, tokenizer: Any) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        raise LoadError(
            f"head={spec!r}: {text!r} is {len(ids)} tokens ({ids}); a reward is read from one"
        )
    return int(ids[0])


@torch.no_grad()
def _verify(checkpoint: Checkpoint, lm: Any, model: HeadedModel, ids: tuple[int, ...]) -> None:
    """The language model's own logits must be what the rows give: no cap, no scale in between."""
    size = int(lm.get_input_embeddings().weight.shape[0])
    row = (torch.arange(1, _PROBE + 1, device=model.device) % size)[None]
    logits = lm(input_ids=row, use_cache=False).logits[0, -1].float()
    own = logits[ids[0]] - (logits[ids[1]] if len(ids) == 2 else 0.0)
    ours = model(input_ids=row).logits[0, 0].float()
    gap = float((own.to(ours.device) - ours).abs())
    allowed = _TOLERANCE.get(lm.dtype, 1e-4) * max(1.0, float(logits[list(ids)].abs().max()))
    if gap > allowed:
        raise CheckpointError(
            f"{checkpoint.folder}: the logits of {type(lm).__name__} are not its output layer's "
            f"alone (they differ by {gap:.3g}: a cap or a scale lies between), so no row of it is "
            f"the score. This model cannot be read by a vocabulary row."
        )
