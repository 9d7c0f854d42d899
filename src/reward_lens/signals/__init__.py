"""The graders behind one protocol: what can be scored with, loaded, wrapped and proven.

A classifier reward model is `r = w · norm(h) + b`; its head is a known direction.
"""

from reward_lens.signals.check_report import Check, ConformanceReport
from reward_lens.signals.classifier import ClassifierRM
from reward_lens.signals.conformance import run_conformance
from reward_lens.signals.intervening import Intervention, ablate, replace, steer
from reward_lens.signals.linearized import Linearized
from reward_lens.signals.loading import load_signal
from reward_lens.signals.process import from_tiny
from reward_lens.signals.protocol import (
    Capability,
    RewardSignal,
    SignalMeta,
    checked_signal,
    require,
)
from reward_lens.signals.readouts import Readout
from reward_lens.signals.sweeping import Swept
from reward_lens.signals.wrap import wrap_hf_model

__all__ = [
    "Capability",
    "Check",
    "ClassifierRM",
    "ConformanceReport",
    "Intervention",
    "Linearized",
    "Readout",
    "RewardSignal",
    "SignalMeta",
    "Swept",
    "ablate",
    "checked_signal",
    "from_tiny",
    "load_signal",
    "replace",
    "require",
    "run_conformance",
    "steer",
    "wrap_hf_model",
]
