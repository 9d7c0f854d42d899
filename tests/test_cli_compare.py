"""``reward-lens compare``: what it prints, what it keeps, and what it refuses."""

from __future__ import annotations

import json

import pytest
import typer
from families import PAIRS, make_model, make_tokenizer
from typer.testing import CliRunner

from reward_lens.cli_compare import compare
from reward_lens.evidence import read_jsonl

app = typer.Typer()
app.command()(compare)


@app.callback()
def main():
    """A group, as the real application is."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two checkpoints and a file of pairs, one of which is too long."""
    top = tmp_path_factory.mktemp("compare")
    for family in ("llama", "gpt2"):
        make_model(family).save_pretrained(top / family)
        make_tokenizer().save_pretrained(top / family)
    rows = [{"id": f"pair {k}", "prompt": p, "chosen": a, "rejected": b}
            for k, (p, a, b) in enumerate(PAIRS)]  # fmt: skip
    rows.append({"id": "long", "prompt": "p", "chosen": "x" * 400, "rejected": "y"})
    (top / "pairs.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return top


def run(folders, *options):
    where = [str(folders / name) for name in ("llama", "gpt2", "pairs.jsonl")]
    return CliRunner().invoke(app, ["compare", *where, *map(str, options)])


def test_it_prints_and_keeps_the_comparison(folders, tmp_path):
    out = tmp_path / "found.jsonl"
    said = run(folders, "-o", out)
    assert said.exit_code == 0, said.output
    for words in ("agreement:", "angle:", "accuracy_difference:", "share of the final margin by",
                  "lineages joined because they share a text: 0", f"wrote {out}"):  # fmt: skip
        assert words in said.output
    assert "1 pairs left out" in said.output
    kept = read_jsonl(out)
    assert [e.instrument for e in kept] == [
        "score", "score", "effective_angle", "lens", "lens", "compare"
    ]  # fmt: skip
    assert set(kept[-1].provenance.parents) == {e.id for e in kept[:-1]}


def test_json_is_strict(folders, tmp_path):
    said = run(folders, "-o", tmp_path / "found.jsonl", "--json", "--no-depth", "--limit", "3")
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout.splitlines()[-1])
    assert found["pairs"] == 3
    assert found["instrument"] == "compare"
    assert {i["name"] for i in found["uncertainty"]} >= {"agreement", "angle"}


def test_what_is_refused(folders, tmp_path):
    assert "end it in .jsonl" in run(folders, "-o", tmp_path / "found.csv").output
    said = run(folders, "-o", tmp_path / "found.jsonl", "--readout-b", "criterion:7")
    assert said.exit_code == 2
    assert "criterion:7" in said.output
