"""An audit that was killed goes on where it stopped, and takes nothing that is not its own."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager

import pytest
from families import PAIRS, make_signal

import reward_lens as rl
from reward_lens.audit_calls import Call
from reward_lens.data import Pairs, as_pairs
from reward_lens.data.pairs import Pair
from reward_lens.errors import DataError

MANY = [(f"{p} {k}", a, b) for k in range(4) for p, a, b in PAIRS]
OPTIONS = {"sample": 10, "causal_sample": 4, "biases": 2}
#: Computed anew at every run: they run no forward.
FREE = {"margin_distribution", "reliability_curve", "worst_errors", "compare_views",
        "compare_views_heads"}  # fmt: skip


class Watching:
    """Notes the stages; ends the run as a key press would when the named one begins."""

    def __init__(self, until: str = ""):
        self.until, self.stages = until, []

    @contextmanager
    def stage(self, name, total):
        if name == self.until:
            raise KeyboardInterrupt
        self.stages.append(name)
        yield lambda done: None


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One that every test adds to: what one adds must not be taken for what another asks."""
    with rl.EvidenceStore(tmp_path_factory.mktemp("store") / "s.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def first(signal, store):
    """The first run into that store, and what was measured in it."""
    return run(signal, store)


@pytest.fixture
def blocks_run(signal):
    """Counts the runs of the last block, which every forward and every patch ends with."""
    counted = []
    block = signal.trunk.model.model.layers[-1].mlp
    hook = block.register_forward_hook(lambda *args: counted.append(len(args[2])))
    yield counted
    hook.remove()


def run(signal, store, until="", **changes):
    """Audit, and give what was measured anew."""
    watching = Watching(until)
    found = rl.audit(signal, MANY, store=store, reporter=watching, **{**OPTIONS, **changes})
    return found, watching.stages


def test_a_killed_audit_goes_on_where_it_stopped(signal, tmp_path, blocks_run):
    def count(path, until=""):
        before = len(blocks_run)
        with rl.EvidenceStore(path) as store:
            try:
                return run(signal, store, until), len(blocks_run) - before
            except KeyboardInterrupt:
                return None, len(blocks_run) - before

    before = len(blocks_run)
    rl.run_conformance(signal)
    conformance = len(blocks_run) - before
    (whole, stages), full = count(tmp_path / "whole.db")
    _, first = count(tmp_path / "s.db", until="patch_grid_heads")
    (resumed, again), second = count(tmp_path / "s.db")
    at = stages.index("patch_grid_heads")
    assert again == ["conformance", *stages[at:]]
    assert list(resumed.resumed) == stages[1:at]
    assert first > conformance
    assert first + second == full + conformance
    assert {n: e.id for n, e in resumed.evidence.items()} == {
        n: e.id for n, e in whole.evidence.items()
    }
    assert list(resumed) == list(whole)


def test_what_is_stored_is_not_measured_again_and_the_page_says_so(signal, store, first):
    found, stages = first
    second, again = run(signal, store)
    assert again == ["conformance"]
    assert (
        set(second.resumed) == set(stages) - {"conformance"} == set(found) - FREE - {"conformance"}
    )
    (note,) = [n for n in second.notes if n.startswith("Taken from the store")]
    assert "lens, attribution" in note
    assert found.resumed == ()
    assert not [n for n in found.notes if n.startswith("Taken")]
    # What an evidence was computed from is at hand as when it was measured.
    exact = [e.id for e in second["attribution_patching"].at_hand]
    assert exact == [e.id for e in found["attribution_patching"].at_hand] != []


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"seed": 1}, {"preference", "token_map", "token_map_causal", "source_attribution"}),
        ({"batch_tokens": 512}, set()),
        ({"biases": 3}, None),
    ],
)
def test_other_options_are_other_measurements(signal, store, first, changes, kept):
    _, stages = first
    found, _ = run(signal, store, **changes)
    everything = set(stages) - {"conformance"}
    wanted = everything - {"bias_battery", "style_accuracy"} if kept is None else kept
    assert set(found.resumed) == wanted


@pytest.mark.parametrize(
    ("fact", "other"),
    [("dtype", "x"), ("device", "x"), ("kernel", "x"), ("versions", {"reward-lens": "0"})],
)
def test_other_code_and_another_machine_are_other_measurements(signal, store, first, fact, other):
    data = as_pairs(MANY).sample(10, 0)
    call = Call(rl.lens, {"readout": "reward", "truncate": "error", "batch_tokens": 4096})
    lens = call.in_store(store, signal, data)
    assert lens == first[0]["lens"]
    changed = dataclasses.replace(lens.provenance, **{fact: other})
    assert call._is(lens, signal)
    assert not call._is(dataclasses.replace(lens, provenance=changed), signal)


def test_what_was_measured_on_a_changed_signal_is_not_the_signals_own(signal, tmp_path):
    pairs, options = as_pairs(MANY[:4]), {"readout": "reward"}
    calls = {"lens": Call(rl.lens, options),
             "patch_grid": Call(rl.patch_grid, options, exchanges=2)}  # fmt: skip
    with (
        rl.EvidenceStore(tmp_path / "s.db") as store,
        signal.intervene(rl.ablate("L1.mlp_out", "zero")) as changed,
    ):
        for name, call in calls.items():
            done = call.instrument(changed, pairs)
            store.append(done)
            assert call.in_store(store, changed, pairs) == done, name
            assert call.in_store(store, signal, pairs) is None, name
            own = call.instrument(signal, pairs)
            store.append(own)
            assert call.in_store(store, signal, pairs) == own, name
            assert call.in_store(store, changed, pairs) == done, name


def test_the_same_instrument_with_fewer_edits_is_not_the_battery(signal, store, first):
    pairs = as_pairs(MANY).sample(2, 0)
    few = rl.bias_battery(signal, pairs, edits=["flattery"], max_responses=None)
    store.append(few)
    found, _ = run(signal, store)
    assert found["bias_battery"] == first[0]["bias_battery"] != few


def test_an_option_that_is_not_on_record_could_have_been_any(signal, store):
    def lens(signal, pairs, *, readout="reward", truncate="error", batch_tokens=4096, more=1):
        """An instrument that does not record one of its options."""

    store.append(rl.lens(signal, MANY[:4]))
    data = as_pairs(MANY[:4])
    assert Call(rl.lens, {"readout": "reward"}).in_store(store, signal, data) is not None
    assert Call(lens, {"readout": "reward"}).in_store(store, signal, data) is None
    assert Call(lens, {"readout": "reward"}, idle=("more",)).in_store(store, signal, data)


def test_scores_by_part_are_not_taken_for_scores_without(signal, store, first):
    ids = as_pairs(MANY).ids
    for parts in ({"a": ids[:5]}, {"a": ids[:6]}):
        found, _ = run(signal, store, parts=parts)
        assert "preference" not in found.resumed
        table = found["preference"].tables["accuracy"].set_index("group")
        assert table.loc["part=a", "pairs"] == len(parts["a"])
        same, _ = run(signal, store, parts={"a": parts["a"][::-1]})
        assert same["preference"] == found["preference"]
        assert "preference" in same.resumed
    again, _ = run(signal, store)
    assert again["preference"] == first[0]["preference"]


def test_biases_are_left_out_or_refused_by_number(signal):
    found = rl.audit(signal, MANY, **{**OPTIONS, "biases": 0})
    assert not {"bias_battery", "style_accuracy"} & set(found)
    assert found.passed
    with pytest.raises(DataError, match="biases=-1: give a whole number, 0 or more"):
        rl.audit(signal, MANY, biases=-1)


def test_edits_need_a_response_and_it_is_said(signal):
    rendered = Pairs(
        Pair(rl.Item(text=f"q {k} yes"), rl.Item(text=f"q {k} no"), str(k), str(k))
        for k in range(6)
    )
    found = rl.audit(signal, rendered, causal_sample=2)
    assert found.passed
    for name in ("bias_battery", "style_accuracy"):
        assert "do not say where the response begins" in found.not_offered[name]
    assert {"margin_distribution", "reliability_curve", "worst_errors"} <= set(found)


def test_a_section_of_the_benchmark_is_only_reported_whole(signal):
    from reward_lens.evidence.benchmark_rules import REWARDBENCH_SECTIONS

    names = REWARDBENCH_SECTIONS["Reasoning"]
    rows = [{"prompt": f"{p} {n}", "chosen": a, "rejected": b, "subset": n}
            for n in names for p, a, b in PAIRS[:2]]  # fmt: skip
    options = {"sample": 4, "causal_sample": 1, "biases": 0}
    whole = rl.audit(signal, rl.Pairs(as_pairs(rows)), **options)
    assert "Reasoning" in list(whole["section_accuracy"].tables["sections"]["group"])
    part = rl.audit(signal, rl.Pairs(as_pairs(rows[:-2])), **options)
    assert "section_accuracy" not in part


def test_where_most_pairs_tie_there_is_no_unit_for_a_bias(signal):
    pairs = [(p, a, a) for p, a, _ in PAIRS]
    found = rl.audit(signal, pairs, causal_sample=1)
    assert "there is no unit for a bias" in found.not_offered["bias_battery"]
    assert "bias_battery" not in found.missing
