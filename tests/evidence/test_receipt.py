"""What a reader sees: labels, the receipt, the notebook view."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

from reward_lens.evidence import (
    Evidence,
    GaugeStatus,
    Interval,
    Provenance,
    Standing,
    Subject,
    Tier,
    TrustLevel,
    Units,
)


def make(**changes):
    return Evidence(
        **{
            "value": xr.DataArray([0.5, 1.0], dims="pair", name="margin"),
            "instrument": "preference",
            "version": "3",
            "subject": Subject("sig", "dat", "reward", notes={"template": "User:\nBot:"}),
            "tier": Tier.CAUSAL,
            "gauge": GaugeStatus.INVARIANT,
            "units": Units.REWARD,
            "provenance": Provenance({"torch": "2.6"}, "float32", "cpu", "sdpa", (7,), ("ev-1",),
                                     12.0, {"readout": "reward"}),
            "uncertainty": (
                Interval("accuracy", 0.75, 0.5, 0.9, 0.975, 0.1, 40, 31.5, 20, "cluster-t", "few"),
                Interval("slope", 0.5, np.nan, np.nan, 0.95, np.nan, 3, 1, 1, "t", "one lineage"),
            ),
            **changes,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        *((t, f"TrustLevel.{t.name}") for t in TrustLevel),
        *((g, f"GaugeStatus.{g.name}") for g in GaugeStatus),
        *((u, f"Units.{u.name}") for u in Units),
        *((t, f"Tier.{t.name}") for t in Tier),
    ],
)
def test_labels_print_by_name(value, printed):
    assert str(value) == repr(value) == f"{value}" == printed


def test_labels_have_their_members():
    assert [(t.name, int(t)) for t in TrustLevel] == [
        ("EXPLORATORY", 0),
        ("CALIBRATED", 1),
        ("REGISTERED", 2),
        ("ADJUDICATED", 3),
    ]
    assert [g.name for g in GaugeStatus] == ["INVARIANT", "COVARIANT", "RAW_ONLY"]
    assert [u.value for u in Units] == ["reward", "share", "rank", "angle", "probability"]
    assert [t.name for t in Tier] == ["OBSERVATIONAL", "CAUSAL", "VULNERABILITY"]


def test_the_receipt_says_everything():
    text = make(calibration="card-9").receipt()
    for line in (
        "measured: preference v3, causal: margin (2 pair)",
        r"subject: signal sig, data dat, readout reward; template User:\nBot:",
        "result accuracy: 0.75, 97.5% interval 0.5 to 0.9 (cluster-t, n = 40 in 20 lineages, "
        "worth 31.5 independent; few)",
        "result slope: 0.5, no interval (t, n = 3 in 1 lineages, worth 1 independent; one lineage)",
        "circumstances: float32 on cpu, sdpa attention; torch 2.6",
        "seeds: 7",
        "computed from: ev-1",
        "parameters: readout=reward",
        "calibration: card-9",
        "cost: 12 forwards",
        f"id: {make(calibration='card-9').id}",
    ):
        assert line in text.split("\n")
    assert "fixed only up to its scale and a shift per prompt" in text
    assert "not comparable between models" in text
    assert re.search(
        "trust: exploratory: .*a lead, no finding\nbecause: attached to no store", text
    )
    assert "you may say: this was read; it may point somewhere. Not that it is so" in text


def test_the_receipt_repeats_the_row_mean_note():
    note = "legacy row mean of 3 objectives"
    text = make(subject=Subject("s", "d", "reward", notes={"readout_note": note})).receipt()
    assert f"note: readout: {note}" in text


def test_the_receipt_asks_the_store():
    class Store:
        def standing(self, id):
            return Standing(TrustLevel.CALIBRATED, ("a card", "a dose"))

    e, store = make(), Store()
    e._attach(store)
    text = e.receipt()
    assert "trust: calibrated: the instrument recovers planted rules" in text
    assert "because: a card\nbecause: a dose\nyou may say: on this model" in text
    assert "no store" not in e.receipt()


def test_the_receipt_without_intervals_says_so():
    one = make(value=xr.DataArray(0.25, name="share"), uncertainty=())
    assert "result: 0.25, stated without an interval" in one.receipt()
    assert "no interval" in make(uncertainty=()).receipt()


def test_units_of_each_quantity_are_said():
    value = xr.DataArray([1.0, 0.5], dims="quantity", coords={"quantity": ["a", "b"]}, name="v")
    text = make(value=value, quantity_units={"b": Units.SHARE}).receipt()
    assert "units of b: share: a share of this model's own margin" in text


def test_the_repr_fits_a_screen():
    many = tuple(Interval(f"i{k}", 0.5, 0.4, 0.6, 0.95, 0.05, 9, 9, 9, "t") for k in range(50))
    printed = repr(make(uncertainty=many))
    assert len(printed.split("\n")) <= 8
    assert "and 46 more intervals" in printed
    assert "i0: 0.5, 95% interval 0.4 to 0.6" in printed
    assert make().id in repr(make())


def test_html_escapes_what_it_shows_and_runs_nothing():
    bad = "<script>x</script>"
    e = make(
        subject=Subject(bad, "d", "reward", notes={bad: bad, "readout_note": bad}),
        value=xr.DataArray([1.0], dims="i", coords={"i": [bad]}, name=bad, attrs={bad: bad}),
        instrument=bad,
    )
    page = e._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;x" in page


def test_importing_evidence_is_light():
    code = (
        "import sys, reward_lens.evidence, reward_lens.evidence.intervals; "
        "print([m for m in ('torch', 'scipy', 'statsmodels', 'matplotlib') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
