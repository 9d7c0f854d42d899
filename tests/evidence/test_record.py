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
            coords={"item": ["a", "b"], "quantity": ["a", "b"], "n": ("item", [3, 4])},
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


def bare(value):
    """The smallest evidence around a value."""
    return make(value=value, quantity_units={})


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
    for f in dataclasses.fields(Interval):
        new = "other" if f.type == "str" else 0.25 if f.type == "float" else 5
        interval = dataclasses.replace(base.uncertainty[0], **{f.name: new})
        yield f"uncertainty.{f.name}", {"uncertainty": (interval,)}
    yield "uncertainty", {"uncertainty": ()}
    yield "tables", {"tables": {}}
    table = base.tables["t"]
    yield "a table's name", {"tables": {"u": table}}
    yield "a table's cell", {"tables": {"t": table.assign(x=[1.0, 2.0])}}
    yield "a table's dtype", {"tables": {"t": table.astype({"k": np.int32})}}
    yield "a table's columns", {"tables": {"t": table[["name", "x", "k"]]}}
    yield "attributes", {"value": base.value.assign_attrs(long_name="reward")}
    yield "order of items", {"value": base.value[::-1]}
    yield "dimensions", {"value": base.value.rename(item="pair")}
    yield "quantity_units", {"quantity_units": {}}
    yield "a quantity's units", {"quantity_units": {"a": Units.RANK}}
    yield "calibration", {"calibration": None}


CHANGES = dict(changed())


@pytest.mark.parametrize("what", CHANGES)
def test_every_change_changes_the_id(what):
    assert make(**CHANGES[what]).id != make().id


def test_the_changes_are_of_every_field():
    named = {k.partition(".")[0] for changes in CHANGES.values() for k in changes}
    assert named == {f.name for f in dataclasses.fields(Evidence)}
    ids = [make(**c).id for c in CHANGES.values()]
    assert len(set(ids)) == len(ids)


def test_which_nan_it_is_does_not_count():
    one = np.array([np.nan], dtype=np.float32)
    other = np.array([0xFFC00001], dtype=np.uint32).view(np.float32)
    assert one.tobytes() != other.tobytes()
    ids = [bare(xr.DataArray(a, dims="i", name="v")).id for a in (one, other)]
    assert ids[0] == ids[1]


def test_byte_order_does_not_count():
    ids = [bare(xr.DataArray(np.arange(3, dtype=d), dims="i", name="v")).id for d in ("<f8", ">f8")]
    assert ids[0] == ids[1]


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


DTYPES = st.sampled_from(
    [np.float16, np.float32, np.float64, np.int8, np.int64, np.uint64, np.bool_]
)


def through_json(e):
    return Evidence.from_dict(json.loads(json.dumps(e.to_dict(), allow_nan=False)))


@given(DTYPES.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, max_side=4,
                                                             min_side=0))))  # fmt: skip
def test_arrays_come_back_bit_for_bit(array):
    dims = [f"d{k}" for k in range(array.ndim)]
    coords = {d: np.arange(n) * 0.5 for d, n in zip(dims, array.shape, strict=True)}
    back = through_json(bare(xr.DataArray(array, dims=dims, coords=coords, name="v")))
    found = back.value.values
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    nan = np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)
    assert np.array_equal(nan, np.isnan(found) if array.dtype.kind == "f" else nan)
    assert found[~nan].tobytes() == array[~nan].tobytes()
    for d in dims:
        assert np.array_equal(back.value[d].values, coords[d])
        assert back.value[d].dtype == np.float64


TEXT = st.text(max_size=5)


@given(st.lists(TEXT, min_size=1, max_size=4, unique=True))
def test_object_labels_come_back(labels):
    labels_of_objects = np.array(labels, dtype=object)
    value = xr.DataArray(
        np.arange(len(labels)), dims=["i"], coords={"i": labels_of_objects}, name="v"
    )
    back = through_json(bare(value)).value["i"]
    assert back.values.tolist() == labels
    assert back.dtype == object


# numpy's own strings drop trailing NULs before we see them
@given(st.lists(st.text(st.characters(exclude_characters="\0"), max_size=5), min_size=1))
def test_numpy_labels_keep_their_width(labels):
    width = np.array(labels, dtype="U7")
    back = through_json(bare(xr.DataArray(width, dims=["i"], name="v"))).value
    assert back.values.tolist() == labels
    assert back.dtype == np.dtype("U7")


SETTINGS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, SETTINGS, max_size=3))
def test_settings_come_back(settings):
    e = make(subject=Subject("sig", "data", "reward", notes=settings))
    back = through_json(e)
    assert back == e
    assert repr(back.subject.notes) == repr(e.subject.notes)  # NaN is not equal to itself


def test_nan_in_a_setting_is_not_the_word():
    ids = {make(subject=Subject("s", "d", "r", notes={"x": x})).id for x in (np.nan, "NaN")}
    assert len(ids) == 2


def test_tables_come_back():
    e = make()
    back = through_json(e).tables["t"]
    pd.testing.assert_frame_equal(back, e.tables["t"])
    assert list(back.columns) == ["x", "name", "k"]
    assert np.isnan(back["x"][1])


def test_intervals_and_attributes_come_back():
    e = make(value=make().value.assign_attrs(long_name="reward", bounds=[0.0, np.inf]))
    back = through_json(e)
    assert repr(back.uncertainty) == repr(e.uncertainty)
    assert back.value.attrs == {"long_name": "reward", "bounds": (0.0, np.inf)}


def test_a_file_of_evidence_comes_back(tmp_path):
    path = tmp_path / "e.jsonl"
    write_jsonl(path, [make(), make(version="2 \u2028 \ud800")])
    assert read_jsonl(path) == [make(), make(version="2 \u2028 \ud800")]
    assert [p.name for p in tmp_path.iterdir()] == ["e.jsonl"]
    path.write_text(path.read_text().replace('"version": "2', '"version": "3'))
    with pytest.raises(EvidenceError, match=r"e\.jsonl, line 2: .*altered"):
        read_jsonl(path)
    path.write_bytes(b"\xff\xfe{}\n")
    with pytest.raises(EvidenceError, match="line 1"):
        read_jsonl(path)


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "e.jsonl"
    write_jsonl(path, [make()])

    def broken():
        yield make(version="2")
        raise RuntimeError("the power went")

    with pytest.raises(RuntimeError, match="power"):
        write_jsonl(path, broken())
    assert read_jsonl(path) == [make()]
    assert [p.name for p in tmp_path.iterdir()] == ["e.jsonl"]


def test_an_altered_record_names_both_ids():
    e = make()
    record = json.loads(json.dumps(e.to_dict()))
    record["value"]["values"]["data"][0] = 2.5
    with pytest.raises(EvidenceError, match=e.id) as caught:
        Evidence.from_dict(record)
    other = e.value.copy(deep=True)
    other.values = np.array([[2.5, np.nan], [np.inf, -0.0]], dtype=np.float32)
    assert make(value=other).id in str(caught.value)


@pytest.mark.parametrize(
    ("path", "new", "said"),
    [
        (("tier",), "MAGIC", "MAGIC"),
        (("subject", "colour"), "red", r"Subject.*unknown \['colour'\]"),
        (("provenance",), {}, r"Provenance.*missing \['cost_forwards', 'device'"),
        (("uncertainty", 0, "width"), 1, r"Interval.*unknown \['width'\]"),
        (("value", "values", "data", 0), 1.1, "cannot hold exactly"),  # not a float32
        (("value", "values", "shape"), [3, 1], "reshape"),
        (("tables", "t", 2, "data", 0), 1.5, "cannot hold exactly"),  # not an int64
        (("version",), 1, "version=1 is no str"),
    ],
)
def test_a_malformed_record_is_refused(path, new, said):
    record = json.loads(json.dumps(make().to_dict()))
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    with pytest.raises(EvidenceError, match=said):
        Evidence.from_dict(record)


def test_missing_and_unknown_fields_are_named():
    record = make().to_dict()
    del record["units"]
    with pytest.raises(EvidenceError, match=r"missing \['units'\], unknown \['extra'\]"):
        Evidence.from_dict({**record, "extra": 1})
    with pytest.raises(EvidenceError, match="not list"):
        Evidence.from_dict([1])


REFUSED = {
    "no name": ({"value": xr.DataArray([1.0])}, "give it a name"),
    "complex": ({"value": xr.DataArray(np.array([1j]), name="z")}, "value 'z': dtype complex128"),
    "longdouble": (
        {"value": xr.DataArray(np.zeros(1, np.longdouble), name="z")},
        f"dtype {np.dtype(np.longdouble)} cannot be kept exactly",
    ),
    "dates": (
        {
            "value": xr.DataArray(
                [1], dims="t", coords={"t": np.array(["2020"], "M8[ns]")}, name="z"
            )
        },
        "coordinate 't': dtype datetime64",
    ),
    "objects": (
        {"value": xr.DataArray(np.array(["a", 1], dtype=object), name="z")},
        "value 'z': .* strings only, found 1",
    ),
    "a table's objects": (
        {"tables": {"t": pd.DataFrame({"c": np.array(["a", 1], dtype=object)})}},
        "table 't', column 'c': .* strings only, found 1",
    ),
    "an index": (
        {"tables": {"t": pd.DataFrame({"c": [1]}, index=pd.Index(["a"], name="pair"))}},
        r"its index 'pair' would be lost; .*reset_index",
    ),
    "columns": (
        {"tables": {"t": pd.DataFrame([[1, 2]], columns=["c", "c"])}},
        "distinct string names",
    ),
    "units": ({"units": "reward"}, "units='reward' is no Units"),
    "quantity": ({"quantity_units": {"z": Units.RANK}}, r"'z': name a label .*\['a', 'b'\]"),
    "twice": ({"uncertainty": make().uncertainty * 2}, "two intervals are named 'm'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_kept_is_refused(what):
    changes, said = REFUSED[what]
    with pytest.raises(EvidenceError, match=said):
        make(**{"quantity_units": {}, **changes})


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


def test_to_dataframe_is_tidy():
    frame = make().to_dataframe()
    assert list(frame.columns) == ["item", "quantity", "n", "score"]
    assert len(frame) == 4
