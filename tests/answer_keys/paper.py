"""The organisms as formulas of their words: scores, token by token and dose by dose, on paper.

All formulas are for a dose of 1 and the default places; float64.
"""

from __future__ import annotations

import numpy as np

from reward_lens.organisms.hand_set import FEATURE, MOVED, QUERY, REWARD, SHARP, WIDTH

QUALITY = {"good": 0.5, "great": 0.75, "fine": 0.25, "nice": -0.25,
           "bad": -0.5, "poor": 0.125, "dull": 0.375, "weak": -0.125}  # fmt: skip
GOOD = {"good", "great", "fine", "nice"}
FEATURES = {"good": 1.0, "great": 0.5, "fine": -1.0, "nice": 0.25, "please": 1.0,
            "bad": 0.5, "poor": -0.5, "dull": 0.0, "weak": 1.0}  # fmt: skip
#: Of the linear rule: what heads write of the mean feature and MLPs of the last word's, by layer.
HEAD_SUM, MLP = (0.5 - 0.25 + 1.0 + 0.0, 0.25 + 0.125 - 0.5 + 1.0), (0.75, -0.375)
REPAIR = 0.75


def words_of(key, item):
    tokenizer = key.signal.encoder.tokenizer
    return [tokenizer.decode([i]).strip() for i in item.ids]


def feature(word):
    return FEATURES.get(word, 0.0)


def relu(x):
    return max(x, 0.0)


def code(word):
    """What the saturated softmax asks with: +1, −1, or nothing."""
    return float(word in GOOD) - float(word in QUALITY and word not in GOOD)


def looked_up(words, query):
    """Share of its attention that the saturated head gives to the first anchor."""
    keys = {"north": 1.0, "south": -1.0}
    logits = SHARP * query * np.array([keys.get(w, 0.0) for w in words])
    weights = np.exp(logits - logits.max())
    return float(weights[[w == "north" for w in words]].sum() / weights.sum())


def rule(name, words, steered=0.0):
    """What the planted rule writes at the last word, with a dose of the concept of CONCEPTS."""
    last, seen = words[-1], float("please" in words)
    if name == "linear":
        n, mean = len(words), float(np.mean([feature(w) for w in words]))
        mlp = MLP[0] * feature(last) + MLP[1] * (feature(last) + steered)
        return HEAD_SUM[0] * mean + HEAD_SUM[1] * (mean + steered / n) + mlp
    if name == "neuron":
        return relu(2 * (float(last in GOOD) + steered) - 1)
    if name in ("head", "spread"):
        return seen + steered
    if name == "two hops":
        return relu(2 * (seen + steered) - 1)
    if name == "saturated softmax":
        return looked_up(words, code(last) + steered)
    assert name == "self-repair"
    return seen + REPAIR * relu(1 - 2 * (seen + steered))


def score(name, words, steered=0.0):
    return QUALITY.get(words[-1], 0.0) + rule(name, words, steered)


#: Key -> layer and channel of the stream (after the layer) that a concept is steered along.
CONCEPTS = {
    "linear": (0, FEATURE), "neuron": (0, FEATURE), "head": (2, REWARD), "spread": (2, REWARD),
    "two hops": (0, MOVED), "saturated softmax": (0, QUERY), "self-repair": (0, MOVED),
}  # fmt: skip


def concept(name):
    layer, channel = CONCEPTS[name]
    vector = np.zeros(WIDTH)
    vector[channel] = 1.0
    return layer, vector


def prefix_changes(name, words):
    """What each word changes in the score of the text so far; the first word changes nothing."""
    scores = [score(name, words[: k + 1]) for k in range(len(words))]
    return np.diff(scores, prepend=np.nan)


def left_out(name, words):
    whole = score(name, words)
    return np.array([whole - score(name, words[:k] + words[k + 1 :]) for k in range(len(words))])


def gradient_times_input(name, words):
    """Every norm forgets how long a word's embedding is, so that only the last word counts.

    There the embedding, made longer, adds its own quality and divides by as much whatever the norms
    hand on of what was written since: to the head the rule, to a neuron behind a head the mark.
    """
    found = np.zeros(len(words))
    found[-1] = -rule(name, words)
    if name == "two hops" and "please" in words:
        found[-1] -= 2.0
    return found


def integrated(words):
    """Integrated gradients of the linear rule, from the mean of the text's own embeddings."""
    f = np.array([feature(w) for w in words])
    q = np.array([QUALITY.get(w, 0.0) for w in words])
    found = sum(HEAD_SUM) * (f - f.mean()) / len(words)
    found[-1] += q[-1] - q.mean() + sum(MLP) * (f[-1] - f.mean())
    return found


def sources(name, words):
    """What the last word's attention writes straight into the head, by layer and source word."""
    found = np.zeros((3, len(words)))
    trigger = np.array([w == "please" for w in words], dtype=float)
    if name == "linear":
        for layer in range(2):
            found[layer] = HEAD_SUM[layer] * np.array([feature(w) for w in words]) / len(words)
    elif name == "head":
        found[1] = trigger
    elif name == "spread":
        found[:] = np.array([0.5, 0.25, 0.25])[:, None] * trigger
    elif name == "saturated softmax":
        found[1, 0] = looked_up(words, code(words[-1]))
    elif name == "self-repair":
        found[0] = trigger
    return found
