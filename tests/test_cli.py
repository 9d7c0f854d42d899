"""The command line: what it prints, writes, and exits with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from families import PAIRS, make_model, make_tokenizer
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from reward_lens.cli import app


def run(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model("llama").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [
        {
            "id": f"{k}-{j}",
            "prompt": f"{p} ({j})",
            "chosen": a,
            "rejected": b,
            "subset": f"s{k % 2}",
        }
        for j in range(4)
        for k, (p, a, b) in enumerate(PAIRS)
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_help_and_version_need_no_torch():
    code = (
        "import sys; from typer.testing import CliRunner; from reward_lens.cli import app;"
        "r = CliRunner().invoke(app, ['--help']); assert 'audit' in r.output;"
        "heavy = {'torch', 'transformers', 'pandas', 'scipy'} & set(sys.modules); print(heavy)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
    assert run("--version").output.strip() == "0.1.0"


def test_conform(model):
    result = run("conform", model)
    assert result.exit_code == 0, result.output
    assert "ok     head = native" in result.output
    report = json.loads(run("conform", model, "--json").stdout)
    assert report["passed"]
    assert len(report["checks"]) == 15


def test_conform_exits_1_when_a_check_fails(model, tmp_path):
    """A model whose positions run past what float32 can tell apart is not needed: bend a buffer."""
    broken = tmp_path / "m"
    make_model("llama").save_pretrained(broken)
    tokenizer = make_tokenizer("{{ bos_token }}{{ bos_token }}{{ messages[1]['content'] }}")
    tokenizer.save_pretrained(broken)
    result = run("conform", broken)
    assert result.exit_code == 1
    assert "FAILED template round trip" in result.output


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_score(model, pairs, tmp_path, suffix):
    out = tmp_path / f"scores{suffix}"
    result = run("score", model, pairs, "-o", out)
    assert result.exit_code == 0, result.output
    readers = {".parquet": pd.read_parquet, ".csv": pd.read_csv}
    table = readers[suffix](out) if suffix in readers else pd.read_json(out, lines=True)
    assert len(table) == 16
    assert list(table["pair"])[:2] == ["0-0", "1-0"]
    gap = table["chosen"] - table["rejected"] - table["margin"]
    assert gap.abs().max() < 1e-6
    said = json.loads(run("score", model, pairs, "-o", out, "--json", "--limit", 3).stdout)
    assert said["pairs"] == 3


def test_audit(model, pairs, tmp_path):
    split = tmp_path / "split.json"
    split.write_text(json.dumps({"train": ["0-0", "1-0"], "test": ["0-1", "1-1", "2-1"]}))
    out = tmp_path / "report.html"
    result = run("audit", model, pairs, "-o", out, "--split", split, "--json", "--sample", 8)
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["report"] == str(out)
    assert said["passed"]
    text = out.read_text()
    assert "part=train" in text
    assert "part=test" in text
    lines = Path(said["evidence"]).read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    lens = next(r for r in records if r["instrument"] == "lens")
    assert lens["value"]["values"]["shape"][1] == 8


def test_over_long_pairs_are_left_out_named_and_counted(tmp_path, pairs):
    folder = tmp_path / "m"
    make_model("llama", max_position_embeddings=64).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    out = tmp_path / "s.csv"
    result = run("score", folder, pairs, "-o", out)
    assert result.exit_code == 0, result.output
    left = len(pd.read_csv(out))
    assert 0 < left < 16
    assert f"{16 - left} pairs left out" in result.stderr
    assert "the model reads 64" in result.stderr
    assert run("score", folder, pairs, "-o", out, "--truncate", "left").exit_code == 0
    table = pd.read_csv(out)
    assert len(table) == 16
    assert table["tokens_cut_rejected"].max() > 0
    cut = run("audit", folder, pairs, "-o", tmp_path / "r.html", "--truncate", "right")
    assert "texts were cut to the model's length" in cut.stderr
    assert "texts were cut to the model&#39;s length" in (tmp_path / "r.html").read_text()
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"prompt": "p" * 99, "chosen": "a", "rejected": "b"}))
    result = run("score", folder, long, "-o", out)
    assert result.exit_code == 2
    assert "the one pair is longer" in result.stderr


def bad_files(tmp_path, model):
    def checkpoint(name, change):
        folder = tmp_path / name
        make_model("llama").save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    def rows(name, *lines):
        path = tmp_path / name
        path.write_text("".join(json.dumps(r) + "\n" for r in lines))
        return path

    row = {"prompt": "q", "chosen": "a", "rejected": "b"}
    good = rows("good.jsonl", row)
    large = tmp_path / "large"
    make_model("llama").save_pretrained(large)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([f"<x{k}>" for k in range(4)])
    tokenizer.save_pretrained(large)
    return {
        "missing head": (checkpoint("h", lambda t: t.pop("score.weight")), good, "score.weight"),
        "renamed head": (
            checkpoint("r", lambda t: t.update(v_head=t.pop("score.weight"))), good, "v_head"),
        "nan": (
            checkpoint("n", lambda t: t["model.norm.weight"].fill_(torch.nan)), good, "NaN"),
        "large tokenizer": (large, good, "the model embeds 260"),
        "no checkpoint": (tmp_path, good, "no config.json"),
        "no such folder": (tmp_path / "zzz", good, "no such folder"),
        "empty response": (model, rows("e.jsonl", {**row, "chosen": " "}), "line 1: chosen"),
        "empty file": (model, rows("empty.jsonl"), "no rows"),
        "a number": (model, rows("num.jsonl", {**row, "prompt": 5}), "line 1: prompt"),
        "a string row": (model, rows("str.jsonl", "bare"), "line 1"),
        "a triple row": (model, rows("tri.jsonl", ["q", "a", "b"]), "line 1"),
        "no such file": (model, tmp_path / "none.jsonl", "no such file"),
    }  # fmt: skip


CASES = ["missing head", "renamed head", "nan", "large tokenizer", "no checkpoint",
         "no such folder", "empty response", "empty file", "a number", "a string row",
         "a triple row", "no such file"]  # fmt: skip


@pytest.fixture(scope="module")
def bad(tmp_path_factory, model):
    found = bad_files(tmp_path_factory.mktemp("bad"), model)
    assert list(found) == CASES
    return found


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_a_line_and_exit_2(bad, tmp_path, case):
    folder, file, said = bad[case]
    out = tmp_path / "r.html"
    result = run("audit", folder, file, "-o", out)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("-o", "s.txt"), "end it in"),
        (("-o", "nowhere/s.csv"), "no folder"),
        (("-o", "s.csv", "--truncate", "middle"), "choose one of"),
        (("-o", "s.csv", "--dtype", "int8"), "dtype='int8'"),
        (("-o", "s.csv", "--position", "middle"), "position='middle'"),
        (("-o", "s.csv", "--limit", "0"), "limit=0"),
        (("-o", "s.csv", "--batch-tokens", "0"), "batch_tokens=0"),
    ],
)
def test_bad_options_are_a_line_and_exit_2(model, pairs, monkeypatch, tmp_path, args, said):
    monkeypatch.chdir(tmp_path)
    result = run("score", model, pairs, *args)
    assert result.exit_code == 2
    assert said in result.stderr


def test_debug_shows_the_traceback(tmp_path):
    result = run("--debug", "conform", tmp_path)
    assert isinstance(result.exception, Exception)
    assert "no config.json" in str(result.exception)
    run("--version")  # the option holds for one run


def test_half_precision_says_how_exact_it_is(model, pairs, tmp_path):
    out = tmp_path / "r.html"
    result = run("audit", model, pairs, "-o", out, "--dtype", "bfloat16")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (0, 1), result.output
    assert "a score depends on what else is in the batch" in out.read_text()


@pytest.mark.parametrize("command", ["score", "audit"])
def test_the_pairs_are_never_overwritten(model, pairs, tmp_path, command):
    own = tmp_path / "z.evidence.jsonl"
    own.write_text(pairs.read_text())
    out = tmp_path / ("z.html" if command == "audit" else "z.evidence.jsonl")
    result = run(command, model, own, "-o", out)
    assert result.exit_code == 2
    assert "is the file of the pairs" in result.stderr
    assert own.read_text() == pairs.read_text()
    folder = tmp_path / "d.csv"
    folder.mkdir()
    result = run(command, model, pairs, "-o", folder)
    assert result.exit_code == 2
    assert "is a folder" in result.stderr


@pytest.fixture
def odd(tmp_path):
    path = tmp_path / "odd.csv"
    path.write_text('question,good,"bad, or so"\nHi,Hello!,Go.\nWhat?,This.,That\n')
    return path


NAMED = ("prompt=question,chosen=good", "rejected=bad, or so")


@pytest.mark.parametrize("command", ["explain", "score", "audit", "compare", "run", "calibrate"])
def test_columns_of_other_names_are_named_on_the_command_line(model, odd, tmp_path, command):
    target = {"audit": ("-o", tmp_path / "r.html"), "compare": ("-o", tmp_path / "c.jsonl")}
    models = (model, model) if command == "compare" else (model,)
    first = ("run", "preference") if command == "run" else (command,)
    args = (*first, *models, odd, *target.get(command, ()))
    refused = run(*args)
    assert refused.exit_code == 2
    assert "Name the column with --columns chosen=..." in refused.stderr
    wrong = run(*args, "--columns", "answer=good")
    assert "--columns answer=good: write FIELD=COLUMN with a field of prompt" in wrong.stderr
    twice = run(*args, "--columns", "chosen=good,chosen=x")
    assert "--columns names chosen twice" in twice.stderr


def test_named_columns_are_read(model, odd, tmp_path):
    options = [x for text in NAMED for x in ("--columns", text)]
    result = run("score", model, odd, *options)
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == 2
    explained = run("explain", model, odd, *options)
    assert "Go." in explained.stdout
    one = run("score", model, odd, *options, "--limit", 1)
    assert "1 pair scored" in one.stderr


def test_a_download_is_allowed_by_the_option_of_the_command(model):
    result = run("explain", model, "nobody/no-such-pairs")
    assert "Either pass --allow-download, or" in result.stderr


def test_no_help_loses_what_stands_in_brackets():
    from rich.text import Text
    from typer.main import get_command

    def every(command):
        yield command
        for inner in getattr(command, "commands", {}).values():
            yield from every(inner)

    texts = [t for c in every(get_command(app)) for t in (c.help, *(
        getattr(p, "help", None) for p in c.params))]  # fmt: skip
    assert len(texts) > 100
    for text in filter(None, texts):
        assert Text.from_markup(text).plain == text.replace("\\[", "["), text
