"""The page the project starts from, as written, with its values."""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np
import pytest

import reward_lens
from reward_lens.signals import from_tiny


@pytest.fixture(scope="module")
def signal():
    return from_tiny(seed=0)


def test_the_tiny_signal_is_what_the_page_says(signal):
    assert signal.meta.adapter == "LlamaAdapter"
    assert signal.meta.architecture == "LlamaForSequenceClassification"
    printed = "SCORES|PREFIX_SCORES|ACTIVATIONS|GRADIENTS|HVP|LINEAR_READOUT"
    assert str(signal.caps) == printed
    assert repr(signal.caps) == printed


def test_one_readout_at_the_final_stream(signal):
    found = [(r.name, r.kind, str(r.site), r.position.kind) for r in signal.readouts()]
    assert found == [("reward", "linear", "L1.resid_post", "final")]
    assert signal.readout("reward").through == ("final_norm",)


def test_the_worked_run(signal):
    ev = signal.score([
        ("Why is the sky blue?", "Rayleigh scattering favors short blue wavelengths."),
        ("Why is the sky blue?", "It just is, nobody knows."),
    ])  # fmt: skip
    assert ev.value.values.dtype == np.float32
    np.testing.assert_allclose(ev.value.values, [-0.11554843, -0.09133451], rtol=0, atol=2e-8)
    assert repr(ev.value.values) == "array([-0.11554843, -0.09133451], dtype=float32)"
    assert repr(ev.trust) == str(ev.trust) == "TrustLevel.EXPLORATORY"
    assert repr(ev.gauge) == str(ev.gauge) == "GaugeStatus.INVARIANT"


def test_several_rows_are_several_readouts():
    from reward_lens.signals import wrap_hf_model
    from reward_lens.signals.process import _tiny_sequence_classifier

    model, tok = _tiny_sequence_classifier(seed=0, num_labels=3)
    multi = wrap_hf_model(
        model,
        tok,
        architecture="LlamaForSequenceClassification",
        conformance_quickcheck=False,
    )
    names = [r.name for r in multi.readouts()]
    assert names == ["reward", "criterion:0", "criterion:1", "criterion:2"]
    assert multi.readout("reward").meta == {"aggregate": "row_mean", "legacy": True, "bias": 0.0}
    assert multi.meta.quickcheck == "skipped"
    item = [("Why?", "Because.")]
    rows = [float(multi.score(item, readout=n).value[0]) for n in names]
    assert rows[0] == pytest.approx(np.mean(rows[1:]), abs=1e-7)
    ev = multi.score(item)
    assert ev.subject.notes["readout_note"] == "legacy row mean of 3 objectives"
    assert "readout_note" not in multi.score(item, readout="criterion:1").subject.notes


def test_seeding_leaves_the_callers_random_state_alone():
    import torch

    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    from_tiny(seed=0)
    assert torch.equal(torch.rand(3), expected)


def test_public_names_survive_the_import_of_every_submodule():
    for module in pkgutil.walk_packages(reward_lens.__path__, "reward_lens."):
        importlib.import_module(module.name)
    for name in reward_lens.__all__:
        first = getattr(reward_lens, name)
        second = getattr(reward_lens, name)
        assert first is second
        assert not isinstance(second, type(reward_lens)), f"{name} became a module"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'lense'"):
        _ = reward_lens.lense
