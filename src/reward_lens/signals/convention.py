"""What was chosen to read one checkpoint: kept with the signal and in every evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Convention:
    """How a checkpoint's score is read.

    Attributes
    ----------
    head : str
        Name of the row of the head table, or ``vocab:...``.
    rule : str, optional
        Read rule; ``None`` where the model's own transformers class reads.
    sign : float
        1, or −1 where the checkpoint's number is a cost (lower is better). The model's logits are
        left as the checkpoint has them; whoever reports a reward multiplies.
    template, bos, eos : str, optional
        What the encoder is to do; ``None`` leaves it to the tokenizer.
    labels : tuple of str
        Names of the rows where the configuration gives names that mean something.
    notes : tuple of str
        What a reader of the scores should know about the choice.
    gate : Gate, optional
        Of a gated head; ``reward_lens.backbone.headed.Gate``.
    """

    head: str
    rule: str | None
    sign: float = 1.0
    template: str | None = None
    bos: str | None = None
    eos: str | None = None
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    gate: Any = None
