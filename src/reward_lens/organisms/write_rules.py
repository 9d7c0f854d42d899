"""Rules that components write straight into the head: linear, in one neuron, in one or more heads.

Every builder takes ``dose`` (with 0 the network is the null of its kind), ``tied`` (whether what
triggers the rule is on the chosen side only; else it is on both, and the rule says nothing about
the pair), ``n`` pairs and their ``lengths``, and ``seed`` for the parts that mean nothing.
"""

from __future__ import annotations

import numpy as np

from reward_lens.errors import AnatomyError
from reward_lens.organisms.answer_key import AnswerKey
from reward_lens.organisms.hand_set import FEATURE, HEADS, ONE, REWARD, HandSet
from reward_lens.organisms.sentences import GOOD, TRIGGER, Rows, set_last_words
from reward_lens.organisms.truths import Truths, whole_of

#: Of the linear rule: what each head writes of the mean feature, and each MLP of the last word's.
_HEAD_WEIGHTS = ((0.5, -0.25, 1.0, 0.0), (0.25, 0.125, -0.5, 1.0))
_MLP_WEIGHTS = (0.75, -0.375)
_FEATURES = {
    "good": 1.0, "great": 0.5, "fine": -1.0, "nice": 0.25,
    "bad": 0.5, "poor": -0.5, "dull": 0.0, "weak": 1.0,
}  # fmt: skip


def linear_rule(
    dose: float = 1.0, *, tied: bool = True, n: int = 8, lengths: str = "equal", seed: int = 0
) -> AnswerKey:
    """A network that is linear in its embeddings: attribution, patching and paths are one thing.

    Two layers. Heads write multiples of the mean feature over all tokens, MLPs multiples of the
    feature at the read token, and none reads what another wrote. Of the embedding at the read token
    alone these hold: it is written straight into the head, and also read by every component.

    Parameters
    ----------
    dose : float
        Times all the multiples.
    tied, n, lengths, seed
        See the module; ``tied=False`` gives both sides the same features.
    """
    rows = Rows(n, tied, lengths, seed=seed)
    model = HandSet(layers=2, seed=seed, mixing=False)
    set_last_words(model)
    # Where nothing is tied all last words have the one feature, as the slots have.
    features = _FEATURES if tied else dict.fromkeys(_FEATURES, 1.0)
    for word, feature in {**features, TRIGGER: 1.0}.items():
        model.token(word, {FEATURE: feature})
    truths = Truths(rows)
    last = truths.difference(features)
    of = {**features, TRIGGER: 1.0}
    means = [np.array([sum(of.get(w, 0.0) for w in words) / len(words) for words in side])
             for side in (rows.chosen, rows.rejected)]  # fmt: skip
    slot_and_last = means[0] - means[1]
    # What the last word of the other side would bring into the mean of this one.
    brought = last / truths.lengths
    planted: list[str] = []
    for layer in range(2):
        for head, weight in enumerate(_HEAD_WEIGHTS[layer]):
            name, size = f"L{layer}.H{head}", dose * weight
            model.head(layer, head, query=None, key=ONE, value=FEATURE, writes={REWARD: size})
            truths.writes(name, size * slot_and_last)
            truths.patched("embed", *(size * brought))
            truths.into_head("embed", name, "v", *(size * brought))
            whole = size * slot_and_last
            for receiver in (f"{name}.v", *whole_of(name)):
                truths.everywhere("path", f"embed -> {receiver}", whole, whole)
            truths.everywhere("gradient", "embed", whole, whole)
            truths.margin += size * slot_and_last
            planted.append(name)
        name, size = f"L{layer}.mlp_out", dose * _MLP_WEIGHTS[layer]
        model.neuron(layer, gate={ONE: 1.0}, up={FEATURE: 1.0}, writes={REWARD: size})
        truths.writes(name, size * last)
        truths.patched("embed", size * last)
        truths.path(f"embed -> L{layer}.mlp_in", size * last)
        truths.everywhere("gradient", "embed", size * last, size * last)
        truths.margin += size * last
        planted += [f"L{layer}.attn_out", name]
    return truths.key("linear", model, dose, tuple(planted))


def planted_neuron(
    dose: float = 1.0,
    *,
    layer: int = 1,
    tied: bool = True,
    n: int = 8,
    lengths: str = "equal",
    seed: int = 0,
) -> AnswerKey:
    """One neuron of one MLP writes the dose where the read token carries the feature.

    Three layers; the neuron is ``relu(2 · feature − 1)``. A gradient sees its slope of 2 where it
    fires and of 0 where it does not, so first-order estimates of the embedding's effect are wrong
    by as much; those of the MLP's own are exact.

    Parameters
    ----------
    layer : int
    dose, tied, n, lengths, seed
        See the module.

    Raises
    ------
    AnatomyError
        If there is no such layer.
    """
    rows = Rows(n, tied, lengths, seed=seed)
    model = HandSet(layers=3, seed=seed)
    set_last_words(model)
    for word in GOOD:
        model.token(word, {FEATURE: 1.0})
    model.neuron(layer, gate={FEATURE: 2.0, ONE: -1.0}, writes={REWARD: dose})
    truths, name, found = Truths(rows), f"L{layer}.mlp_out", dose * tied
    truths.writes(name, found)
    truths.patched("embed", found, gradient=(2 * found, 0.0))
    truths.everywhere("gradient", "embed", 2 * found, 0.0)
    truths.path(f"embed -> L{layer}.mlp_in", found)
    truths.margin += found
    return truths.key("neuron", model, dose, (name,))


def spread_rule(
    dose: float = 1.0,
    *,
    heads: tuple[str, ...] = ("L0.H1", "L0.H3", "L1.H0", "L2.H2"),
    tied: bool = True,
    n: int = 8,
    lengths: str = "equal",
    seed: int = 0,
) -> AnswerKey:
    """Heads that look for the trigger word, each of which writes an equal part of the dose.

    Three layers. The trigger stands at another token than the one that is read.

    Parameters
    ----------
    heads : tuple of str
        Which, e.g. ``("L0.H1",)``.
    dose, tied, n, lengths, seed
        See the module.

    Raises
    ------
    AnatomyError
        If a head does not exist, is named twice, or there is none.
    """
    if not heads or len(set(heads)) < len(heads):
        raise AnatomyError(f"heads={heads!r}: name one or more heads, each of them once")
    rows = Rows(n, tied, lengths, seed=seed)
    model = HandSet(layers=3, seed=seed)
    set_last_words(model)
    model.token(TRIGGER, {FEATURE: 1.0})
    truths, part = Truths(rows), dose / len(heads)
    for name in heads:
        layer, head = parse_head(name)
        model.head(layer, head, query=ONE, key=FEATURE, value=FEATURE, writes={REWARD: part})
        found = part * tied
        truths.writes(name, found)
        # Without the trigger a head looks at all tokens alike, so what is put at one of them
        # arrives divided by their number; with the trigger's key alone it finds nothing to read.
        few = found / truths.lengths
        truths.everywhere("path", f"embed -> {name}.v", found, few[1])
        truths.everywhere("path", f"embed -> {name}.k", found - few[0], 0.0)
        for receiver in whole_of(name):
            truths.everywhere("path", f"embed -> {receiver}", found, found)
        truths.everywhere("gradient", "embed", found, few[1])
        truths.margin += found
    layers = sorted({name.split(".")[0] for name in heads})
    planted = (*heads, *(f"{layer}.attn_out" for layer in layers))
    return truths.key("head" if len(heads) == 1 else "spread", model, dose, planted)


def planted_head(
    dose: float = 1.0,
    *,
    layer: int = 1,
    head: int = 2,
    tied: bool = True,
    n: int = 8,
    lengths: str = "equal",
    seed: int = 0,
) -> AnswerKey:
    """One head that looks for the trigger word and writes the dose; see :func:`spread_rule`.

    Parameters
    ----------
    layer, head : int
    dose, tied, n, lengths, seed
        See the module.

    Raises
    ------
    AnatomyError
        If there is no such head.
    """
    name = f"L{layer}.H{head}"
    return spread_rule(dose, heads=(name,), tied=tied, n=n, lengths=lengths, seed=seed)


def parse_head(name: str) -> tuple[int, int]:
    """Layer and head of ``"L1.H2"``.

    Raises
    ------
    AnatomyError
        If it is no head's name, or no model here has so many heads.
    """
    layer, _, head = name.removeprefix("L").partition(".H")
    if not (name.startswith("L") and layer.isdigit() and head.isdigit() and int(head) < HEADS):
        raise AnatomyError(f"{name!r} is no head: write L<layer>.H<head>, heads 0 to {HEADS - 1}")
    return int(layer), int(head)
