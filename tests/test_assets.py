"""The shipped files: the GPT-2 vocabulary against published ids, the demo against its sources."""

from __future__ import annotations

import filecmp
import gzip
import json
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import reward_lens as rl
from reward_lens.assets import asset
from reward_lens.backbone.gpt2_vocabulary import gpt2_tokenizer, vocabulary_and_merges
from reward_lens.errors import LoadError

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
tokenizer = cache(gpt2_tokenizer)


def run_script(name: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@cache
def demo_pairs() -> list[dict[str, str]]:
    lines = asset("demo/pairs.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_an_asset_that_is_not_shipped_is_named():
    with pytest.raises(LoadError, match=r"ships no 'gpt2/merge\.txt'.*Check the name"):
        asset("gpt2/merge.txt")


# Ids as published with GPT-2.
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("hello world", [31373, 995]),
        ("Hello, I'm a language model,", [15496, 11, 314, 1101, 257, 3303, 2746, 11]),
        ("The quick brown fox", [464, 2068, 7586, 21831]),
        (" SolidGoldMagikarp", [43453]),
        ("!", [0]),
        ("\n", [198]),
        (" ", [220]),
        ("\x00", [188]),
        ("<|endoftext|>", [50256]),
        ("", []),
    ],
)
def test_published_gpt2_ids(text, ids):
    assert tokenizer()(text)["input_ids"] == ids


def test_the_vocabulary_is_whole():
    ids, merges = vocabulary_and_merges()
    assert len(merges) == 50_000
    assert sorted(ids.values()) == list(range(50_257))
    assert all(ids[a + b] > max(ids[a], ids[b]) for a, b in merges)
    assert len(tokenizer()) == 50_257


def test_end_of_text_is_every_special_token_and_nothing_is_added():
    t = tokenizer()
    assert {t.bos_token_id, t.eos_token_id, t.unk_token_id, t.pad_token_id} == {50256}
    assert t.chat_template is None
    assert t("hello", add_special_tokens=True)["input_ids"] == t("hello")["input_ids"]


@given(st.text())
@example("naïve café — 日本語 👩‍👩‍👧 🏳️‍🌈")
@example("\x00\x7f\x80\u00a0\u00ad\u2028\ufeff")
@example("  two  spaces .\n\n\ttab , didn 't")
@example("before<|endoftext|>after")
def test_any_text_survives(text):
    assert tokenizer().decode(tokenizer()(text)["input_ids"]) == text


@given(st.binary())
@example(bytes(range(256)))
def test_the_first_256_ids_are_the_bytes_in_their_published_order(raw):
    # Latin-1 gives each byte a character; its UTF-8 form holds only bytes, each with its own id.
    text = raw.decode("latin-1")
    singles = [byte_ids()[b] for b in text.encode()]
    assert tokenizer().decode(singles) == text


@cache
def byte_ids() -> list[int]:
    """The id of each byte, by the published order: printable bytes first, then the others."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    order = printable + [b for b in range(256) if b not in printable]
    return [order.index(b) for b in range(256)]


def test_tokenizers_do_not_share_state():
    first = gpt2_tokenizer()
    first.add_tokens(["<extra>"])
    assert len(first) == 50_258
    assert len(gpt2_tokenizer()) == 50_257


def test_the_merges_script_copies_what_is_whole(tmp_path):
    shipped = asset("gpt2/merges.txt.gz")
    done = run_script("build_gpt2_vocabulary.py", shipped, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "merges.txt.gz").read_bytes() == shipped.read_bytes()


def test_the_merges_script_refuses_what_is_not(tmp_path):
    with gzip.open(tmp_path / "merges.txt.gz", "wt", encoding="utf-8") as lines:
        lines.write("#version: 0.2\nh e\nhe llo\n")
    done = run_script("build_gpt2_vocabulary.py", tmp_path / "merges.txt.gz", tmp_path / "out")
    assert done.returncode == 1
    assert "2 merges; GPT-2 has 50000" in done.stderr
    assert "merge 2 joins 'he' and 'llo', which do not exist yet" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_demo_pairs_are_what_they_are_meant_to_be():
    counts = Counter(row["subset"] for row in demo_pairs())
    assert 150 <= counts.total() <= 250
    assert len({row["id"] for row in demo_pairs()}) == counts.total()
    assert counts["bbq-ambig"] == 24
    assert sum(subset.startswith("llmbar-adver-") for subset in counts) >= 3
    assert not {s for s in counts if s.startswith("hh-harmless") or s == "hhh-harmless"}


def test_every_demo_source_is_stated_with_its_count_and_licence():
    page = asset("demo/SOURCES.md").read_text(encoding="utf-8")
    for (subset, source), n in Counter((r["subset"], r["source"]) for r in demo_pairs()).items():
        assert f"| {subset} | {n} | {source} |" in page
        licence = asset(f"demo/licences/{source.replace('/', '_')}.txt")
        assert licence.stat().st_size > 500
    assert "offensive stereotypes" in page
    assert "Alicia Parrish" in page
    assert "https://creativecommons.org/licenses/by/4.0/" in page


def test_the_demo_model_scores_as_its_reference():
    signal = rl.load_signal(asset("demo/model"), dtype="float32")
    path = asset("demo/model/reference_scores.json")
    reference = json.loads(path.read_text(encoding="utf-8"))["scores"]
    rows = {row["id"]: row for row in demo_pairs()}
    assert set(reference) <= set(rows)
    assert len(reference) > 100
    items = [
        (rows[i]["prompt"], rows[i][side]) for i in reference for side in ("chosen", "rejected")
    ]
    ours = signal.score(items).value.values
    theirs = np.array([score for both in reference.values() for score in both])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)


def test_the_demo_is_held_out(shared):
    data = shared / "data"
    split = json.loads((data / "split.json").read_text(encoding="utf-8"))
    with (data / "pairs.jsonl").open(encoding="utf-8") as lines:
        rows = {row["id"]: row for row in map(json.loads, lines)}
    seen = {rows[i]["prompt"] for i in split["train"]}
    assert all(rows[row["id"]] == row for row in demo_pairs())
    assert {row["id"] for row in demo_pairs()} <= set(split["test"])
    assert not {row["prompt"] for row in demo_pairs()} & seen


def test_the_demo_script_gives_the_shipped_bytes(shared, tmp_path):
    done = run_script("build_demo_assets.py", shared / "data", tmp_path)
    assert done.returncode == 0, done.stderr
    shipped = asset("demo")
    built = {p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file()}
    assert built == {p.relative_to(shipped) for p in shipped.rglob("*") if p.is_file()}
    different = [p for p in built if not filecmp.cmp(tmp_path / p, shipped / p, shallow=False)]
    assert different == []
