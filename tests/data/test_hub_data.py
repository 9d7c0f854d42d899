from __future__ import annotations

import json
import shutil
import socket
import time
from pathlib import Path

import datasets
import pytest

from reward_lens.data import load_pairs
from reward_lens.errors import DataError, DownloadRefused

NAME = "some-owner/some-pairs"
REVISION = "0123456789abcdef"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of data sets, on a machine where every try to connect is an error."""

    def refuse(*_args, **_kwargs):
        pytest.fail("tried to reach the network")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def cached(cache, tmp_path):
    """The same with one data set of one split in it, laid out as a download leaves it."""
    source = tmp_path / "p.jsonl"
    rows = [{"prompt": "q", "chosen": f"good {k}", "rejected": "bad"} for k in range(3)]
    source.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    datasets.load_dataset("json", data_files=str(source), cache_dir=str(tmp_path / "built"))
    (info,) = (tmp_path / "built").rglob("dataset_info.json")
    place = cache / "some-owner___some-pairs" / "default" / "0.0.0" / info.parent.name
    shutil.copytree(info.parent, place)
    (place / "json-train.arrow").rename(place / "some-pairs-train.arrow")
    rewrite(
        place / "dataset_info.json",
        dataset_name="some-pairs",
        config_name="default",
        download_checksums={f"hf://datasets/{NAME}@{REVISION}/p.jsonl": {"num_bytes": 1}},
    )
    return place


def rewrite(path: Path, **changes):
    info = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**info, **changes}), encoding="utf-8")


def test_what_is_not_cached_is_refused_at_once_with_both_ways_on(cache):
    start = time.monotonic()
    with pytest.raises(DownloadRefused, match=rf"{NAME}.*allow_download=True.*pass the path"):
        load_pairs(NAME)
    assert time.monotonic() - start < 5
    assert datasets.config.HF_HUB_OFFLINE is False


def test_what_is_cached_is_read(cached):
    assert [p.chosen.response for p in load_pairs(NAME)] == ["good 0", "good 1", "good 2"]
    assert len(load_pairs(NAME, split="train[:2]")) == 2
    with pytest.raises(DataError, match=r"some-pairs, split 'train', row 0 has no column 'ask'"):
        load_pairs(NAME, prompt="ask")


def test_a_cached_copy_is_of_the_revision_asked_for_or_refused(cached):
    assert len(load_pairs(NAME, revision=REVISION)) == 3
    with pytest.raises(DownloadRefused, match="not known to be of revision 'v2'"):
        load_pairs(NAME, revision="v2")


def test_other_faults_of_a_cached_data_set_are_no_refusals(cached):
    with pytest.raises(DataError, match=r'Unknown split "dev"'):
        load_pairs(NAME, split="dev")
    other = cached.parents[2] / "other"
    shutil.copytree(cached.parent, other / "0.0.0")
    rewrite(other / "0.0.0" / cached.name / "dataset_info.json", config_name="other")
    with pytest.raises(DataError, match=r"(?s)multiple .* configurations.*datasets\.load_dataset"):
        load_pairs(NAME)
    shutil.rmtree(other)
    (cached / "dataset_info.json").unlink()
    with pytest.raises(DataError, match=r"could not be loaded.*dataset_info\.json"):
        load_pairs(NAME)


def test_a_download_that_fails_says_why(cache, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"could not be loaded: Couldn't reach 'some-owner"):
        load_pairs(NAME, allow_download=True)
