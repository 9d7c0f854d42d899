"""Measurements on a signal and pairs; each declares what it needs and returns evidence.

No module tree is known here: sites, exact pieces and forwards come from the signal.
"""

from reward_lens.instruments.best_of import best_of_n
from reward_lens.instruments.biases import bias_battery
from reward_lens.instruments.comparison import compare
from reward_lens.instruments.concepts import Concept, fit_concept
from reward_lens.instruments.dose_response import concept_dose_response
from reward_lens.instruments.gradient_patching import attribution_patching
from reward_lens.instruments.layer_lens import lens
from reward_lens.instruments.margin_reports import (
    margin_distribution,
    reliability_curve,
    worst_errors,
)
from reward_lens.instruments.objectives import objective_geometry
from reward_lens.instruments.pair_scores import preference
from reward_lens.instruments.patching_grid import patch_grid
from reward_lens.instruments.paths import path_effects
from reward_lens.instruments.prompt_noise import prompt_snr
from reward_lens.instruments.sections import section_accuracy
from reward_lens.instruments.style_control import style_accuracy
from reward_lens.instruments.token_maps import token_map
from reward_lens.instruments.token_sources import source_attribution
from reward_lens.instruments.tokens import token_curves
from reward_lens.instruments.view_gap import compare_views
from reward_lens.instruments.write_attribution import attribution

__all__ = [
    "Concept",
    "attribution",
    "attribution_patching",
    "best_of_n",
    "bias_battery",
    "compare",
    "compare_views",
    "concept_dose_response",
    "fit_concept",
    "lens",
    "margin_distribution",
    "objective_geometry",
    "patch_grid",
    "path_effects",
    "preference",
    "prompt_snr",
    "reliability_curve",
    "section_accuracy",
    "source_attribution",
    "style_accuracy",
    "token_curves",
    "token_map",
    "worst_errors",
]
