"""A hash of the code that a recorded result speaks of."""

from __future__ import annotations

import hashlib
from pathlib import Path

_SOURCE = Path(__file__).resolve().parent.parent / "src" / "reward_lens"
ROOMS = ("backbone", "signals", "instruments")


def code_fingerprint() -> str:
    """Hash of every module that decides a score, a write or a reading."""
    digest = hashlib.blake2b(digest_size=12)
    for room in ROOMS:
        for path in sorted((_SOURCE / room).glob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
