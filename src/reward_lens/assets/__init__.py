"""Files the package ships: the GPT-2 merges and, for the demo, a model and its pairs.

Sources and licences lie beside the files.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def asset(name: str) -> Path:
    """Path of a shipped file or folder, e.g. ``"gpt2/merges.txt.gz"``."""
    return Path(str(files(__name__).joinpath(name)))


__all__ = ["asset"]
