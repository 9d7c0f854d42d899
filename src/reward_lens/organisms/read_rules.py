"""Rules in which one component reads what another wrote: two hops, a softmax, a repair.

The parameters that all builders share are told in :mod:`.write_rules`.
"""

from __future__ import annotations

from reward_lens.organisms.answer_key import AnswerKey
from reward_lens.organisms.hand_set import (
    FEATURE,
    KEY,
    MOVED,
    ONE,
    QUERY,
    REWARD,
    VALUE,
    HandSet,
)
from reward_lens.organisms.sentences import BAD, GOOD, TRIGGER, Rows, set_last_words
from reward_lens.organisms.truths import Truths, whole_of


def two_hop(
    dose: float = 1.0, *, tied: bool = True, n: int = 8, lengths: str = "equal", seed: int = 0
) -> AnswerKey:
    """Head ``L0.H1`` moves the trigger to the read token; ``L2.mlp_out`` makes reward of it.

    Three layers; the neuron is ``relu(2 · moved − 1)``. Patching finds the whole dose in both,
    attribution in the MLP only, since the head writes nothing that the model's head reads.
    """
    rows = Rows(n, tied, lengths, seed=seed)
    model = HandSet(layers=3, seed=seed)
    set_last_words(model)
    model.token(TRIGGER, {FEATURE: 1.0})
    model.head(0, 1, query=ONE, key=FEATURE, value=FEATURE, writes={MOVED: 1.0})
    model.neuron(2, gate={MOVED: 2.0, ONE: -1.0}, writes={REWARD: dose})
    truths, found = Truths(rows), dose * tied
    truths.writes("L2.mlp_out", found)
    truths.patched("L0.H1", found, gradient=(2 * found, 0.0))
    truths.add("zero", "L0.H1", found)
    truths.path("L0.H1 -> L2.mlp_in", found)
    # With the trigger's key or value alone the head moves one part in as many as there are words,
    # or nothing: too little for the neuron.
    for receiver, gained in (("L0.H1.k", 0.0), ("L0.H1.v", 0.0), ("L0.H1", found)):
        truths.everywhere("path", f"embed -> {receiver}", found, gained)
    truths.everywhere("path", "embed -> L0.attn_in", found, found)
    truths.everywhere("gradient", "embed", 2 * found, 0.0)
    truths.margin += found
    return truths.key("two hops", model, dose, ("L0.H1", "L0.attn_out", "L2.mlp_out"))


def saturated_softmax(
    dose: float = 1.0, *, tied: bool = True, n: int = 8, lengths: str = "equal", seed: int = 0
) -> AnswerKey:
    """A head whose softmax is so sure that no gradient passes: first-order methods miss the rule.

    Two layers. ``L0.mlp_out`` writes +1 or −1 by the last word; head ``L1.H2`` takes it for its
    query and looks, without any doubt, at the first or at the second word of the text. It reads
    the dose off the first and nothing off the second.
    """
    rows = Rows(n, tied, lengths, prompt=("north", "south"), seed=seed)
    model = HandSet(layers=2, seed=seed)
    set_last_words(model)
    model.token("north", {KEY: 1.0, VALUE: 1.0})
    model.token("south", {KEY: -1.0})
    for word in (*GOOD, *BAD):
        model.token(word, {FEATURE: 1.0 if word in GOOD else -1.0})
    model.neuron(0, gate={ONE: 1.0}, up={FEATURE: 1.0}, writes={QUERY: 1.0})
    model.head(1, 2, query=QUERY, key=KEY, value=VALUE, writes={REWARD: dose})
    truths, found = Truths(rows), dose * tied
    truths.writes("L1.H2", found)
    truths.patched("L0.mlp_out", found, gradient=(0.0, 0.0))
    truths.patched("embed", found, gradient=(0.0, 0.0))
    # With no query a head looks at all tokens alike, and finds the first word among them.
    alike = dose / truths.lengths
    truths.add("zero", "L0.mlp_out", found - (alike[0] - alike[1]))
    truths.into_head("L0.mlp_out", "L1.H2", "q", found)
    truths.path("embed -> L0.mlp_in", found)
    truths.margin += found
    planted = ("L0.mlp_out", "L1.H2", "L1.attn_out")
    return truths.key("saturated softmax", model, dose, planted)


def self_repair(
    dose: float = 1.0,
    *,
    repair: float = 0.75,
    tied: bool = True,
    n: int = 8,
    lengths: str = "equal",
    seed: int = 0,
) -> AnswerKey:
    """``L2.mlp_out`` writes a part of what ``L0.H1`` does not: ablation understates the head.

    Three layers. The head writes the dose where it finds the trigger, and leaves a mark; the neuron
    ``relu(1 − 2 · mark)`` writes ``repair`` of the dose where the mark is missing. Straight into
    the model's head goes the whole dose, and that is what attribution and the direct path see.

    Parameters
    ----------
    repair : float
        Share of the dose.
    """
    rows = Rows(n, tied, lengths, seed=seed)
    model = HandSet(layers=3, seed=seed)
    set_last_words(model)
    model.token(TRIGGER, {FEATURE: 1.0})
    model.head(0, 1, query=ONE, key=FEATURE, value=FEATURE, writes={REWARD: dose, MOVED: 1.0})
    model.neuron(2, gate={MOVED: -2.0, ONE: 1.0}, writes={REWARD: repair * dose})
    truths, found, back = Truths(rows), dose * tied, repair * dose * tied
    truths.writes("L2.mlp_out", -back)
    truths.add("attribution", "L0.H1", found)
    # The slope of the repair is 2 where it is at work, on the rejected side, and 0 elsewhere.
    truths.patched("L0.H1", found - back, gradient=(found, found - 2 * back))
    truths.add("zero", "L0.H1", found - back)
    truths.path("L0.H1 -> readout", found)
    truths.path("L0.H1 -> L2.mlp_in", -back)
    # One key or one value among all words: a part of the dose, and of the mark.
    part = 1 / truths.lengths
    few = found * part - back * 2 * part
    truths.everywhere("path", "embed -> L0.H1.v", found - back, few[1])
    truths.everywhere("path", "embed -> L0.H1.k", (found - back - few)[0], 0.0)
    for receiver in whole_of("L0.H1"):
        truths.everywhere("path", f"embed -> {receiver}", found - back, found - back)
    truths.everywhere("gradient", "embed", found, few[1])
    truths.margin += found - back
    return truths.key("self-repair", model, dose, ("L0.H1", "L0.attn_out", "L2.mlp_out"))
