"""A hash of the code that decides what a calibration gives."""

from __future__ import annotations

import hashlib
from pathlib import Path

_SOURCE = Path(__file__).resolve().parent.parent / "src" / "reward_lens"
#: All of the engine, and of the other rooms what the four instruments and the organisms use.
MODULES = {
    "backbone": ("*",),
    "signals": ("decomposition", "depth", "derivatives", "gradient_sweep", "intervening",
                "linearized", "lots", "patching", "readouts", "segment", "sweeping"),
    "instruments": ("effects", "grid_*", "layer_lens", "patch*", "path*", "replacements", "sides",
                    "token_alignment", "write_attribution"),
    "organisms": ("calibration*", "ground", "instrument_specs", "planting", "rule*", "triggers"),
    "evidence": ("conditions", "intervals", "pass_rule", "reading", "scorecard", "trust"),
}  # fmt: skip


def calibration_fingerprint() -> str:
    """Hash of these modules."""
    digest = hashlib.blake2b(digest_size=12)
    for room, patterns in MODULES.items():
        for path in sorted(
            {p for pattern in patterns for p in (_SOURCE / room).glob(f"{pattern}.py")}
        ):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
