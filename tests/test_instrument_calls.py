"""Every instrument's call finds its own evidence in a store, and no other's."""

from __future__ import annotations

import pytest
from families import PAIRS, make_signal

import reward_lens as rl
import reward_lens.instruments as instruments
from reward_lens.cli_run import INSTRUMENTS, REPORTS
from reward_lens.data import as_pairs
from reward_lens.data.choices import as_choices
from reward_lens.errors import DataError
from reward_lens.instrument_calls import NOT_KEPT, call_of, data_of

PLAIN = {"readout": "reward", "truncate": "error"}
#: Instrument -> other options that it is run with.
OPTIONS = {
    "preference": {"position": "last"},
    "lens": {"position": "last"},
    "attribution": {"by": "head"},
    "source_attribution": {"position": "last"},
    "token_curves": {"position": "last"},
    "token_map": {"methods": ["prefix"]},
    "patch_grid": {"layers": 0},
    "attribution_patching": {"sample": 2},
    "path_effects": {"top": 2},
    "compare_views": {"layers": [0]},
    "bias_battery": {"max_responses": 4},
    "style_accuracy": {"max_pairs": 3},
    "prompt_snr": {"max_pairs": 3},
    "best_of_n": {"ties": None},
}
#: What the two runs of some have in common, so that they are quick.
SHORT = {"bias_battery": {"edits": ["bold"], "heads": 200}}
CHOICES = [
    {"id": f"c{k}", "prompt": p, "chosen": [a], "rejected": [b], "subset": "xy"[k % 2]}
    for k, (p, a, b) in enumerate(PAIRS)
]
ROWS = [
    {"id": f"p{k}", "prompt": p, "chosen": a, "rejected": b, "subset": "xy"[k % 2]}
    for k, (p, a, b) in enumerate(PAIRS)
]


def items_of(name, **changes):
    """Pairs, or choices where an instrument takes those; with other columns where given."""
    read, rows = (as_choices, CHOICES) if name == "best_of_n" else (as_pairs, ROWS)
    return read([{**r, **{c: v[k] for c, v in changes.items()}} for k, r in enumerate(rows)])


@pytest.fixture(scope="module")
def signal():
    return make_signal("llama")


def test_every_kept_instrument_is_tried():
    assert set(OPTIONS) == set(INSTRUMENTS) - set(REPORTS) - set(NOT_KEPT)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_call_finds_what_it_asked_for_and_nothing_else(signal, name, tmp_path):
    function, items = getattr(instruments, name), items_of(name)
    asked = [{**PLAIN, **SHORT.get(name, {}), **o} for o in ({}, OPTIONS[name])]

    def known(options, given):
        call = call_of(signal, function, options)
        return call.in_store(store, signal, data_of(call, given))

    with rl.EvidenceStore(tmp_path / "s.db") as store:
        done = []
        for k, options in enumerate(asked):
            assert known(options, items) is None
            done.append(function(signal, items, **options))
            store.append(done[k])
        assert [known(o, items) for o in asked] == done
        ids, n = items.ids, len(items)
        if name in ("bias_battery", "style_accuracy", "prompt_snr"):  # nothing names a pair
            assert known(asked[0], items_of(name, id=ids[::-1])) == done[0]
            return
        for changes in ({"id": ids[::-1]}, {"id": [f"q{k}" for k in range(n)]},
                        {"subset": ["y", *items.subsets[1:]]}):  # fmt: skip
            other = items_of(name, **changes)
            assert other.fingerprint == items.fingerprint
            assert [known(o, other) for o in asked] == [None, None]


@pytest.mark.parametrize("name", NOT_KEPT)
def test_what_is_not_all_on_record_is_never_taken(signal, name):
    assert not call_of(signal, getattr(instruments, name), PLAIN).kept


def test_paths_of_as_many_senders_as_there_are_is_what_more_would_give(signal, tmp_path):
    pairs = as_pairs(PAIRS[:2])
    with rl.EvidenceStore(tmp_path / "s.db") as store:
        done = rl.path_effects(signal, pairs, top=50)
        store.append(done)
        call = call_of(signal, rl.path_effects, {**PLAIN, "top": 60})
        assert call.in_store(store, signal, pairs) == done
    with pytest.raises(DataError, match="^top='3': give a whole number, 1 or more$"):
        call_of(signal, rl.path_effects, {**PLAIN, "top": "3"})


def test_parts_of_the_scores_are_asked_for(signal, tmp_path):
    pairs, parts = as_pairs(ROWS), {"one": ["p0", "p1"]}
    call = call_of(signal, rl.preference, {**PLAIN, "parts": parts})
    assert call.options["parts"] == parts
    with rl.EvidenceStore(tmp_path / "s.db") as store:
        store.append(rl.preference(signal, pairs))
        assert call.in_store(store, signal, pairs) is None
        done = rl.preference(signal, pairs, parts=parts)
        store.append(done)
        assert call.in_store(store, signal, pairs) == done


def test_pairs_left_out_by_name_are_of_these_pairs(signal, tmp_path):
    # It fits, and does not in some other wording.
    rows = [*ROWS[:3], {"id": "many", "prompt": "Say x.", "chosen": "x" * 230, "rejected": "No."}]
    options = {**PLAIN, "max_pairs": None}
    with rl.EvidenceStore(tmp_path / "s.db") as store:
        done = rl.prompt_snr(signal, rows, **options)
        assert "many" in set(done.tables["left_out"]["pair"])
        store.append(done)
        call = call_of(signal, rl.prompt_snr, options)
        assert call.in_store(store, signal, as_pairs(rows)) == done
        rows[-1]["id"] = "other"
        assert call.in_store(store, signal, as_pairs(rows)) is None
