"""Look inside reward models: the public face, loaded lazily.

``import reward_lens`` imports nothing heavy; a name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

# Public name -> module that defines it.
_PUBLIC: dict[str, str] = {
    "Evidence": "reward_lens.evidence",
    "Item": "reward_lens.data",
    "Pairs": "reward_lens.data",
    "attribution": "reward_lens.instruments",
    "audit": "reward_lens.auditing",
    "from_tiny": "reward_lens.signals",
    "lens": "reward_lens.instruments",
    "load_pairs": "reward_lens.data",
    "load_signal": "reward_lens.signals",
    "preference": "reward_lens.instruments",
    "run_conformance": "reward_lens.signals",
    "source_attribution": "reward_lens.instruments",
    "token_curves": "reward_lens.instruments",
    "wrap_hf_model": "reward_lens.signals",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'reward_lens' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
