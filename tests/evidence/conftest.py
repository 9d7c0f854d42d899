"""Stores for the tests of the ladder."""

from __future__ import annotations

import shutil

import pytest
from trust_kit import calibrated

from reward_lens.evidence import EvidenceStore


@pytest.fixture
def empty_store(tmp_path):
    with EvidenceStore(tmp_path / "e.db") as opened:
        yield opened


@pytest.fixture(scope="session")
def with_card(tmp_path_factory):
    path = tmp_path_factory.mktemp("calibrated") / "e.db"
    with EvidenceStore(path) as opened:
        calibrated(opened)
    return path


@pytest.fixture
def calibrated_store(tmp_path, with_card):
    """A store with a scorecard that passes."""
    shutil.copy(with_card, tmp_path / "e.db")
    with EvidenceStore(tmp_path / "e.db") as opened:
        yield opened
