"""What the fault tests share: signals of every family and head, and the judge of their scores."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from families import ITEMS, make_model, make_tokenizer

from reward_lens import wrap_hf_model

ROWS = (1, 3)
DTYPES = ("float32", "bfloat16", "float16")
#: One family of each kind of block, for tests whose cost is in building many models.
SOME = ("llama", "gpt2", "gemma2", "mixtral")
WHOLE = 10**9  # batch tokens: all items in one forward

#: A chat template whose every turn ends with the end token.
TURNS = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{{ eos_token }}{% endfor %}"


def fresh(
    family: str, rows: int = 1, dtype: str = "float32", template: str | None = None, **changes: Any
) -> Any:
    """A signal that a test may change. Judged by the tests, so the quick check is left out."""
    model = make_model(family, dtype=getattr(torch, dtype), num_labels=rows, **changes)
    return wrap_hf_model(model, make_tokenizer(template), conformance_quickcheck=False)


@cache
def subject(family: str, rows: int = 1, dtype: str = "float32") -> Any:
    """A signal that tests share and leave as it is."""
    return fresh(family, rows, dtype)


@torch.no_grad()
def native(signal: Any, ids: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The judge: the model's own logits ``[rows]`` for one unpadded text."""
    given = torch.as_tensor(np.asarray(ids))[None]
    logits = signal.trunk.model(input_ids=given, use_cache=False).logits[0]
    found: np.ndarray[Any, np.dtype[np.float64]] = logits.double().numpy()
    return found


@cache
def reference(family: str, rows: int = 1) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Native logits of the shared items, ``[item, rows]``."""
    signal = subject(family, rows)
    return np.stack([native(signal, e.ids) for e in signal.encode(ITEMS)])


def each_row(signal: Any, items: Any, **options: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Scores by every row of the head, ``[item, rows]``."""
    names = [r.name for r in signal.readouts() if len(r.rows) == 1]
    scores = [signal.score(items, readout=n, **options).value.values for n in names]
    return np.stack(scores, 1).astype(float)


def assert_same(scores: Any, expected: Any, message: str = "") -> None:
    """Equal to 1e-5 of the spread of the expected scores, which must not be flat."""
    spread = np.ptp(expected, axis=0)
    assert np.min(spread) > 0
    gap = np.abs(np.asarray(scores, dtype=float) - expected) / spread
    assert gap.max() <= 1e-5, f"{message} off by {gap.max():.1e} of the scores' spread"
