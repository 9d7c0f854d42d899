"""Look inside reward models: the public face, loaded lazily.

``import reward_lens`` imports nothing heavy; a name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what a type checker sees of the lazy names below
    from reward_lens.auditing import audit as audit
    from reward_lens.backbone import AnatomyNames as AnatomyNames
    from reward_lens.data import Item as Item
    from reward_lens.data import Pairs as Pairs
    from reward_lens.data import load_choices as load_choices
    from reward_lens.data import load_pairs as load_pairs
    from reward_lens.evidence import Evidence as Evidence
    from reward_lens.evidence import EvidenceStore as EvidenceStore
    from reward_lens.instruments import attribution as attribution
    from reward_lens.instruments import attribution_patching as attribution_patching
    from reward_lens.instruments import best_of_n as best_of_n
    from reward_lens.instruments import bias_battery as bias_battery
    from reward_lens.instruments import compare as compare
    from reward_lens.instruments import compare_views as compare_views
    from reward_lens.instruments import concept_dose_response as concept_dose_response
    from reward_lens.instruments import fit_concept as fit_concept
    from reward_lens.instruments import lens as lens
    from reward_lens.instruments import margin_distribution as margin_distribution
    from reward_lens.instruments import objective_geometry as objective_geometry
    from reward_lens.instruments import patch_grid as patch_grid
    from reward_lens.instruments import path_effects as path_effects
    from reward_lens.instruments import preference as preference
    from reward_lens.instruments import prompt_snr as prompt_snr
    from reward_lens.instruments import reliability_curve as reliability_curve
    from reward_lens.instruments import section_accuracy as section_accuracy
    from reward_lens.instruments import source_attribution as source_attribution
    from reward_lens.instruments import style_accuracy as style_accuracy
    from reward_lens.instruments import token_curves as token_curves
    from reward_lens.instruments import token_map as token_map
    from reward_lens.instruments import worst_errors as worst_errors
    from reward_lens.organisms import calibrate as calibrate
    from reward_lens.signals import ablate as ablate
    from reward_lens.signals import from_tiny as from_tiny
    from reward_lens.signals import load_signal as load_signal
    from reward_lens.signals import replace as replace
    from reward_lens.signals import run_conformance as run_conformance
    from reward_lens.signals import steer as steer
    from reward_lens.signals import wrap_hf_model as wrap_hf_model
    from reward_lens.training import RewardProbe as RewardProbe

__version__ = "0.1.0"

# Public name -> module that defines it.
_PUBLIC: dict[str, str] = {
    "AnatomyNames": "reward_lens.backbone",
    "Evidence": "reward_lens.evidence",
    "EvidenceStore": "reward_lens.evidence",
    "Item": "reward_lens.data",
    "Pairs": "reward_lens.data",
    "RewardProbe": "reward_lens.training",
    "ablate": "reward_lens.signals",
    "attribution": "reward_lens.instruments",
    "attribution_patching": "reward_lens.instruments",
    "audit": "reward_lens.auditing",
    "best_of_n": "reward_lens.instruments",
    "bias_battery": "reward_lens.instruments",
    "calibrate": "reward_lens.organisms",
    "compare": "reward_lens.instruments",
    "compare_views": "reward_lens.instruments",
    "concept_dose_response": "reward_lens.instruments",
    "fit_concept": "reward_lens.instruments",
    "from_tiny": "reward_lens.signals",
    "lens": "reward_lens.instruments",
    "load_choices": "reward_lens.data",
    "load_pairs": "reward_lens.data",
    "load_signal": "reward_lens.signals",
    "margin_distribution": "reward_lens.instruments",
    "objective_geometry": "reward_lens.instruments",
    "patch_grid": "reward_lens.instruments",
    "path_effects": "reward_lens.instruments",
    "preference": "reward_lens.instruments",
    "prompt_snr": "reward_lens.instruments",
    "reliability_curve": "reward_lens.instruments",
    "replace": "reward_lens.signals",
    "run_conformance": "reward_lens.signals",
    "section_accuracy": "reward_lens.instruments",
    "source_attribution": "reward_lens.instruments",
    "steer": "reward_lens.signals",
    "style_accuracy": "reward_lens.instruments",
    "token_curves": "reward_lens.instruments",
    "token_map": "reward_lens.instruments",
    "worst_errors": "reward_lens.instruments",
    "wrap_hf_model": "reward_lens.signals",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'reward_lens' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
