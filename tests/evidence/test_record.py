from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from reward_lens.errors import EvidenceError
from reward_lens.evidence import (
    Evidence,
    GaugeStatus,
    Interval,
    Provenance,
    Subject,
    Tier,
    TrustLevel,
    Units,
    read_jsonl,
    write_jsonl,
)


def make(**changes):
    fields = {
        "value": xr.DataArray(
            np.array([[1.5, np.nan], [np.inf, -0.0]], dtype=np.float32),
            dims=("item", "quantity"),
            coords={"item": ["a", "b"], "n": ("item", [3, 4])},
            name="score",
        ),
        "instrument": "score",
        "version": "1",
        "subject": Subject("sig", "data", "reward", ("patch",), None, {"position": "native"}),
        "tier": Tier.OBSERVATIONAL,
        "gauge": GaugeStatus.INVARIANT,
        "units": Units.REWARD,
        "provenance": Provenance({"torch": "2"}, "float32", "cpu", "sdpa", (1,), ("ev-0",), 2.0),
        "uncertainty": (Interval("m", 0.5, np.nan, 1.0, 0.95, 0.1, 9, 8.5, 7, "t", "why"),),
        "tables": {"t": pd.DataFrame({"x": [1.0, np.nan], "name": ["p", "q"], "k": [1, 2]})},
        "quantity_units": {"a": Units.SHARE},
        "calibration": "card",
    }
    return Evidence(**{**fields, **changes})


def changed():
    """One change of every field, and of every part that must count."""
    base = make()
    other = base.value.copy(deep=True)
    other.values = np.array([[1.5, np.nan], [np.inf, 0.0]], dtype=np.float32)  # the sign of zero
    yield "a bit", {"value": other}
    yield "dtype", {"value": base.value.astype(np.float64)}
    yield "name", {"value": base.value.rename("margin")}
    yield "label", {"value": base.value.assign_coords(item=["a", "c"])}
    yield "coordinate", {"value": base.value.assign_coords(n=("item", [3, 5]))}
    yield "instrument", {"instrument": "lens"}
    yield "version", {"version": "2"}
    for f in dataclasses.fields(Subject):
        new = {"interventions": (), "notes": {}, "frame": "f"}.get(f.name, "other")
        yield f"subject.{f.name}", {"subject": dataclasses.replace(base.subject, **{f.name: new})}
    yield "tier", {"tier": Tier.CAUSAL}
    yield "gauge", {"gauge": GaugeStatus.RAW_ONLY}
    yield "units", {"units": Units.RANK}
    for f in dataclasses.fields(Provenance):
        empty = {"versions": {}, "seeds": (), "parents": (), "cost_forwards": 3.0}
        new = empty.get(f.name, {"k": 1} if f.name == "parameters" else "other")
        p = dataclasses.replace(base.provenance, **{f.name: new})
        yield f"provenance.{f.name}", {"provenance": p}
    yield "uncertainty", {"uncertainty": ()}
    yield "tables", {"tables": {}}
    yield "quantity_units", {"quantity_units": {}}
    yield "calibration", {"calibration": None}


CHANGES = dict(changed())


@pytest.mark.parametrize("what", CHANGES)
def test_every_change_changes_the_id(what):
    assert make(**CHANGES[what]).id != make().id


def test_equal_content_has_one_id_whatever_the_order():
    flipped = make(subject=Subject("sig", "data", "reward", ("patch",), None, {"b": 1, "a": 2}))
    same = make(subject=Subject("sig", "data", "reward", ("patch",), None, {"a": 2, "b": 1}))
    assert flipped == same
    assert hash(flipped) == hash(same)


def test_the_id_is_the_same_in_another_process():
    code = "import sys; sys.path.insert(0, 'tests/evidence'); import test_record as t; "
    code += "print(t.make().id)"
    for seed in ("0", "1"):
        out = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
        )
        assert out.stdout.strip() == make().id


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.bool_]),
        hnp.array_shapes(max_dims=3, max_side=4),
    )
)
def test_arrays_come_back_bit_for_bit(array):
    value = xr.DataArray(array, dims=[f"d{k}" for k in range(array.ndim)], name="v")
    back = Evidence.from_dict(json.loads(json.dumps(make(value=value).to_dict(), allow_nan=False)))
    assert back.value.values.dtype == array.dtype
    nan = np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)
    assert np.array_equal(nan, np.isnan(back.value.values) if array.dtype.kind == "f" else nan)
    assert back.value.values[~nan].tobytes() == array[~nan].tobytes()
    assert back.value.name == "v"


# numpy's own strings drop trailing NULs before we see them
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
        min_size=1,
        max_size=4,
        unique=True,
    )
)
def test_labels_come_back(labels):
    value = xr.DataArray(np.arange(len(labels)), dims=["item"], coords={"item": labels}, name="v")
    back = Evidence.from_dict(make(value=value).to_dict())
    assert list(back.value["item"].values) == labels


def test_a_file_of_evidence_comes_back(tmp_path):
    path = tmp_path / "e.jsonl"
    write_jsonl(path, [make(), make(version="2")])
    assert read_jsonl(path) == [make(), make(version="2")]
    assert not list(tmp_path.glob("*.part"))
    path.write_text(path.read_text().replace('"version": "2"', '"version": "3"'))
    with pytest.raises(EvidenceError, match=r"line 2.*altered"):
        read_jsonl(path)


def test_values_cannot_be_written_to():
    source = np.zeros(2)
    e = make(value=xr.DataArray(source, dims=["item"], coords={"n": ("item", [1, 2])}, name="v"))
    source[0] = 9
    assert float(e.value[0]) == 0
    for write in (
        lambda: e.value.values.__setitem__(0, 1),
        lambda: e.value.__setitem__(0, 1),
        lambda: e.value.n.values.__setitem__(0, 1),
    ):
        with pytest.raises(ValueError, match="read-only"):
            write()
    e = make()
    table = e.tables["t"]
    table.loc[0, "x"] = 99
    assert e.tables["t"].loc[0, "x"] == 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        e.instrument = "lens"


def test_an_unnamed_value_is_refused():
    with pytest.raises(EvidenceError, match="named"):
        make(value=xr.DataArray([1.0]))
    with pytest.raises(EvidenceError, match="cannot be kept exactly"):
        _ = make(value=xr.DataArray(np.array([1j]), name="z")).id


def test_trust_cannot_be_passed_in():
    record = make().to_dict()
    assert "trust" not in record
    with pytest.raises(EvidenceError, match=r"unknown \['trust'\]"):
        Evidence.from_dict({**record, "trust": 3})
    with pytest.raises(TypeError):
        make(trust=TrustLevel.CALIBRATED)
    assert make().trust is TrustLevel.EXPLORATORY


def test_trust_asks_the_store_it_is_attached_to():
    class Store:
        def trust(self, id):
            return TrustLevel.CALIBRATED

    e, store = make(), Store()
    e._attach(store)
    assert e.trust is TrustLevel.CALIBRATED
    assert e == make()
    del store
    assert e.trust is TrustLevel.EXPLORATORY


def test_the_request_key_ignores_the_answer_but_not_the_question():
    assert make(**CHANGES["a bit"]).request_key == make().request_key
    for what in ("instrument", "version", "subject.data", "provenance.parameters"):
        assert make(**CHANGES[what]).request_key != make().request_key


def test_an_interval_by_name():
    assert make().interval("m").estimate == 0.5
    with pytest.raises(EvidenceError, match="there are: m"):
        make().interval("x")


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (TrustLevel.EXPLORATORY, "TrustLevel.EXPLORATORY"),
        (GaugeStatus.RAW_ONLY, "GaugeStatus.RAW_ONLY"),
        (Units.REWARD, "Units.REWARD"),
        (Tier.CAUSAL, "Tier.CAUSAL"),
    ],
)
def test_labels_print_by_name(value, printed):
    assert str(value) == repr(value) == f"{value}" == printed


def test_the_receipt_says_what_matters():
    e = make(subject=Subject("sig", "d", "reward", notes={"readout_note": "legacy row mean of 3"}))
    text = e.receipt()
    for part in ("legacy row mean of 3", "not comparable between models", "exploratory", e.id):
        assert part in text
    assert "0.5, no interval" in text


def test_html_escapes_what_it_shows():
    e = make(subject=Subject("<script>x</script>", "d", "reward"))
    assert "<script>x" not in e._repr_html_()
    assert "&lt;script&gt;x" in e._repr_html_()


def test_to_dataframe_is_tidy():
    frame = make().to_dataframe()
    assert list(frame.columns) == ["item", "quantity", "n", "score"]
    assert len(frame) == 4
