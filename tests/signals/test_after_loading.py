"""After loading: weights that change are noticed in every layout, and choices are said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import zoo
from families import ITEMS, PAIRS, make_model, make_tokenizer
from heads_on_disk import CASES, write

import reward_lens as rl
from reward_lens.errors import CapabilityError, LoadError


def save(folder):
    make_model("llama").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("part", ["trunk", "head"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_changed_after_loading_fail_the_check_of_keys(tmp_path, case, part):
    write(tmp_path, case)
    signal = rl.load_signal(tmp_path)
    check = rl.run_conformance(signal)["checkpoint keys"]
    assert check.passed, check.measured
    assert not check.measured.startswith("0 equal")
    model = signal.trunk.model
    changed = next(p for p in (model.base_model if part == "trunk" else model).parameters())
    if part == "head":
        steps = signal.trunk.anatomy.head.steps
        changed = next(p for s in steps for p in s.module.parameters())
    with torch.no_grad():
        changed.mul_(1.7)
    check = rl.run_conformance(signal)["checkpoint keys"]
    assert not check.passed
    assert "first " in check.measured


@pytest.mark.parametrize("name", ["deberta", "deberta-v2", "electra", "mpnet"])
def test_source_tokens_of_encoders_add_up(name):
    signal = rl.wrap_hf_model(zoo.make(name), zoo.tokenizer_for(name))
    table = rl.source_attribution(signal, PAIRS).tables["writes"]
    assert table["rounding"].abs().max() <= 1e-5 * table["write"].abs().max()


def test_a_composite_without_items_is_refused(tmp_path):
    write(tmp_path, next(c for c in CASES if c.composite is not None))
    signal = rl.load_signal(tmp_path)
    with pytest.raises(CapabilityError, match="another direction for every item"):
        signal.readout("composite").project(torch.zeros(1, signal.meta.width))


def test_an_audit_at_another_position_lists_what_it_does_not_offer(tmp_path):
    signal = rl.load_signal(save(tmp_path), position="mean")
    audit = rl.audit(signal, PAIRS)
    assert audit.passed
    assert set(audit.not_offered) == {"source_attribution"}
    assert any("position='mean'" in note for note in signal.meta.notes)


def test_an_unknown_readout_is_refused_before_any_work(tmp_path, monkeypatch):
    signal = rl.load_signal(save(tmp_path))
    monkeypatch.setattr(type(signal.trunk), "forward", None)  # nothing may run
    with pytest.raises(CapabilityError, match="no readout 'criterion:9'"):
        rl.audit(signal, PAIRS, readout="criterion:9")


def test_a_sign_is_said(tmp_path):
    folder = save(tmp_path)
    turned = rl.load_signal(folder, sign=-1)
    assert any("-1 times" in note for note in turned.meta.notes)
    plain = rl.load_signal(folder)
    np.testing.assert_array_equal(turned.score(ITEMS).value, -plain.score(ITEMS).value)
    assert not any("times" in note for note in plain.meta.notes)


def test_arguments_that_mean_nothing_here(tmp_path):
    folder = save(tmp_path)
    with pytest.raises(LoadError, match="device='foo' cannot be used here"):
        rl.load_signal(folder, device="foo")
    with pytest.raises(LoadError, match="is of a hub id"):
        rl.load_signal(folder, revision="main")
