"""A hash of the code that a recorded result speaks of."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

_SOURCE = Path(__file__).resolve().parent.parent / "src" / "reward_lens"
ROOMS = ("backbone", "signals", "instruments")


def code_fingerprint(rooms: Sequence[str] = ROOMS) -> str:
    """Hash of every module that decides a score, a write or a reading; or of some rooms only."""
    digest = hashlib.blake2b(digest_size=12)
    for room in rooms:
        for path in sorted((_SOURCE / room).glob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
