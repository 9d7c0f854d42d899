"""Limits and config files of ``reward-lens audit``, and what an interrupted one keeps."""

from __future__ import annotations

import json

import pytest
from families import PAIRS, make_model, make_tokenizer
from typer.testing import CliRunner

from reward_lens.cli import app
from reward_lens.evidence import read_jsonl

QUICK = ("--causal-sample", 1, "--biases", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("limits")
    make_model("llama").save_pretrained(path / "m")
    make_tokenizer().save_pretrained(path / "m")
    rows = [{"prompt": p, "chosen": a, "rejected": b} for p, a, b in PAIRS]
    (path / "p.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def audit(folder, *more):
    args = ["audit", folder / "m", folder / "p.jsonl", "-o", folder / "r.html", *more]
    return CliRunner().invoke(app, [str(a) for a in args])


def config(folder, text):
    path = folder / "audit.toml"
    path.write_text(text)
    return "--config", path


def test_limits_that_are_kept_are_said_and_exit_0(folder):
    result = audit(folder, *QUICK, "--fail-under", "accuracy=0", "--fail-over", "ece=1", "--json")
    assert result.exit_code == 0, result.output
    assert "kept: accuracy = " in result.stderr
    said = json.loads(result.stdout)["limits"]
    assert [(x["metric"], x["fail"], x["limit"], x["passed"]) for x in said] == [
        ("accuracy", "under", 0.0, True),
        ("ece", "over", 1.0, True),
    ]
    assert [x["certain"] for x in said] == [True, True]
    assert said[0]["value"] == json.loads(result.stdout)["accuracy"]
    assert said[1]["evidence"] == "reliability_curve"


def test_a_broken_limit_exits_1_and_the_page_stands(folder):
    (folder / "r.html").unlink(missing_ok=True)
    result = audit(folder, *QUICK, "--fail-under", "accuracy=1.5")
    assert result.exit_code == 1
    assert "broken: accuracy = " in result.stderr
    assert "is under 1.5" in result.stderr
    assert (folder / "r.html").is_file()


def test_a_limit_on_a_bias_is_held_to_the_battery(folder):
    limits = ("--fail-over", "bias.flattery=1e9", "--fail-over", "bias.flattery.end.high=0")
    result = audit(folder, "--causal-sample", 1, "--biases", 4, "--json", *limits)
    assert result.exit_code == 1, result.output
    wide, narrow = json.loads(result.stdout)["limits"]
    assert wide["passed"]
    assert not narrow["passed"]
    assert wide["evidence"] == narrow["evidence"] == "bias_battery"


@pytest.mark.parametrize(
    ("limit", "said", "worked"),
    [
        ("accuracy", "--fail-under 'accuracy' is no limit: write NAME=NUMBER", False),
        ("acuracy=0.5", "nothing measured is called 'acuracy'; did you mean accuracy", False),
        ("zzz=0.5", "nothing measured is called 'zzz'", True),
        ("bias.length=0.5", "needs the bias battery, which was not run", False),
    ],
)
def test_a_limit_that_names_nothing_is_a_usage_error(folder, limit, said, worked):
    (folder / "r.html").unlink(missing_ok=True)
    result = audit(folder, *QUICK, "--fail-under", limit)
    assert result.exit_code == 2
    assert said in result.stderr
    assert (folder / "r.html").is_file() == worked
    assert ("the report is written all the same" in result.stderr) == worked


def test_options_of_a_file_are_taken_and_the_command_line_wins(folder):
    file = config(folder, "causal-sample = 1\nbiases = 0\nsample = 3\njson = true\nlimit = 4\n")
    result = audit(folder, *file, "--limit", 3)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["pairs"] == 3
    assert "lens ..." in result.stderr


def test_model_and_pairs_can_stand_in_the_file(folder):
    text = (
        f'model = "{folder / "m"}"\npairs = "{folder / "p.jsonl"}"\ncausal_sample = 1\nbiases = 0\n'
    )
    path = folder / "whole.toml"
    path.write_text(text + f'output = "{folder / "w.html"}"\n')
    result = CliRunner().invoke(app, ["audit", "--config", str(path)])
    assert result.exit_code == 0, result.output
    assert (folder / "w.html").is_file()


def test_limits_of_a_file_stand_beside_those_of_the_command_line(folder):
    file = config(
        folder,
        "causal-sample = 1\nbiases = 0\n[fail-under]\naccuracy = 1.5\napplied.first = -1\n"
        '"accuracy.low" = -1\n"preference/length.slope" = -100\n[fail_over]\nece = 2\n',
    )
    result = audit(folder, *file, "--json", "--fail-under", "accuracy=0")
    assert result.exit_code == 0, result.output
    limits = {(x["metric"], x["fail"]): x["limit"] for x in json.loads(result.stdout)["limits"]}
    assert limits == {
        ("accuracy", "under"): 0.0,
        ("accuracy.low", "under"): -1.0,
        ("applied.first", "under"): -1.0,
        ("preference/length.slope", "under"): -100.0,
        ("ece", "over"): 2.0,
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("casual-sample = 1\n", "there is no option 'casual-sample'; did you mean causal-sample?"),
        ("zzz = 1\n", "there is no option 'zzz'; there are model, pairs, output"),
        ("config = 'a'\n", "there is no option 'config'"),
        ("sample = 3.5\n", "sample = 3.5: give a whole number"),
        ("sample = true\n", "sample = True: give a whole number"),
        ("dtype = 32\n", "dtype = 32: give a text in quotes"),
        ("calibrate = 'yes'\n", "calibrate = 'yes': give true or false"),
        ("sign = 'minus'\n", "sign = 'minus': give a number"),
        ("seed = 1\nseed = 2\n", "is no TOML"),
        ("batch_tokens = 1\nbatch-tokens = 2\n", "batch-tokens is there twice"),
        ("fail-under = 0.7\n", "fail-under is a table, such as [fail-under] with accuracy = 0.7"),
        ("[fail-under]\naccuracy = 'high'\n", "accuracy = 'high': a limit is a number"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_before_any_work(folder, text, said):
    result = audit(folder, *config(folder, text))
    assert result.exit_code == 2
    assert said in result.stderr
    assert "conformance" not in result.stderr


def test_a_missing_file_is_named(folder):
    result = audit(folder, "--config", folder / "none.toml")
    assert result.exit_code == 2
    assert "none.toml: cannot be read (No such file or directory)" in result.stderr


def interrupt(*args, **options):
    raise KeyboardInterrupt


def test_an_interrupted_audit_says_what_is_kept_and_goes_on(folder, tmp_path, monkeypatch):
    store = ("--store", tmp_path / "s.db")
    (folder / "r.html").unlink(missing_ok=True)
    with monkeypatch.context() as patched:
        patched.setattr("reward_lens.audit_plan.patch_grid", interrupt)
        result = audit(folder, *QUICK, *store)
        assert result.exit_code == 130
        assert "interrupted; no report was written" in result.stderr
        assert f"{tmp_path / 's.db'} keeps " in result.stderr
        assert "lens, attribution" in result.stderr
        assert not (folder / "r.html").exists()
        alone = audit(folder, *QUICK)
        assert alone.exit_code == 130
        assert "nothing is kept; with --store" in alone.stderr
    again = audit(folder, *QUICK, *store)
    assert again.exit_code == 0, again.output
    assert "of them from the store: preference, lens, attribution" in again.stdout
    assert "lens (" not in again.stderr
    assert "patch_grid ..." in again.stderr
    assert "Taken from the store" in (folder / "r.html").read_text()


def test_an_interrupt_anywhere_is_a_line_and_exits_130(folder, monkeypatch):
    monkeypatch.setattr("reward_lens.data.load_pairs", interrupt)
    result = audit(folder)
    assert result.exit_code == 130
    assert result.stderr.strip() == "reward-lens: interrupted"


def test_a_report_is_a_page(folder):
    result = audit(folder, "-o", folder / "x.txt")
    assert result.exit_code == 2
    assert "x.txt: a report is a page; end it in .html" in result.stderr


def test_the_json_says_how_sure_it_is(folder):
    said = json.loads(audit(folder, "--causal-sample", 1, "--biases", 4, "--json").stdout)
    assert said["accuracy_low"] <= said["accuracy"] <= said["accuracy_high"]
    assert said["accuracy_n"] == said["pairs"]
    assert {"length_slope", "length_slope_low", "length_slope_high"} <= set(said)
    found = {e.instrument: e for e in read_jsonl(folder / "r.evidence.jsonl")}
    effects = found["bias_battery"].tables["effects"]
    assert [x["edit"] for x in said["named_biases"]] == list(effects["edit"][effects["named"]])
    assert json.loads(audit(folder, *QUICK, "--json").stdout)["named_biases"] is None
