"""Measurements with their own receipt: what was measured, how surely, and how far to trust it.

No torch here: evidence can be read, checked and compared on any machine.
"""

from reward_lens.evidence.hashing import canonical, fingerprint
from reward_lens.evidence.kinds import GaugeStatus, Tier, TrustLevel, Units
from reward_lens.evidence.record import (
    Evidence,
    Interval,
    Provenance,
    Store,
    Subject,
    read_jsonl,
    write_jsonl,
)

__all__ = [
    "Evidence",
    "GaugeStatus",
    "Interval",
    "Provenance",
    "Store",
    "Subject",
    "Tier",
    "TrustLevel",
    "Units",
    "canonical",
    "fingerprint",
    "read_jsonl",
    "write_jsonl",
]
