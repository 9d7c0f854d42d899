"""Organisms that prefer longer, or flattering, texts, with their rule written down."""

from __future__ import annotations

import numpy as np
import torch

from reward_lens.organisms.hand_set import FEATURE, ONE, REWARD, VALUE, HandSet

DOSE = 8.0
FLATTERING = ("brilliant", "excellent", "impressive", "thoughtful", "clever", "remarkably")


def organism(flattery: float = 0.0):
    """Scores ``(flattery · flattering words − DOSE) / tokens``: longer is better, and flattery is.

    Every text begins with the one token "User", which is all that the first head reads; heads look
    at all tokens alike, so each reads a mean.
    """
    model = HandSet(layers=2)
    (first,) = model.tokenizer("User", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        model.model.model.embed_tokens.weight[first, VALUE] = 1.0
    for word in FLATTERING:
        model.token(word, {FEATURE: 1.0})
    model.head(0, 0, query=None, key=ONE, value=VALUE, writes={REWARD: -DOSE})
    model.head(0, 1, query=None, key=ONE, value=FEATURE, writes={REWARD: flattery})
    flattering = {model.id(w) for w in FLATTERING}

    def on_paper(signal, items):
        ids = [e.ids.tolist() for e in signal.encode(items)]
        return np.array([(flattery * sum(t in flattering for t in i) - DOSE) / len(i) for i in ids])

    return model.signal("length" if not flattery else "flattery"), on_paper
