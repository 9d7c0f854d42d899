"""Measurements on a signal and pairs; each declares what it needs and returns evidence.

No module tree is known here: sites, exact pieces and forwards come from the signal.
"""

from reward_lens.instruments.layer_lens import lens
from reward_lens.instruments.objectives import objective_geometry
from reward_lens.instruments.pair_scores import preference
from reward_lens.instruments.token_sources import source_attribution
from reward_lens.instruments.tokens import token_curves
from reward_lens.instruments.write_attribution import attribution

__all__ = [
    "attribution",
    "lens",
    "objective_geometry",
    "preference",
    "source_attribution",
    "token_curves",
]
