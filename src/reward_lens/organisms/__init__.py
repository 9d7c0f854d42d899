"""Organisms: signals with a rule planted in them, so that the right answer is known.

Tiny networks whose weights are set by hand, with pairs and the answers on paper; and, of any
signal, its gauge twin: the same scores in other coordinates.
"""

from collections.abc import Callable

from reward_lens.organisms.answer_key import READINGS, AnswerKey
from reward_lens.organisms.gauge_twin import Rescaled, make_gauge_twin
from reward_lens.organisms.planting import Organism, Planter
from reward_lens.organisms.read_rules import saturated_softmax, self_repair, two_hop
from reward_lens.organisms.write_rules import (
    linear_rule,
    planted_head,
    planted_neuron,
    spread_rule,
)

#: Every kind of answer key: name -> builder, which takes ``dose``, ``tied``, ``n``, ``lengths``.
ANSWER_KEYS: dict[str, Callable[..., AnswerKey]] = {
    "linear": linear_rule,
    "neuron": planted_neuron,
    "head": planted_head,
    "spread": spread_rule,
    "two hops": two_hop,
    "saturated softmax": saturated_softmax,
    "self-repair": self_repair,
}

__all__ = [
    "ANSWER_KEYS",
    "READINGS",
    "AnswerKey",
    "Organism",
    "Planter",
    "Rescaled",
    "linear_rule",
    "make_gauge_twin",
    "planted_head",
    "planted_neuron",
    "saturated_softmax",
    "self_repair",
    "spread_rule",
    "two_hop",
]
