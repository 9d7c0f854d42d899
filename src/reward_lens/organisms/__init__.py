"""Organisms: signals with a rule planted in them, so that the right answer is known.

Tiny networks whose weights are set by hand, with pairs and the answers on paper; rules planted in
the user's own signal by hooks; its trunk with another head, fitted or trained; its gauge twin.
"""

from collections.abc import Callable

from reward_lens.organisms.answer_key import READINGS, AnswerKey
from reward_lens.organisms.calibration import calibrate
from reward_lens.organisms.calibration_cards import Calibration
from reward_lens.organisms.confounded import Marker
from reward_lens.organisms.gauge_twin import Rescaled, make_gauge_twin
from reward_lens.organisms.made_organism import TrainedOrganism
from reward_lens.organisms.mixture import objective_mix
from reward_lens.organisms.new_heads import ReadStates, read_states, with_linear_head
from reward_lens.organisms.other_head import concept_head
from reward_lens.organisms.planting import Organism, Planter
from reward_lens.organisms.read_rules import saturated_softmax, self_repair, two_hop
from reward_lens.organisms.surface_features import FEATURES, Feature, feature_values
from reward_lens.organisms.trained import spurious_feature
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
    "FEATURES",
    "READINGS",
    "AnswerKey",
    "Calibration",
    "Feature",
    "Marker",
    "Organism",
    "Planter",
    "ReadStates",
    "Rescaled",
    "TrainedOrganism",
    "calibrate",
    "concept_head",
    "feature_values",
    "linear_rule",
    "make_gauge_twin",
    "objective_mix",
    "planted_head",
    "planted_neuron",
    "read_states",
    "saturated_softmax",
    "self_repair",
    "spread_rule",
    "spurious_feature",
    "two_hop",
    "with_linear_head",
]
