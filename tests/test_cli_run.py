"""``reward-lens run``: every instrument, typed options, and what is refused."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
import torch
from families import PAIRS, make_model, make_tokenizer
from transformers import PreTrainedModel
from typer.testing import CliRunner

import reward_lens as rl
from reward_lens.assets import asset
from reward_lens.cli import app
from reward_lens.cli_run import INSTRUMENTS
from reward_lens.cli_values import choices, parse_settings
from reward_lens.errors import DataError
from reward_lens.evidence import EvidenceStore, read_jsonl
from reward_lens.instrument_calls import NOT_KEPT

DEMO, DEMO_PAIRS = asset("demo/model"), asset("demo/pairs.jsonl")


def run(*args):
    return CliRunner().invoke(app, ["run", *map(str, args)])


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Short pairs, and labelled rows of the same texts."""
    folder = tmp_path_factory.mktemp("rows")
    given = [{"prompt": p, "chosen": a, "rejected": b, "subset": "llmbar-natural"}
             for p, a, b in PAIRS]  # fmt: skip
    labelled = [{"prompt": p, "response": r, "label": k} for p, a, b in PAIRS
                for k, r in ((1, a), (0, b))]  # fmt: skip
    for name, lines in (("pairs", given), ("labelled", labelled)):
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in lines))
    return folder


@pytest.fixture(scope="module")
def three_rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    labels = {k: f"row {k}" for k in range(3)}
    make_model("llama", num_labels=3, id2label=labels).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def test_every_instrument_of_the_public_face_can_be_run():
    own = {"audit", "ablate", "replace", "steer", "fit_concept", "from_tiny", "load_pairs",
           "load_signal", "run_conformance", "wrap_hf_model", "compare", "calibrate",
           "load_choices"}  # fmt: skip
    functions = {n for n in rl.__all__ if n[0].islower()} - own
    assert set(INSTRUMENTS) == functions


MORE = {
    "concept_dose_response": ("--set", "concept=labelled.jsonl", "--set", "directions=3"),
    "token_map": ("--set", "steps=2", "--set", "methods=prefix,integrated"),
    "attribution_patching": ("--set", "sample=2", "--set", "screen=2"),
    "bias_battery": ("--set", "max_responses=2"),
    "style_accuracy": ("--set", "max_pairs=3"),
    "prompt_snr": ("--set", "max_pairs=3"),
    "patch_grid": ("--set", "by=layer_position", "--set", "positions=aligned",
                   "--set", "direction=noise"),
    "path_effects": ("--set", "top=2", "--set", "positions=aligned"),
}  # fmt: skip


def asked(instrument, rows, store):
    """A run of an instrument whose evidence is kept in a store."""
    more = [m.replace("labelled.jsonl", str(rows / "labelled.jsonl"))
            for m in MORE.get(instrument, ())]  # fmt: skip
    return (instrument, DEMO, rows / "pairs.jsonl", "--store", store, *more)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store") / "e.db"


@functools.cache
def demo_signal():
    return rl.load_signal(DEMO)


@pytest.fixture
def loaded(monkeypatch):
    """Loading checks the model, which takes forwards too: it was loaded before they are counted."""
    signal = demo_signal()
    monkeypatch.setattr("reward_lens.cli_run.load", lambda model, ctx: signal)


def forwards(monkeypatch):
    """Counts the forwards that are run from here on."""
    run_forwards = []
    plain = torch.nn.Module.__call__

    def counted(self, *args, **options):
        if isinstance(self, PreTrainedModel):
            run_forwards.append(type(self).__name__)
        return plain(self, *args, **options)

    monkeypatch.setattr(torch.nn.Module, "__call__", counted)
    return run_forwards


@pytest.mark.parametrize("instrument", [i for i in INSTRUMENTS if i != "objective_geometry"])
def test_every_instrument_runs_and_a_store_has_it_then(
    instrument, rows, store, tmp_path, monkeypatch, loaded
):
    out, args = tmp_path / "found.jsonl", asked(instrument, rows, store)
    result = run(*args, "-o", out)
    assert result.exit_code == 0, result.output
    *_, found = read_jsonl(out)
    assert found.instrument == instrument
    assert f"measured: {instrument} v1" in result.stdout
    assert found.id in result.stdout
    assert f"wrote {out}" in result.stdout
    printed = [t for t in INSTRUMENTS[instrument] if t in found.tables]
    assert printed
    for name in printed:
        assert f"\n{name}" in f"\n{result.stdout}"
    with EvidenceStore(store) as opened:
        before = len(opened)
    count = forwards(monkeypatch)
    again = run(*args)
    assert again.exit_code == 0, again.output
    assert found.id in again.stdout
    assert "trust: exploratory" in again.stdout
    assert (count == []) == (instrument not in NOT_KEPT)
    assert f"{'kept' if count else 'was already'} in {store}" in again.stdout
    with EvidenceStore(store) as opened:
        assert len(opened) == before


@pytest.mark.parametrize(
    ("instrument", "other"),
    [
        ("patch_grid", ("--set", "by=layer_position", "--set", "positions=aligned")),
        ("patch_grid", ("--set", "by=layer_position", "--set", "positions=final",
                        "--set", "direction=noise")),
        ("path_effects", ("--set", "top=3", "--set", "positions=aligned")),
        ("path_effects", ("--set", "senders=embed,L0.attn_out", "--set", "positions=aligned")),
        ("compare_views", ("--set", "by=head")),
        ("compare_views", ("--set", "layers=1")),
        ("bias_battery", ("--set", "max_responses=2", "--set", "seed=1")),
        ("prompt_snr", ("--set", "max_pairs=2")),
        ("prompt_snr", ("--set", "max_pairs=3", "--set", "seed=1")),
        ("lens", ("--limit", 3)),
        ("preference", ("--batch-tokens", 99)),
    ],
)  # fmt: skip
def test_another_question_is_measured(instrument, other, rows, store, tmp_path, loaded):
    assert run(*asked(instrument, rows, store)).exit_code == 0
    copy = shutil.copy(store, tmp_path / "e.db")
    result = run(instrument, DEMO, rows / "pairs.jsonl", "--store", copy, *other)
    assert result.exit_code == 0, result.output
    assert f"kept in {copy}" in result.stdout
    assert "was already" not in result.stdout


def test_with_a_store_a_file_is_written_where_it_is_asked_for(rows, tmp_path, monkeypatch, loaded):
    monkeypatch.chdir(tmp_path)
    args = ("lens", DEMO, rows / "pairs.jsonl", "--store", "e.db", "--json")
    said = json.loads(run(*args).stdout)
    assert (said["output"], said["store"], said["from_store"]) == ([], "e.db", False)
    assert said["trust"] == "exploratory"
    assert "no scorecard" in " ".join(said["because"])
    assert {p.name for p in tmp_path.iterdir()} == {"e.db"}
    said = json.loads(run(*args, "-o", "lens.csv").stdout)
    assert (said["output"], said["from_store"]) == (["lens.csv", "lens.evidence.jsonl"], True)
    with EvidenceStore("e.db") as store:
        assert [e.id for e in store.find()] == [said["id"]]


def test_a_file_that_is_no_store_is_refused_before_work(rows, tmp_path):
    result = run("lens", DEMO, rows / "pairs.jsonl", "--store", rows / "pairs.jsonl")
    assert result.exit_code == 2
    assert "pairs.jsonl" in result.stderr
    assert "Traceback" not in result.stderr
    missing = run("lens", DEMO, rows / "pairs.jsonl", "--store", tmp_path / "no" / "e.db")
    assert missing.exit_code == 2
    assert str(tmp_path / "no") in missing.stderr


def test_rows_of_a_head_are_compared(three_rows, rows, tmp_path):
    out = tmp_path / "g.jsonl"
    result = run("objective_geometry", three_rows, rows / "pairs.jsonl", "-o", out)
    assert result.exit_code == 0, result.output
    assert "row 2" in result.stdout
    refused = run("objective_geometry", three_rows, rows / "pairs.jsonl", "--readout", "reward")
    assert refused.exit_code == 2
    assert "takes no --readout" in refused.stderr
    kept = tmp_path / "e.db"
    for _ in range(2):  # which rows were read is not on record as it is asked
        stored = run("objective_geometry", three_rows, rows / "pairs.jsonl", "--store", kept)
        assert f"kept in {kept}" in stored.stdout
    alone = run("objective_geometry", DEMO, rows / "pairs.jsonl", "-o", out)
    assert alone.exit_code == 2
    assert "compares the rows of a head" in alone.stderr


def test_options_reach_the_instrument(rows, tmp_path):
    out = tmp_path / "grid.jsonl"
    result = run("patch_grid", DEMO, rows / "pairs.jsonl", "-o", out, "--limit", 3,
                 "--set", "by=head", "--set", "layers=1,2", "--set", "direction=noise",
                 "--batch-tokens", 512)  # fmt: skip
    assert result.exit_code == 0, result.output
    *_, found = read_jsonl(out)
    signal = rl.load_signal(DEMO)
    pairs = rl.load_pairs(rows / "pairs.jsonl", limit=3)
    wanted = rl.patch_grid(signal, pairs, by="head", layers=[1, 2], direction="noise",
                           batch_tokens=512)  # fmt: skip
    assert found.id == wanted.id


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_has_its_evidence_beside_it(rows, tmp_path, suffix):
    out = tmp_path / f"lens{suffix}"
    result = run("lens", DEMO, rows / "pairs.jsonl", "-o", out)
    assert result.exit_code == 0, result.output
    table = pd.read_csv(out) if suffix == ".csv" else pd.read_parquet(out)
    *_, found = read_jsonl(tmp_path / "lens.evidence.jsonl")
    assert list(table.columns) == list(found.to_dataframe().columns)
    np.testing.assert_allclose(table["margin"], found.to_dataframe()["margin"], rtol=1e-12)


def test_without_an_output_the_evidence_is_kept_by_name(rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("preference", DEMO, rows / "pairs.jsonl", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["output"] == ["preference.evidence.jsonl"]
    *_, found = read_jsonl(tmp_path / "preference.evidence.jsonl")
    assert said["id"] == found.id
    assert said["forwards"] == 8
    assert set(said["tables"]) == {"accuracy", "margins"}
    estimates = {i["name"]: i["estimate"] for i in said["uncertainty"]}
    assert estimates["accuracy"] == found.interval("accuracy").estimate


def test_long_tables_are_cut_and_it_is_said(tmp_path):
    out = tmp_path / "g.jsonl"
    result = run("patch_grid", DEMO, DEMO_PAIRS, "-o", out, "--limit", 4, "--set", "by=head")
    assert "components, largest mean_size first, the first 20 of 64 rows" in result.stdout
    assert result.stdout.count("fewer than 15 lineages") == 1
    table = read_jsonl(out)[-1].tables["components"]
    largest = table.sort_values("mean_size", ascending=False)["component"].iloc[0]
    body = result.stdout.partition("share_of_margin")[2].splitlines()[1]
    assert largest in body


def test_lists(tmp_path):
    every = run("--list")
    assert every.exit_code == 0
    for name in INSTRUMENTS:
        assert f"\n{name} " in f"\n{every.stdout}"
    one = run("patch_grid", "--list")
    assert one.exit_code == 0
    assert '{"component", "head", "layer_position"}' in one.stdout
    assert "ablation" in one.stdout
    assert "batch_tokens" not in one.stdout
    assert "(needed)" in run("concept_dose_response", "--list").stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("lens",), "name an instrument, a model and pairs"),
        (("grid", DEMO, "P"), "there is no instrument 'grid'; there are preference, lens"),
        (("patch_grid", DEMO, "P", "--set", "directon=noise"),
         "patch_grid has no option 'directon'; there is: by=component, positions=final"),
        (("lens", DEMO, "P", "--set", "by=head"), "lens has no option 'by'; there is: none"),
        (("patch_grid", DEMO, "P", "--set", "by"), "--set by: write it as key=value"),
        (("patch_grid", DEMO, "P", "--set", "by=rows"), "by='rows': choose one of component"),
        (("patch_grid", DEMO, "P", "--set", "by=head", "--set", "by=head"), "by is given twice"),
        (("patch_grid", DEMO, "P", "--set", "layers=one"),
         "--set layers=one: give none or a whole number or whole numbers with commas between"),
        (("patch_grid", DEMO, "P", "--set", "readout=reward"), "an option of its own, --readout"),
        (("path_effects", DEMO, "P", "--set", "joint=maybe"), "joint=maybe: give true or false"),
        (("path_effects", DEMO, "P", "--set", "senders=L9.H0"), "L9"),
        (("concept_dose_response", DEMO, "P"), "needs --set concept=…: a file of rows"),
        (("concept_dose_response", DEMO, "P", "--set", "concept=no.jsonl"),
         "no.jsonl: there is no such file; a concept is a file of rows"),
        (("lens", DEMO, "P", "-o", "x.txt"), "x.txt: end it in .jsonl, .csv, .parquet"),
        (("lens", DEMO, "P", "-o", "no/x.csv"), "there is no folder no"),
        (("lens", DEMO, "P", "--readout", "criterion:3"), "no readout 'criterion:3'"),
        (("lens", DEMO, "P", "--truncate", "middle"), "choose one of"),
        (("lens", DEMO, "none.jsonl"), "none.jsonl: there is no such file"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_a_line_and_exit_2(rows, tmp_path, monkeypatch, args, said):
    monkeypatch.chdir(tmp_path)
    result = run(*[str(rows / "pairs.jsonl") if a == "P" else a for a in args])
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_a_folder_is_refused(rows, tmp_path):
    (tmp_path / "d.jsonl").mkdir()
    result = run("lens", DEMO, rows / "pairs.jsonl", "-o", tmp_path / "d.jsonl")
    assert result.exit_code == 2
    assert "d.jsonl is a folder; name another output" in result.stderr
    own = run("lens", DEMO, rows / "pairs.jsonl", "-o", rows / "pairs.jsonl")
    assert own.exit_code == 2
    assert "is the file of the pairs" in own.stderr


def instrument(
    signal: object,
    pairs: object,
    *,
    count: int = 1,
    share: float = 0.5,
    both: bool = True,
    where: str | int | tuple[int, int | None] = "final",
    names: Sequence[str] | str | None = None,
    doses: Sequence[float] = (1.0, 2.0),
    sample: int | None = 16,
    progress: object = None,
) -> None:
    """Stand in for an instrument: what its options become is what is tested.

    Parameters
    ----------
    where : {"final", "all"} or a place
    """


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("count=3", 3), ("count=-1", -1), ("share=1e-3", 1e-3), ("share=2", 2.0),
        ("both=false", False), ("both=Yes", True), ("where=all", "all"), ("where=-1", -1),
        ("where=2,5", (2, 5)), ("where=2,", (2, None)), ("names=a, b", ["a", "b"]),
        ("names=a", ["a"]), ("names=none", None), ("doses=0.5,1", [0.5, 1.0]),
        ("sample=none", None), ("sample=4", 4),
    ],
)  # fmt: skip
def test_values_are_typed_by_the_signature(text, value):
    (found,) = parse_settings(instrument, [text]).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["count=1.5", "share=", "both=2", "doses=1,,2", "sample=few"])
def test_values_that_do_not_fit_are_refused(text):
    with pytest.raises(DataError, match=f"--set {text}: give "):
        parse_settings(instrument, [text])


def test_options_are_those_that_can_be_written():
    assert list(choices(instrument)) == [
        "count", "share", "both", "where", "names", "doses", "sample"
    ]  # fmt: skip
    assert choices(instrument)["where"].said == '{"final", "all"} or a place'
    assert choices(instrument)["sample"].said == "none or a whole number"
    assert "attribution" not in choices(rl.compare_views)  # evidence cannot be written there


def test_the_tables_come_first_and_of_many_intervals_a_few(tmp_path):
    lines = [json.loads(x) for x in DEMO_PAIRS.read_text().splitlines()[:12]]
    few = tmp_path / "few.jsonl"
    few.write_text(
        "".join(json.dumps({**r, "subset": f"s{k}"}) + "\n" for k, r in enumerate(lines))
    )
    out = tmp_path / "e.jsonl"
    said = run("preference", DEMO, few, "-o", out).stdout
    assert said.index("group") < said.index("measured: preference")
    (found,) = read_jsonl(out)
    assert said.count("result ") == 8
    assert f"results: {len(found.uncertainty) - 8} more in the evidence" in said


def test_an_interrupted_run_says_what_the_store_keeps(rows, tmp_path, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("reward_lens.cli_run._measured", interrupt)
    result = run("lens", DEMO, rows / "pairs.jsonl", "--store", tmp_path / "s.db")
    assert result.exit_code == 130
    assert f"{tmp_path / 's.db'} keeps what was measured (nothing new)" in result.stderr
