"""What an audit runs, on how many pairs, and why not the rest."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from families import PAIRS, make_model, make_signal, make_tokenizer
from typer.testing import CliRunner

import reward_lens as rl
from reward_lens import auditing, page_files
from reward_lens.audit_plan import CAUSAL_SAMPLE, Plan, largest_effects
from reward_lens.auditing import SHOWN, SHOWN_IN_ALL
from reward_lens.cli import app
from reward_lens.data import as_pairs
from reward_lens.errors import AnatomyError, DataError, TokenizeError
from reward_lens.evidence.record import read_jsonl
from reward_lens.report.folders import followed

CAUSAL = ("patch_grid", "patch_grid_heads", "compare_views", "compare_views_heads", "path_effects",
          "attribution_patching")  # fmt: skip
#: What is read off the scores, whatever the trunk.
REPORTS = ("margin_distribution", "reliability_curve", "worst_errors")
MANY = [(f"{p} {k}", a, b) for k in range(40) for p, a, b in PAIRS]


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


@pytest.fixture(scope="module")
def audit(signal):
    return rl.audit(signal, MANY, sample=100, seed=3, biases=0)


def slow_signal(**changes):
    """A trunk on which every patch is a whole forward: a token's bias depends on its distance."""
    import zoo

    return rl.wrap_hf_model(zoo.make("bloom"), zoo.tokenizer_for("bloom"), **changes)


def test_the_causal_instruments_run_on_a_sample(audit):
    assert audit.passed
    assert audit.not_offered == {}
    some = as_pairs(MANY).sample(100, 3)
    few = some.sample(CAUSAL_SAMPLE, 3)
    assert audit["lens"].subject.data == some.fingerprint
    for name in CAUSAL[:2]:
        assert audit[name].subject.data == few.fingerprint
    for name in CAUSAL[2:4]:
        assert list(audit[name].value["pair"].values) == few.ids
    for name in CAUSAL[4:]:
        assert audit[name].value.sizes["pair"] == CAUSAL_SAMPLE // 2
        assert set(audit[name].value["pair"].values) < set(few.ids)


def test_nothing_is_measured_twice(audit):
    views = audit["compare_views"]
    assert views.provenance.parents == (audit["attribution"].id, audit["patch_grid"].id)
    assert views.provenance.cost_forwards == 0
    heads = audit["compare_views_heads"]
    assert heads.provenance.parents == (audit["attribution_heads"].id, audit["patch_grid_heads"].id)
    assert audit["path_effects"].provenance.parents == ()


def test_an_audit_costs_less_than_twice_what_it_did_without_causes(audit):
    without = sum(audit[n].provenance.cost_forwards for n in audit if n not in CAUSAL)
    assert audit.forwards < 2 * without
    assert audit.forwards == sum(audit[n].provenance.cost_forwards for n in audit)


def test_the_paths_are_followed_from_the_largest_effects(audit):
    grid = audit["patch_grid"]
    senders = largest_effects(grid, 6)
    assert list(audit["path_effects"].value["sender"].values) == senders
    sizes = np.abs(grid.value.sel(quantity="effect")).mean(("direction", "pair"))
    wanted = set(sizes["component"].values[np.argsort(-sizes.values)[:6]].tolist())
    assert set(senders) == wanted
    assert [c for c in grid.value["component"].values if c in senders] == senders


def test_the_tokens_of_extreme_pairs_are_mapped_while_there_is_room(audit):
    margins = audit["preference"].value.sel(side="margin").to_pandas()
    first = [margins[i] for i in audit.shown.ids[:3]]
    assert first == [margins.max(), margins.min(), margins[margins.abs().idxmin()]]
    lengths = audit["preference"].tables["scores"].set_index("pair")
    both = lengths["n_tokens_chosen"] + lengths["n_tokens_rejected"]
    assert both[audit.shown.ids].sum() <= SHOWN_IN_ALL
    assert len(audit.shown) == SHOWN
    assert list(audit["token_map"].value["pair"].values) == audit.shown.ids


def test_tokens_are_left_out_of_as_many_pairs_as_it_can_pay(signal, audit, monkeypatch):
    found = audit["token_map_causal"]
    few = list(found.value["pair"].values)
    assert found.value["reading"].values.tolist() == ["leave_one_out"]
    assert 0 < len(few) < len(audit.shown)
    assert few == [i for i in audit.shown.ids if i in few]
    tokens = found.tables["tokens"]
    left_out = int(tokens["response"].sum())
    assert left_out <= 400
    assert found.provenance.cost_forwards == left_out + 2 * len(few)
    said = f"token_map_causal: on {len(few)} of {len(audit.shown)} shown pairs, since every token"
    assert [note for note in audit.notes if note.startswith(said)]
    pairs = as_pairs(PAIRS)
    shortest = min(len(p.chosen.response.encode()) + len(p.rejected.response.encode())
                   for p in pairs)  # fmt: skip
    monkeypatch.setattr("reward_lens.audit_plan._LEFT_OUT", 3)
    jobs = {j.name: j for j in Plan(signal, pairs, pairs, None, 0).jobs()}
    assert f"the shortest shown pair has {shortest}; 3 are spent" in jobs["token_map_causal"].lacks
    monkeypatch.setattr("reward_lens.audit_plan._LEFT_OUT", 1000)
    jobs = {j.name: j for j in Plan(signal, pairs, pairs, None, 0).jobs()}
    assert jobs["token_map_causal"].pairs.ids == pairs.ids
    assert jobs["token_map_causal"].note == ""


def test_the_causal_sample_can_be_named(signal):
    found = rl.audit(signal, MANY, sample=20, causal_sample=6)
    assert found["patch_grid"].value.sizes["pair"] == 6
    assert found["path_effects"].value.sizes["pair"] == 3
    with pytest.raises(DataError, match="causal_sample=0: give a whole number, 1 or more"):
        rl.audit(signal, MANY, causal_sample=0)


def test_where_a_patch_is_a_forward_fewer_pairs_are_taken_and_it_is_said():
    signal = slow_signal()
    shown = as_pairs(PAIRS)
    plan = Plan(signal, as_pairs(MANY), shown, None, 0)
    assert not plan.fast
    jobs = {job.name: job for job in plan.jobs()}
    targets = 2 * (1 + 2 * signal.meta.n_layers)
    assert len(jobs["patch_grid"].pairs) == min(CAUSAL_SAMPLE, 600 // targets)
    assert "every patch is a whole forward here" in jobs["patch_grid"].note
    assert f"a pair takes {targets}" in jobs["patch_grid"].note
    audit = rl.audit(signal, MANY, sample=20)
    assert audit["patch_grid"].provenance.cost_forwards <= 600 + 2 * CAUSAL_SAMPLE
    named = Plan(signal, as_pairs(MANY), shown, 50, 0)
    assert len({j.name: j for j in named.jobs()}["patch_grid_heads"].pairs) == 50


def test_where_too_few_pairs_are_affordable_it_is_not_offered(monkeypatch):
    monkeypatch.setattr("reward_lens.audit_plan._FORWARDS", 120)
    audit = rl.audit(slow_signal(), MANY, sample=20)
    assert audit.passed
    assert "patch_grid" in audit
    assert "name a causal_sample" in audit.not_offered["patch_grid_heads"]
    assert "name a causal_sample" in audit.not_offered["compare_views_heads"]


def test_a_failed_instrument_takes_with_it_only_what_needs_it(signal, monkeypatch):
    def fails(*args, **options):
        raise AnatomyError("a sublayer is not where it was")

    monkeypatch.setattr("reward_lens.audit_plan.patch_grid", fails)
    found = rl.audit(signal, PAIRS)
    assert not found.passed
    assert found.missing["patch_grid"] == "a sublayer is not where it was"
    assert found.missing["compare_views"] == "it takes patch_grid, which did not run"
    assert found.missing["path_effects"] == "it takes patch_grid, which did not run"
    assert {"lens", "attribution", "token_map"} <= set(found)


def test_a_trunk_whose_writes_are_unknown_has_no_causal_part(signal, audit, monkeypatch):
    from reward_lens.report import Page, render

    anatomy = signal.trunk.anatomy
    monkeypatch.setattr(type(anatomy), "adds_up", property(lambda self: False))
    meta = dataclasses.replace(signal.meta, granularity="layer")
    monkeypatch.setattr(type(signal), "meta", property(lambda self: meta))
    monkeypatch.setitem(anatomy.missing, "writes", "sublayers do not add up")
    jobs = Plan(signal, as_pairs(PAIRS), as_pairs(PAIRS), None, 0, biases=0).jobs()
    lacks = {job.name: job.lacks for job in jobs}
    assert {n for n, why in lacks.items() if not why} == {
        "lens", "token_map", "token_map_causal", *REPORTS
    }  # fmt: skip
    assert set(lacks.values()) == {"", "sublayers do not add up"}
    kept = {n: e for n, e in audit.evidence.items() if not lacks.get(n)}
    text = render(Page("m", "f", "c", "e"), kept, audit.shown)
    assert 'id="lens"' in text
    assert "What causes" not in text


@pytest.fixture
def files(tmp_path):
    make_model("llama").save_pretrained(tmp_path / "m")
    make_tokenizer().save_pretrained(tmp_path / "m")
    rows = [{"prompt": p, "chosen": a, "rejected": b} for p, a, b in PAIRS]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return tmp_path


def run_audit(files, *more):
    out = files / "r.html"
    args = ["audit", files / "m", files / "p.jsonl", "-o", out, *more]
    return CliRunner().invoke(app, [str(a) for a in args]), out


def test_a_concept_is_added_on_demand(files):
    labels = [{"prompt": "q", "response": r, "label": k} for k, r in
              ((1, "Yes, gladly."), (1, "Of course."), (0, "No."), (0, "Never."))]  # fmt: skip
    (files / "c.jsonl").write_text("".join(json.dumps(r) + "\n" for r in labels))
    result, out = run_audit(files, "--concept", files / "c.jsonl", "--causal-sample", 3, "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["not_offered"] == {}
    assert said["forwards"] > 0
    text = out.read_text()
    assert "How does it answer to the concept?" in text
    assert "At L1.resid_post one dose changes the score" in text
    plain, out = run_audit(files)
    assert "cost: " in plain.stdout
    assert "How does it answer" not in out.read_text()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (None, "there is no such file; a concept is a file of rows"),
        ([{"prompt": "q", "response": "r", "label": 2}], "has the label 2; labels are 1 and 0"),
        ([{"prompt": "q", "response": "r", "label": 1}], "the concept has 1 positive items"),
        ([{"prompt": "q"}], "the concept: "),
        ([{"prompt": "q" * 300, "response": "r", "label": k % 2} for k in range(4)],
         "the concept: item 0 has"),
    ],
)  # fmt: skip
def test_a_concept_that_cannot_be_read_is_refused_before_any_work(files, rows, said):
    if rows is not None:
        (files / "c.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    result, out = run_audit(files, "--concept", files / "c.jsonl")
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert "conformance" not in result.stderr  # no stage was begun
    assert not out.exists()


def test_a_ready_direction_is_a_concept(signal):
    direction = np.ones(signal.meta.width)
    found = rl.audit(signal, PAIRS, concept=direction)
    assert found["concept_dose_response"].tables["concept"]["method"].iloc[0] == "given"
    with pytest.raises(TokenizeError, match="the concept: "):
        rl.audit(signal, PAIRS, concept=[("q" * 300, "r", "s"), ("q", "r", "s")])


def test_a_name_that_is_not_there_is_answered_with_what_is(audit):
    with pytest.raises(KeyError, match="no evidence is called 'len'; did you mean lens"):
        audit["len"]
    with pytest.raises(KeyError, match="There are conformance, preference"):
        audit["zzz"]
    without = dataclasses.replace(audit, evidence={}, missing={"lens": "it broke"})
    with pytest.raises(KeyError, match="lens failed in this audit: it broke"):
        without["lens"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("some/path", r"not a path: pass load_signal\('some/path'\)"),
        (object(), "object is no signal"),
    ],
)
def test_what_is_no_signal_is_refused(given, said):
    with pytest.raises(DataError, match=said):
        rl.audit(given, MANY)


def test_an_audit_writes_its_page_and_what_lies_beside_it(audit, tmp_path):
    files = audit.write(tmp_path / "report.html", title="mine", notes=["Read /some/where/first."])
    assert [p.name for p in vars(files).values()] == [
        "report.html", "report.evidence.jsonl", "report.pairs.jsonl",
    ]  # fmt: skip
    page = files.report.read_text()
    for said in ("<h1>mine</h1>", "Read first.", "160 pairs of", rl.__version__,
                 "reward_lens.audit(...).write(...)"):  # fmt: skip
        assert said in page
    assert "/some/where" not in page
    known = {e.id for e in read_jsonl(files.evidence)}
    assert {e.id for e in audit.evidence.values()} <= known
    assert len(files.scored_pairs.read_text().splitlines()) == 160


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("report.txt", "end it in .html"),
        ("nowhere/report.html", "^[^:]*report.html: there is no folder"),
        ("folder.html", "is a folder; name another output"),
        ("taken.html", "taken.pairs.jsonl is a folder"),
        ("mine.html", "mine.pairs.jsonl would be replaced, and no page wrote it"),
        ("n" * 245 + ".html", "cannot be written: .*name too long"),
        ("a\0b.html", "cannot be written: embedded null"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused(audit, tmp_path, name, said):
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "taken.pairs.jsonl").mkdir()
    (tmp_path / "mine.pairs.jsonl").write_text('{"prompt": "p", "chosen": "a", "rejected": "b"}\n')
    with pytest.raises(DataError, match=said):
        audit.write(tmp_path / name)
    left = ["folder.html", "mine.pairs.jsonl", "taken.pairs.jsonl"]
    assert sorted(p.name for p in tmp_path.iterdir()) == left


def test_a_page_can_be_written_again_and_a_note_may_be_one_text(audit, tmp_path):
    for _ in range(2):
        files = audit.write(tmp_path / "x.html", notes="one note")
    assert '<p class="note">one note</p>' in files.report.read_text()
    assert len(list(tmp_path.iterdir())) == 3


def test_a_disk_that_fails_is_said_in_a_line(audit, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(page_files, "write_page", full)
    with pytest.raises(DataError, match="could not be written: .*No space left"):
        audit.write(tmp_path / "x.html")


def test_a_model_given_as_a_dot_is_called_by_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert followed(".").name == tmp_path.name
    assert followed("org/name").name == "name"
    (tmp_path / "link").symlink_to(tmp_path)
    assert followed("link").name == "link"


def test_a_store_that_is_not_open_is_refused(signal):
    with pytest.raises(DataError, match=r"store='x.db' is no open store: pass EvidenceStore"):
        rl.audit(signal, MANY, store="x.db")


def test_no_more_tokens_are_mapped_than_a_page_has_room_for(audit, monkeypatch):
    monkeypatch.setattr(auditing, "SHOWN_IN_ALL", 2000)
    shown = auditing._worth_showing(audit.pairs, audit["preference"])
    lengths = audit["preference"].tables["scores"].set_index("pair")
    both = lengths["n_tokens_chosen"] + lengths["n_tokens_rejected"]
    assert 2000 - both.max() < both[shown.ids].sum() <= 2000
    assert set(shown.ids) < set(audit.shown.ids)


def test_one_pair_is_one_pair(audit):
    one = dataclasses.replace(audit, pairs=audit.pairs[:1])
    assert ", 1 pair, " in repr(one)
    assert ", 160 pairs, " in repr(audit)
