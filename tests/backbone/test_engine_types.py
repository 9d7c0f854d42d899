"""Which executors every type of the zoo has, and that what runs there is the full forward."""

from __future__ import annotations

import pytest
import torch
from engine_kit import (
    FULL,
    JOINING,
    TREE,
    all_targets,
    assert_effects,
    change,
    clean_lot,
    drawn,
    grain,
    ids_item,
)
from zoo import ALL, is_encoder, make, tokenizer_for
from zoo_expected import ALONE

from reward_lens import wrap_hf_model
from reward_lens.backbone import engine_of

# What keeps runs from starting inside a clean one; for all that is not named, nothing does.
_CACHE = "it takes another cache"
_BOTH = {
    "axk2": _CACHE,  # keeps index keys of its own
    "jamba": _CACHE,  # state-space layers keep a state, not keys
    "minimax": _CACHE,
    "minimax, scaled residual": _CACHE,
    "qwen3_5": _CACHE,
    "qwen3_5_text": _CACHE,
    "qwen3_next": _CACHE,
    "zamba": _CACHE,
    "zamba2": _CACHE,
    "openai-gpt": "hands its keys to no cache",
    "bloom": "is called with alibi",
    "bloom, residual after the norm": "is called with alibi",
    "falcon, alibi and multi-query": "is called with alibi",
    # The long rope is another one past a length only: up to there nothing keeps them.
    **dict.fromkeys(
        set(ALONE) - {"phi3, long rope past its limit"}, "depend on what else is in the batch"
    ),
    **{name: "depends on later tokens" for name in ALL if is_encoder(name)},
    "doge, experts": "depends on later tokens",  # all tokens compete for experts
}
# Positions enter by the place of a key in the row, which in a tree row is not its position.
_TREE = dict.fromkeys(("mpt", "mpt, clipped", "gpt_neo"), "misses the full forward")


def expected(name):
    """Executor -> a part of the reason why it is missing."""
    if name in _BOTH:
        return {TREE: _BOTH[name], JOINING: _BOTH[name]}
    return {TREE: _TREE[name]} if name in _TREE else {}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ALL)
def test_a_type_has_its_executors_and_they_are_the_full_forward(name):
    signal = wrap_hf_model(make(name), tokenizer_for(name), conformance_quickcheck=False)
    engine, missing = engine_of(signal.trunk), expected(name)
    assert set(engine.missing) == set(missing)
    for executor, why in engine.missing.items():
        assert missing[executor] in why
    assert all(engine.gaps[e] <= 1e-5 for e in engine.gaps if engine.offers(e))

    items = [("a", "b c"), ("dd", "e")] if is_encoder(name) else [ids_item(1, 9), ids_item(2, 6)]
    # Of the heads the first ones; they are all alike.
    names = [t for t in all_targets(signal) if ".H" not in t or t.endswith(".H0")]
    rounding = grain(signal, items)
    # Putting back what was there changes no bit; one text and one run have the same shape.
    lot = clean_lot(signal, items[:1], names, whole=True, executor=FULL)
    for target in names:
        at = range(len(lot.encoded[0].ids))
        assert lot.run({0: [(change(signal, lot, target, at, 0),)]})[0].scores[0] == lot.score[0]

    lots = [clean_lot(signal, items, [], whole=True, executor=e) for e in (None, FULL)]
    some = [*names[:: max(1, len(names) // 6)], names[-2]]
    runs = {}
    for i in (0, 1):
        last = len(lots[0].encoded[i].ids) - 1
        each = [drawn(signal, t, (last,), k, add=True) for k, t in enumerate(some)]
        two = [drawn(signal, t, (1, last), k) for k, t in enumerate(some[:2])]
        runs[i] = [*((c,) for c in each), tuple(each), tuple(two)]
    fast, full = (found.run(runs) for found in lots)
    for i in (0, 1):
        assert_effects(fast[i].scores, full[i].scores, lots[1].score[i], rounding)
    ran = {e for e in (TREE, JOINING) if e not in missing}
    assert lots[0].executors == (ran or {FULL})
    assert torch.isfinite(torch.tensor(full[0].scores)).all()
