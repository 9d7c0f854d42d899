"""Look inside reward models: the public face, loaded lazily.

``import reward_lens`` imports nothing heavy; a name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

# Public name -> module that defines it.
_PUBLIC: dict[str, str] = {}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'reward_lens' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
