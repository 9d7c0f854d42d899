"""A base model with a head of our own on it, for checkpoints whose class transformers lacks.

The published classes do the same three things: run the base model, pick a final state, apply a
small head. Here they are ordinary torch modules, so no code of a checkpoint has to run.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from reward_lens.backbone.reading import MEAN, read_index
from reward_lens.errors import CheckpointError, TokenizeError


class Affine(nn.Module):
    """``x * scale + shift`` per row, in float32 at least: what a stored reward normaliser does.

    Parameters
    ----------
    scale, shift : Tensor
        ``[rows]``, kept in float32.
    """

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(scale.float(), requires_grad=False)
        self.shift = nn.Parameter(shift.float(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[..., rows]`` for ``[..., rows]``."""
        wide = torch.promote_types(x.dtype, self.scale.dtype)
        return x.to(wide) * self.scale.to(wide) + self.shift.to(wide)


class Gate(nn.Module):
    """Weights of the rows that a model reads off the prompt's last hidden state.

    The score is ``Σ_k gate_k (rewards T)_k`` with ``gate = softmax(z / temperature) · scale`` and
    ``z`` a small network of the state where the assistant's last turn is announced (ArmoRM, Wang et
    al. 2024, arXiv 2406.12845, as published with the model). It equals
    ``Σ_k coefficients_k · rewards_k`` with ``coefficients = gate Tᵀ``. Kept in float32.

    Parameters
    ----------
    layers : nn.Module
        Maps ``[n, width]`` to ``[n, objectives]``.
    transform : Tensor
        ``T``, ``[rows, objectives]``.
    scale : Tensor
        ``[1]``.
    temperature : float
    pattern : sequence of int
        The ids whose last occurrence begins at the token that is read.
    text : str
        The text of the pattern, for messages.
    """

    transform: Tensor
    scale: Tensor

    def __init__(
        self,
        layers: nn.Module,
        transform: Tensor,
        scale: Tensor,
        temperature: float,
        pattern: Sequence[int],
        text: str,
    ) -> None:
        super().__init__()
        self.layers = layers.float()
        self.register_buffer("transform", transform.float())
        self.register_buffer("scale", scale.float())
        self.temperature = float(temperature)
        self.pattern = tuple(int(i) for i in pattern)
        self.text = text

    def index(self, ids: Sequence[int] | Any) -> int:
        """Return where the last occurrence of the pattern begins in one unpadded row of ids.

        Raises
        ------
        TokenizeError
            If the row does not hold the pattern.
        """
        row, n = [int(i) for i in ids], len(self.pattern)
        for start in range(len(row) - n, -1, -1):
            if tuple(row[start : start + n]) == self.pattern:
                return start
        raise TokenizeError(
            f"the gate of this model reads the token where the assistant's turn is announced, "
            f"{self.text!r} (ids {', '.join(map(str, self.pattern))}), and the item does not have "
            f"it. Give a prompt and a response, written by the checkpoint's own chat template."
        )

    def coefficients(self, hidden: Tensor) -> Tensor:
        """Return the weight of every row for states at the gate's position.

        Parameters
        ----------
        hidden : Tensor
            ``[n, width]``, the trunk's final states (after its final norm), any dtype.

        Returns
        -------
        Tensor
            ``[n, rows]``, float32.
        """
        z = self.layers(hidden.to(device=self.transform.device, dtype=torch.float32))
        gate = torch.softmax(z / self.temperature, dim=-1) * self.scale
        return gate @ self.transform.T


class HeadedModel(nn.Module):
    """A base model with a head on the state that a read rule picks; used as a classifier.

    Parameters
    ----------
    base : transformers.PreTrainedModel
        A model whose output has ``last_hidden_state`` ``[batch, length, width]``.
    head : nn.Module
        Maps ``[batch, width]`` to ``[batch, rows]``, built of plain torch modules.
    rule : str
        Read rule (:func:`~reward_lens.backbone.reading.read_index`).
    pad_id : int, optional
        What the rule takes for padding.
    gate : Gate, optional
        Its score is :meth:`composite`; the logits are the rows without it.
    """

    def __init__(
        self,
        base: Any,
        head: nn.Module,
        *,
        rule: str,
        pad_id: int | None = None,
        gate: Gate | None = None,
    ) -> None:
        super().__init__()
        self.model = base
        self.head = head
        self.gate = gate
        self.rule = rule
        self.pad_id = pad_id
        self.config = base.config
        accepted = inspect.signature(base.forward).parameters
        self._open = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        self._accepted = frozenset(accepted)

    @property
    def base_model(self) -> Any:
        """The model without the head, as transformers' classifiers name it."""
        return self.model

    @property
    def device(self) -> torch.device:
        """Where the first parameter lies, which is where ids are to be put."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the trunk."""
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return dtype

    def get_input_embeddings(self) -> Any:
        """Return the embedding module of the base model."""
        return self.model.get_input_embeddings()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        use_cache: bool = False,
        **ignored: Any,
    ) -> Any:
        """Run base model and head.

        Parameters
        ----------
        input_ids, attention_mask, position_ids, token_type_ids : Tensor
            ``[batch, length]``. Positions come from the mask where they are not given.

        Returns
        -------
        transformers.modeling_outputs.SequenceClassifierOutput
            ``logits`` is ``[batch, rows]``.
        """
        extra = {
            "position_ids": position_ids,
            "token_type_ids": token_type_ids,
            "use_cache": use_cache,
        }
        states = self._states(input_ids, attention_mask, extra)
        return SequenceClassifierOutput(logits=self._rows(states, input_ids, attention_mask))

    def composite(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the gated score ``[batch]`` in float32.

        Raises
        ------
        CheckpointError
            If this head has no gate.
        TokenizeError
            If a row does not hold the gate's pattern.
        """
        if self.gate is None:
            raise CheckpointError("this head has no gate, so it has no composite score")
        states = self._states(input_ids, attention_mask, {"use_cache": False})
        rows = self._rows(states, input_ids, attention_mask)
        spans = _spans(input_ids, attention_mask)
        where = [
            start + self.gate.index(input_ids[k, start:stop].tolist())
            for k, (start, stop) in enumerate(spans)
        ]
        coefficients = self.gate.coefficients(_take(states, where))
        return (coefficients * rows.to(coefficients)).sum(-1)

    def _states(self, ids: Tensor, mask: Tensor | None, extra: dict[str, Any]) -> Tensor:
        if mask is not None and extra.get("position_ids") is None and bool((mask == 0).any()):
            extra["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
        given = {
            k: v
            for k, v in {"attention_mask": mask, **extra}.items()
            if v is not None and (k in self._accepted or (self._open and k == "use_cache"))
        }
        states: Tensor = self.model(input_ids=ids, **given)[0]
        return states

    def _rows(self, states: Tensor, ids: Tensor, mask: Tensor | None) -> Tensor:
        spans = _spans(ids, mask)
        where = [
            read_index(ids[k, start:stop].tolist(), self.rule, self.pad_id)
            for k, (start, stop) in enumerate(spans)
        ]
        if where and where[0] == MEAN:
            pooled = torch.stack([states[k, a:b].mean(0) for k, (a, b) in enumerate(spans)])
        else:
            pooled = _take(states, [a + w for (a, _), w in zip(spans, where, strict=True)])
        weight = next(self.head.parameters())
        rows: Tensor = self.head(pooled.to(device=weight.device, dtype=weight.dtype))
        return rows


def _spans(ids: Tensor, mask: Tensor | None) -> list[tuple[int, int]]:
    """First and one-past-last unmasked column of every row."""
    if mask is None:
        return [(0, ids.shape[1])] * ids.shape[0]
    spans = []
    for row in mask.ne(0).cpu():
        (kept,) = torch.nonzero(row, as_tuple=True)
        spans.append((int(kept[0]), int(kept[-1]) + 1) if len(kept) else (0, ids.shape[1]))
    return spans


def _take(states: Tensor, where: list[int]) -> Tensor:
    """States ``[batch, width]`` at one column per row; indices lie where the states do."""
    index = torch.tensor(where, device=states.device)
    return states[torch.arange(len(where), device=states.device), index]
