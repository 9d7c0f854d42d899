"""Gated heads: the native score has an exact direction per item, and instruments run on it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from heads_on_disk import CASES, write

import reward_lens as rl
from reward_lens.data import Pair
from reward_lens.errors import CapabilityError, TokenizeError
from reward_lens.signals.convention import Convention

GATED = [c for c in CASES if c.composite is not None]


@pytest.fixture(scope="module", params=GATED, ids=str)
def signal(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gated")
    write(folder, request.param)
    return rl.load_signal(folder)


def items(signal, n=6):
    """Ids that hold the gate's pattern, of different lengths; the gate differs between them."""
    generator = np.random.default_rng(0)
    pattern, made = signal.gate.pattern, []
    for k in range(n):
        a, b = (generator.integers(3, 200, size=m).tolist() for m in (3 + k, 9 - k))
        made.append(rl.Item(ids=(*a, *pattern, *b), lineage=f"q{k // 2}"))
    return made


def pairs(signal):
    made = items(signal)
    return rl.Pairs([Pair(made[2 * k], made[2 * k + 1], f"p{k}", f"q{k}") for k in range(3)])


def native(signal, made):
    with torch.no_grad():
        return np.array([float(signal.trunk.model.composite(torch.tensor([list(x.ids)])))
                         for x in made])  # fmt: skip


def test_the_composite_is_the_native_score_in_any_batch(signal):
    made = items(signal)
    expected = native(signal, made)
    for size in (1, 10**6):
        found = signal.score(made, readout="composite", batch_tokens=size).value
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.ptp(expected))
    assert np.ptp(expected) > 1e-2
    assert signal.default_readout == "composite"


def test_it_is_no_fixed_mix_of_the_rows(signal):
    made = items(signal)
    rows = np.stack([signal.score(made, readout=f"criterion:{k}").value.values
                     for k in range(signal.meta.n_rows)], 1)  # fmt: skip
    expected = native(signal, made)
    assert np.abs(rows.mean(1) - expected).max() > 1e-3 * np.ptp(expected)


@pytest.mark.parametrize("by", ["component", "head"])
def test_attribution_is_complete_against_the_native_margin(signal, by):
    given = pairs(signal)
    ev = rl.attribution(signal, given, readout="composite", by=by)
    chosen, rejected = native(signal, given.chosen), native(signal, given.rejected)
    scale = np.ptp([*chosen, *rejected])
    sums = ev.value.sum("write").values
    np.testing.assert_allclose(sums[2] / scale, (chosen - rejected) / scale, atol=1e-5)
    assert ev.subject.readout == "composite"


def test_lens_ends_in_the_native_margin(signal):
    given = pairs(signal)
    ev = rl.lens(signal, given, readout="composite").value.isel(depth=-1)
    margin = native(signal, given.chosen) - native(signal, given.rejected)
    for reading in ("frozen", "applied"):
        np.testing.assert_allclose(ev.sel(reading=reading), margin, atol=1e-4)


def test_the_rows_mean_says_that_it_is_one(signal):
    ev = signal.score(items(signal))
    assert "legacy row mean" in ev.receipt()
    assert "gate of" in signal.score(items(signal), readout="composite").receipt()


def test_an_item_without_the_pattern_is_refused(signal):
    bare = [rl.Item(ids=(5, 6, 7, 8))]
    with pytest.raises(TokenizeError, match="assistant"):
        signal.score(bare, readout="composite")
    assert np.isfinite(signal.score(bare).value).all()  # the rows themselves need no gate


TEMPLATED = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}" + "PATTERN" + "{% else %}"
    "[{{ m['role'] }}]{% endif %}{{ m['content'] }}{% endfor %}"
)


@pytest.fixture
def chatty(signal):
    """The signal with a template that writes the gate's pattern, and its two probes."""
    pattern = signal.encoder.tokenizer.decode(signal.gate.pattern)
    template = TEMPLATED.replace("PATTERN", pattern)
    other = rl.wrap_hf_model(
        signal.trunk.model,
        signal.encoder.tokenizer,
        template=template,
        convention=Convention(head="gated", rule=signal.meta.reads, gate=signal.gate),
    )
    return other, [("Name a colour.", "Blue."), ("Say hi.", "Hi, and more than that.")]


def test_a_gated_signal_conforms(chatty):
    report = rl.run_conformance(*chatty)
    assert report.passed, str(report)
    assert report["composite = native"].measured != "the head has no gate"


def test_weights_of_another_item_fail_conformance(chatty, monkeypatch):
    signal, probes = chatty
    honest = type(signal._rows).bind

    def bind(self, readout, encoded, batch_tokens):
        found = honest(self, readout, encoded, batch_tokens)
        return found.bound(found.directions.roll(1, 0), found.biases) if found.kind == (
            "composite") else found  # fmt: skip

    monkeypatch.setattr(type(signal._rows), "bind", bind)
    assert rl.run_conformance(signal, probes).failed == ["composite = native"]


def test_a_template_without_the_pattern_fails_conformance_by_name(signal):
    check = rl.run_conformance(signal, [("a", "b"), ("c", "d and e")])["composite = native"]
    if not check.passed:
        assert "assistant" in check.measured


def test_other_signals_have_no_composite():
    with pytest.raises(CapabilityError, match="no readout 'composite'"):
        rl.from_tiny().readout("composite")
