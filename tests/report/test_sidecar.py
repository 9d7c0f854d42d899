"""The file of all scored pairs beside a page: read back as pairs, whole or not there."""

from __future__ import annotations

import json
import re

import pytest
from families import PAIRS, make_model, make_tokenizer
from typer.testing import CliRunner

import reward_lens as rl
from reward_lens.cli import app
from reward_lens.data import Item, Message, Pair, Pairs, as_pairs
from reward_lens.data.writing import pair_row
from reward_lens.errors import DataError, EvidenceError
from reward_lens.report import sidecar
from reward_lens.report.browser_json import unpacked
from reward_lens.report.sidecar import is_sidecar, write_sidecar


@pytest.fixture(scope="module")
def signal():
    # Of any turns: what a model without a template refuses is not what is asked here.
    turns = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    return rl.wrap_hf_model(make_model("llama"), make_tokenizer(turns))


ODD = "\u2028</script>\r\n\t\"'\\🙂é"
TURNS = (Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", ODD),
         Message("user", "And?"))  # fmt: skip
FORMS = {
    "texts": [(Item.of("q", "yes" + ODD), Item.of("q", "\n no ")), (Item.of(ODD, "a"),
              Item.of(ODD, "\n\nHuman: b\n\nAssistant: c"))],
    "conversations": [(Item.of(TURNS, "good"), Item.of(TURNS, "bad"))],
    "a prompt that is not the user's": [
        (Item.of(TURNS[:1], "good"), Item.of(TURNS[:1], "bad")),
        (Item.of([Message("user", " ")], "good"), Item.of([Message("user", " ")], "bad")),
    ],
    "rendered": [(Item(text="q: a" + ODD), Item(text="q: b"))],
    "ids": [(Item(ids=(1, 2, 3)), Item(ids=(1, 2)))],
    "rendered and ids": [(Item(text="q: a", lineage="one"), Item(ids=(1, 2), lineage="one"))],
}  # fmt: skip


def pairs_of(items):
    return Pairs(
        Pair(a, b, f"{k}/{ODD}", a.lineage, f"subset, {ODD}", "where from")
        for k, (a, b) in enumerate(items)
    )


@pytest.mark.parametrize("form", [f for f in FORMS if f != "rendered and ids"])
def test_pairs_are_read_back_as_they_were(signal, tmp_path, form):
    pairs, path = pairs_of(FORMS[form]), tmp_path / "p.jsonl"
    scores = rl.preference(signal, pairs)
    write_sidecar(path, pairs, scores)
    again = rl.load_pairs(path)
    assert again.fingerprint == pairs.fingerprint
    assert [(p.id, p.subset, p.source, p.lineage) for p in again] == [
        (p.id, p.subset, p.source, p.lineage) for p in pairs
    ]
    value = scores.value
    for k, pair in enumerate(again):
        assert pair.meta["margin"] == value.sel(side="margin").values[k].item()
        for side in ("chosen", "rejected"):
            assert pair.meta[f"score_{side}"] == value.sel(side=side).values[k].item()
    assert list(tmp_path.iterdir()) == [path]


def test_forms_that_no_file_of_pairs_has_are_written_as_they_are():
    row = pair_row(pairs_of(FORMS["rendered and ids"])[0])
    assert (row["text_chosen"], row["input_ids_rejected"]) == ("q: a", [1, 2])
    row = pair_row(pairs_of([(Item.of("one", "a"), Item.of("other", "b"))])[0])
    assert "prompt" not in row
    assert [m["content"] for m in row["chosen"]] == ["one", "a"]
    assert [m["content"] for m in row["rejected"]] == ["other", "b"]


def test_a_sidecar_can_be_audited_again(signal, tmp_path):
    pairs = as_pairs(PAIRS)
    for name in ("one", "two"):
        write_sidecar(tmp_path / f"{name}.jsonl", pairs, rl.preference(signal, pairs))
        pairs = rl.load_pairs(tmp_path / f"{name}.jsonl")
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


def test_scores_of_other_pairs_are_refused(signal, tmp_path):
    pairs = as_pairs(PAIRS)
    scores = rl.preference(signal, pairs)
    for other in (pairs[:2], pairs.select([1, 0, 2, 3])):
        with pytest.raises(EvidenceError, match=r"p\.jsonl: the scores are of other pairs"):
            write_sidecar(tmp_path / "p.jsonl", other, scores)
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_what_was_there(signal, tmp_path, monkeypatch):
    pairs, path = as_pairs(PAIRS), tmp_path / "p.jsonl"
    scores = rl.preference(signal, pairs)
    path.write_text("before")

    def fails(pair):
        raise DataError("no")

    monkeypatch.setattr(sidecar, "pair_row", fails)
    with pytest.raises(DataError, match="no"):
        write_sidecar(path, pairs, scores)
    assert path.read_text() == "before"


@pytest.fixture
def files(tmp_path):
    make_model("llama").save_pretrained(tmp_path / "m")
    make_tokenizer().save_pretrained(tmp_path / "m")
    rows = [{"prompt": p, "chosen": a, "rejected": b} for p, a, b in PAIRS]
    (tmp_path / "r.pairs.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return tmp_path


def audit(files, output, *more):
    args = ["audit", files / "m", files / "r.pairs.jsonl", "-o", output, "--biases", 0, *more]
    return CliRunner().invoke(app, [str(a) for a in args])


def test_an_audit_writes_it_and_names_it(files):
    result = audit(files, files / "o.html", "--json")
    assert result.exit_code == 0, result.output
    beside = files / "o.pairs.jsonl"
    assert json.loads(result.stdout)["scored_pairs"] == str(beside)
    assert rl.load_pairs(beside).fingerprint == rl.load_pairs(files / "r.pairs.jsonl").fingerprint
    data = re.search(r'<script type="application/gzip" id="browser-data">(.*?)</script>',
                     (files / "o.html").read_text(), re.DOTALL)  # fmt: skip
    assert unpacked(data[1])["sidecar"] == "o.pairs.jsonl"
    assert not list(files.glob("*.part"))


def test_it_never_replaces_the_pairs_that_are_audited(files):
    before = (files / "r.pairs.jsonl").read_bytes()
    result = audit(files, files / "r.html")
    assert result.exit_code == 2
    assert "r.pairs.jsonl is the file of the pairs; name another output" in result.stderr
    assert (files / "r.pairs.jsonl").read_bytes() == before
    assert not (files / "r.html").exists()


@pytest.mark.parametrize("option", ["--concept", "--split", "--store"])
def test_nor_anything_else_that_the_audit_reads(files, option):
    other = files / "other.pairs.jsonl"
    other.write_text("{}\n")
    result = audit(files, files / "other.html", option, other)
    assert result.exit_code == 2
    assert "other.pairs.jsonl is read here; name another output" in result.stderr
    assert other.read_text() == "{}\n"


@pytest.mark.parametrize("output", [".", "..", "/"])
def test_a_folder_is_no_page(files, output):
    result = audit(files, output)
    assert result.exit_code == 2
    assert "is a folder; name another output" in result.stderr


def test_what_a_page_wrote_is_known_from_other_pairs(signal, tmp_path):
    path, pairs = tmp_path / "a.pairs.jsonl", as_pairs(PAIRS)
    write_sidecar(path, pairs, rl.preference(signal, pairs))
    assert is_sidecar(path)
    for other in ("", "no json\n", "[1]\n", '{"prompt": "p", "chosen": "a", "rejected": "b"}\n'):
        path.write_text(other)
        assert not is_sidecar(path)
