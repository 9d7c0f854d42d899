"""Measurements with their own receipt: what was measured, how surely, and how far to trust it.

No torch here: evidence can be read, checked and compared on any machine.
"""

from reward_lens.evidence.conditions import observables
from reward_lens.evidence.hashing import canonical, fingerprint
from reward_lens.evidence.kinds import GaugeStatus, Tier, TrustLevel, Units
from reward_lens.evidence.reading import Place, Reading
from reward_lens.evidence.record import (
    Evidence,
    Interval,
    Provenance,
    Store,
    Subject,
    read_jsonl,
    with_all_parents,
    write_jsonl,
)
from reward_lens.evidence.registration import Outcome, Prediction, Registration
from reward_lens.evidence.scorecard import Scorecard, Trial
from reward_lens.evidence.standing import Standing
from reward_lens.evidence.store import EvidenceStore
from reward_lens.evidence.transfer import export_records, import_records

__all__ = [
    "Evidence",
    "EvidenceStore",
    "GaugeStatus",
    "Interval",
    "Outcome",
    "Place",
    "Prediction",
    "Provenance",
    "Reading",
    "Registration",
    "Scorecard",
    "Standing",
    "Store",
    "Subject",
    "Tier",
    "Trial",
    "TrustLevel",
    "Units",
    "canonical",
    "export_records",
    "fingerprint",
    "import_records",
    "observables",
    "read_jsonl",
    "with_all_parents",
    "write_jsonl",
]
