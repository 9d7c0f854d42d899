"""``reward-lens score``: files, standard input, single items, and where the rows go."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from families import PAIRS, make_model, make_tokenizer
from typer.testing import CliRunner

from reward_lens import load_signal
from reward_lens.cli import app

ROWS = [{"id": f"p{k}", "prompt": p, "chosen": a, "rejected": b}
        for k, (p, a, b) in enumerate(PAIRS)]  # fmt: skip
ITEMS = [{"id": f"i{k}", "prompt": p, "response": a} for k, (p, a, _) in enumerate(PAIRS)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make_model("llama").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def lines(rows):
    return "".join(json.dumps(r) + "\n" for r in rows)


def run(*args, **more):
    return CliRunner().invoke(app, ["score", *(str(a) for a in args)], **more)


def test_pairs_from_standard_input_to_standard_output(model):
    result = run(model, "-", input=lines(ROWS))
    assert result.exit_code == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [r["pair"] for r in rows] == [r["id"] for r in ROWS]
    assert all(abs(r["chosen"] - r["rejected"] - r["margin"]) < 1e-6 for r in rows)
    assert f"{len(ROWS)} pairs scored by reward, accuracy" in result.stderr


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
@pytest.mark.parametrize("stdin", [True, False])
def test_single_items_score_as_the_signal_does(model, tmp_path, suffix, stdin):
    source, out = tmp_path / "items.jsonl", tmp_path / f"out{suffix}"
    source.write_text(lines(ITEMS))
    result = run(model, "-" if stdin else source, "-o", out, input=lines(ITEMS) if stdin else "")
    assert result.exit_code == 0, result.stderr
    assert f"{len(ITEMS)} items scored by reward; wrote {out}" in result.stdout
    readers = {".parquet": pd.read_parquet, ".csv": pd.read_csv}
    table = readers[suffix](out) if suffix in readers else pd.read_json(out, lines=True)
    assert list(table["item"]) == [r["id"] for r in ITEMS]
    want = load_signal(model).score([(r["prompt"], r["response"]) for r in ITEMS]).value.values
    assert table["score"].to_numpy() == pytest.approx(want, abs=1e-6)
    assert {"lineage", "n_tokens", "read_index", "read_token", "tokens_cut"} <= set(table)


def test_messages_and_texts_are_items_too(model):
    p, a, _ = PAIRS[0]
    turns = [{"role": "user", "content": p}, {"role": "assistant", "content": a}]
    result = run(model, "-", "--json", input=lines([{"messages": turns}, {"text": "as it is"}]))
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) == 2
    said = json.loads(result.stderr.splitlines()[-1])
    assert (said["items"], said["output"]) == (2, None)


def test_over_long_items_are_left_out_and_named(tmp_path):
    folder = tmp_path / "m"
    make_model("llama", max_position_embeddings=64).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    rows = [*ITEMS[:2], {"id": "long", "prompt": "a", "response": "b" * 100}]
    result = run(folder, "-", input=lines(rows))
    assert result.exit_code == 0, result.stderr
    left = [json.loads(x)["item"] for x in result.stdout.splitlines()]
    assert "long" not in left
    assert "long: has" in result.stderr
    cut = run(folder, "-", "--truncate", "right", input=lines(rows))
    assert "texts were cut to the model's length" in cut.stderr
    assert len(cut.stdout.splitlines()) == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "there are no"),
        ("{not json", "standard input, line 1: not JSON"),
        ("[1]", "expected a JSON object"),
        (lines([*ITEMS[:1], ROWS[0]]), "standard input, line 2"),
        (lines([*ROWS[:1], ITEMS[0]]), "row 1"),
        (lines([{"prompt": "p"}]), "chosen"),
    ],
)
def test_wrong_input_is_named(model, given, message):
    result = run(model, "-", input=given)
    assert result.exit_code == 2, result.stdout
    assert message in result.stderr
    assert result.stdout == ""


def test_limit_stops_reading(model):
    result = run(model, "-", "--limit", 2, input=lines(ITEMS) + "{broken")
    assert result.exit_code == 0, result.stderr
    assert len(result.stdout.splitlines()) == 2
