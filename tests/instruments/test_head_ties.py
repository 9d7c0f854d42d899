"""Ties that a head in half precision makes, and the float32 read does not, are counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families import make_model, make_tokenizer

import reward_lens as rl

PAIRS = [(f"Question {k}?", f"Answer {k}.", f"Answer {k + 1}.") for k in range(24)]


def signal_of(dtype, shift=0.0, rows=1):
    """A classifier whose scores are lifted by ``shift``, where half precision has coarse steps."""
    model = make_model("llama", num_labels=rows)
    model.score = torch.nn.Linear(32, rows, bias=True)
    with torch.no_grad():
        model.score.weight.normal_(generator=torch.Generator().manual_seed(0)).mul_(0.3)
        model.score.bias.fill_(shift)
    return rl.wrap_hf_model(model.eval().to(dtype), make_tokenizer())


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ties_of_the_heads_own_dtype_are_counted(dtype, rows):
    signal = signal_of(dtype, shift=400.0, rows=rows)
    ev = rl.preference(signal, PAIRS)
    (row,) = ev.tables["head_ties"].to_dict("records")
    native = []
    for _, chosen, rejected in [(p, (p, a), (p, b)) for p, a, b in PAIRS]:
        both = []
        for item in (chosen, rejected):
            (encoded,) = signal.encode([item])
            ids = torch.from_numpy(encoded.ids)[None]
            both.append(signal.trunk.model(input_ids=ids).logits.mean().item())
        native.append(both)
    tied = np.array([a == b for a, b in native])
    assert row["pairs"] == len(PAIRS)
    assert row["ties_of_own_head"] == tied.sum()
    assert row["ties_of_own_head"] > 0
    assert row["made_by_the_head"] == row["ties_of_own_head"] - row["ties_read_in_float32"]
    assert row["made_by_the_head"] > 0


def test_float32_has_no_such_table():
    assert "head_ties" not in rl.preference(signal_of(torch.float32), PAIRS).tables


def test_a_head_with_enough_room_makes_none():
    (row,) = rl.preference(signal_of(torch.float16), PAIRS).tables["head_ties"].to_dict("records")
    assert row["made_by_the_head"] == 0
