"""Content hashes: one canonical byte form, the same on every machine and in every process."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical(value: Any) -> bytes:
    """Return the one byte form of a JSON-like value; the order of mapping keys does not count.

    Raises
    ------
    ValueError
        On NaN or infinity: those must have been encoded before (see :mod:`.encoding`).
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode("utf-8", "surrogatepass")


def fingerprint(*parts: str | bytes) -> str:
    """Hash parts to 32 hexadecimal digits; where a part ends counts."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()
