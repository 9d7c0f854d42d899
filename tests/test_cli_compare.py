"""``reward-lens compare``: what it prints, what it keeps, and what it refuses."""

from __future__ import annotations

import html
import json
import re

import pytest
import typer
from families import PAIRS, make_model, make_tokenizer
from typer.testing import CliRunner

from reward_lens import load_pairs
from reward_lens.cli_compare import compare
from reward_lens.evidence import read_jsonl
from reward_lens.report.browser_json import unpacked

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
    assert "1 pair left out" in said.output
    kept = read_jsonl(out)
    assert [e.instrument for e in kept] == [
        "score", "score", "effective_angle", "lens", "lens", "compare"
    ]  # fmt: skip
    assert set(kept[-1].provenance.parents) == {e.id for e in kept[:-1]}
    assert list(tmp_path.iterdir()) == [out]


def test_json_is_strict(folders, tmp_path):
    out = tmp_path / "found.jsonl"
    said = run(folders, "-o", out, "--json", "--no-depth", "--limit", "3")
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout.splitlines()[-1])
    assert found["pairs"] == 3
    assert found["instrument"] == "compare"
    assert {i["name"] for i in found["uncertainty"]} >= {"agreement", "angle"}
    assert (found["report"], found["evidence"]) == (None, str(out))


@pytest.fixture(scope="module")
def written(folders, tmp_path_factory):
    """A page, the files beside it, and what the command said."""
    top = tmp_path_factory.mktemp("page")
    options = ("-o", top / "two.html", "--json", "--biases", 2, "--store", top / "s.db")
    return top, run(folders, *options)


def test_a_page_has_its_evidence_and_pairs_beside_it(written):
    top, said = written
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout.splitlines()[-1])
    assert {k: found[k] for k in ("report", "evidence", "scored_pairs", "store", "passed")} == {
        "report": str(top / "two.html"), "evidence": str(top / "two.evidence.jsonl"),
        "scored_pairs": str(top / "two.pairs.jsonl"), "store": str(top / "s.db"), "passed": True,
    }  # fmt: skip
    assert found["failed_checks"] == {"a": [], "b": []}
    assert found["trust"]["bias_battery_b"] == "exploratory"
    kept = read_jsonl(top / "two.evidence.jsonl")
    assert sorted(e.instrument for e in kept) == sorted(
        ["compare", "effective_angle",
         *2 * ["score", "lens", "conformance", "bias_battery", "style_accuracy"]]
    )  # fmt: skip
    given = [f"pair {k}" for k in range(len(PAIRS))]
    assert load_pairs(top / "two.pairs.jsonl").ids == given
    assert found["left_out"].keys() == {"long"}


def test_the_page_names_both_models_and_what_was_left_out(written):
    text = (written[0] / "two.html").read_text()
    plain = html.unescape(re.sub(r"<[^>]*>", "", text))
    assert "<h1>llama against gpt2</h1>" in text
    assert (
        "a: llama, LlamaForSequenceClassification, 3 layers of width 32; b: gpt2, GPT2For" in text
    )
    for words in ("reward-lens comparison", "1 pair left out", "the model reads",
                  "conformance checks hold", "two.evidence.jsonl", "Trust, and why"):  # fmt: skip
        assert words in plain, words
    block = re.search(r'id="browser-data">(.*?)</script>', text)
    assert unpacked(block[1])["sidecar"] == "two.pairs.jsonl"


def test_a_failed_check_is_exit_1_and_the_page_is_written(folders, tmp_path, monkeypatch):
    import reward_lens.comparing as comparing

    real = comparing.run_conformance

    def failing(signal):
        report = real(signal)
        object.__setattr__(report.checks[0], "passed", False)
        return report

    monkeypatch.setattr(comparing, "run_conformance", failing)
    said = run(folders, "-o", tmp_path / "x.html", "--json", "--biases", 0, "--no-depth")
    assert said.exit_code == 1, said.output
    found = json.loads(said.stdout.splitlines()[-1])
    assert not found["passed"]
    assert all(len(failed) == 1 for failed in found["failed_checks"].values())
    assert "conformance checks hold (failed: " in (tmp_path / "x.html").read_text()


def test_what_is_refused(folders, tmp_path):
    said = run(folders, "-o", tmp_path / "found.csv")
    assert said.exit_code == 2
    assert "end it in .html for a page, in .jsonl for evidence alone" in said.output
    said = run(folders, "-o", tmp_path / "found.jsonl", "--readout-b", "criterion:7")
    assert said.exit_code == 2
    assert "criterion:7" in said.output
    said = run(folders, "-o", tmp_path / "found.html", "--biases", "-1")
    assert said.exit_code == 2
    assert "biases=-1" in said.output
    assert not list(tmp_path.iterdir())


def test_the_pairs_are_never_written_over(folders, tmp_path):
    before = (folders / "pairs.jsonl").read_bytes()
    copy = tmp_path / "x.pairs.jsonl"
    copy.write_bytes(before)
    models = [str(folders / name) for name in ("llama", "gpt2")]
    asked = ["compare", *models, str(copy), "-o", str(tmp_path / "x.html")]
    said = CliRunner().invoke(app, asked)
    assert said.exit_code == 2
    assert "is the file of the pairs" in said.output
    assert copy.read_bytes() == before


def test_a_broken_off_run_says_what_is_kept(folders, tmp_path, monkeypatch):
    import reward_lens.comparing as comparing

    def broken(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "comparison_parts", broken)
    said = run(folders, "-o", tmp_path / "x.html", "--store", tmp_path / "s.db", "--limit", 3)
    assert said.exit_code == 130
    assert "interrupted; nothing was written" in said.output
    assert "2 new: conformance" in said.output
