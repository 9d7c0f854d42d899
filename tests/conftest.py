"""What all tests share: the folder of reference data beside the checkout, where there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# How long an example takes depends on what else the machine does; it is no property of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

_ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data and models; skips where a machine does not have it."""
    folder = Path(os.environ.get("REWARD_LENS_SHARED", _ROOT.parent / "shared"))
    if not (folder / "data" / "pairs.jsonl").is_file():
        pytest.skip(f"reference data is not on this machine (looked in {folder})")
    return folder
