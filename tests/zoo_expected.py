"""What the zoo is known to reach: held against the table of ``make support`` and by the tests.

Falling back to something coarser would otherwise pass unseen: a model that is only scored conforms.
"""

from __future__ import annotations

from zoo_entries import DECODERS, ENCODERS, VARIANTS

# Finest decomposition that verifies; everything that is not named here splits by head.
_COARSER = {
    "diffllama": "sublayer",  # one head is the difference of two that the configuration counts
    "jamba": "sublayer",  # a state-space block has no heads
    "jetmoe": "sublayer",  # every expert has heads of its own
    "minimax": "sublayer",  # linear attention ends in a norm over all its heads
    "minimax, scaled residual": "sublayer",
    "zamba": "sublayer",  # what writes is the state-space layer, whose heads are other ones
    "zamba2": "sublayer",
    "deberta-v2, convolution": "layer",  # a convolution beside the first block changes the stream
}
EXPECTED: dict[str, str] = {
    name: _COARSER.get(name, "head") for name in (*DECODERS, *ENCODERS, *VARIANTS)
}

# A score of these depends on the rest of its batch by the model's own formula; every other one has
# to be the same in any batch. The signal has to find it, to say so and to score each text alone.
ALONE: dict[str, str] = {
    "axk2, sparse index of 8": "index scores are clipped at 0, ties between keys go by row length",
    "doge, experts": "experts are chosen for all rows of a batch together",
    "llama, dynamic NTK past its limit": "frequencies follow the longest text so far",
    "phi3, long rope past its limit": "frequencies follow the longest text of the batch",
}

# Entries that do not conform, and the check that says so.
FAILING: dict[str, str] = {}
