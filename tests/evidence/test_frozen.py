"""Evidence cannot be changed after it was recorded."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from reward_lens.errors import EvidenceError
from reward_lens.evidence import Evidence, GaugeStatus, Provenance, Subject, Tier, Units


def make(value, **changes):
    return Evidence(
        **{
            "value": value,
            "instrument": "score",
            "version": "1",
            "subject": Subject("sig", "data", "reward"),
            "tier": Tier.OBSERVATIONAL,
            "gauge": GaugeStatus.INVARIANT,
            "units": Units.REWARD,
            "provenance": Provenance({}, "float32", "cpu", "sdpa"),
            **changes,
        }
    )


def labelled():
    return xr.DataArray(
        np.zeros((2, 2)),
        dims=["item", "depth"],
        coords={
            "item": ["a", "b"],
            "depth": [0, 1],
            "n": ("item", [1, 2]),
            "text": ("item", np.array(["x", "y"], dtype=object)),
        },
        name="v",
        attrs={"long_name": "reward"},
    )


@pytest.mark.parametrize(
    "write",
    [
        lambda e: e.value.values.__setitem__((0, 0), 1),
        lambda e: e.value.__setitem__((0, 0), 1),
        lambda e: e.value.loc.__setitem__({"item": "a"}, 1),
        lambda e: e.value.data.fill(1),
        lambda e: e.value.n.values.__setitem__(0, 1),
        lambda e: e.value.text.values.__setitem__(0, "z"),
        lambda e: e.value.depth.values.__setitem__(0, 1),
        lambda e: setattr(e.value.values.flags, "writeable", True),
    ],
)
def test_writing_raises(write):
    e = make(labelled())
    with pytest.raises(ValueError, match="read-only|WRITEABLE|is a view"):
        write(e)


def test_strings_as_values_are_read_only():
    e = make(xr.DataArray(np.array(["x", "y"], dtype=object), dims="i", name="v"))
    with pytest.raises(ValueError, match="read-only"):
        e.value.values[0] = "z"


@pytest.mark.parametrize(
    "tamper",
    [
        lambda v: setattr(v, "values", np.ones((2, 2))),
        lambda v: setattr(v, "name", "w"),
        lambda v: v.attrs.update(long_name="other"),
        lambda v: v.__setitem__("n", ("item", [5, 6])),
        lambda v: v.coords.update({"item": ["c", "d"]}),
        lambda v: setattr(v.variable, "data", np.ones((2, 2))),
        lambda v: v["item"].values.__setitem__(0, "z"),
        lambda v: v["n"].attrs.update(a=1),
    ],
)
def test_what_is_handed_out_is_the_reader_s_own(tamper):
    e, same = make(labelled()), make(labelled())
    tamper(e.value)
    xr.testing.assert_identical(e.value, labelled())
    assert e.id == same.id
    assert Evidence.from_dict(e.to_dict()) == same


def test_the_source_can_change_afterwards():
    source, notes, parameters = labelled(), {"a": [1]}, {"b": {"c": 1}}
    table = pd.DataFrame({"x": [1.0]})
    e = make(
        source,
        subject=Subject("s", "d", "r", notes=notes),
        provenance=Provenance({}, "float32", "cpu", "sdpa", parameters=parameters),
        tables={"t": table},
    )
    before = e.to_dict()
    source[:] = 9
    source["n"].values[:] = 9
    notes["a"].append(2)
    parameters["b"]["c"] = 2
    table.loc[0, "x"] = 9.0
    assert e.to_dict() == before
    assert Evidence.from_dict(before) == e


def test_tables_and_settings_are_copies():
    e = make(labelled(), tables={"t": pd.DataFrame({"x": [1.0]})}, subject=Subject("s", "d", "r"))
    table = e.tables["t"]
    table.loc[0, "x"] = 99
    assert e.tables["t"].loc[0, "x"] == 1.0
    with pytest.raises(TypeError):
        e.subject.notes["a"] = 1
    with pytest.raises(TypeError):
        e.tables["u"] = pd.DataFrame()
    with pytest.raises(dataclasses.FrozenInstanceError):
        e.instrument = "lens"
    with pytest.raises(dataclasses.FrozenInstanceError):
        e.value = labelled()


def test_settings_read_like_a_dict_and_hash():
    one = Subject("s", "d", "r", notes={"a": [1, {"b": 2}]})
    assert dict(one.notes) == {"a": (1, {"b": 2})}
    assert hash(one) == hash(Subject("s", "d", "r", notes={"a": [1, {"b": 2}]}))
    assert {**one.notes}["a"][1]["b"] == 2


def test_replacing_a_field_gives_new_evidence():
    e = make(labelled())
    assert dataclasses.replace(e, version="2").id == make(labelled(), version="2").id


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ({1: "a"}, "key 1: keys of a record are strings"),
        ({"a": {"$float": "NaN"}}, r"key '\$float'"),
        ({"a": {1, 2}}, "of type set cannot be kept"),
        ([("a", 1)], "mapping"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(notes, said):
    with pytest.raises(EvidenceError, match=said):
        Subject("s", "d", "r", notes=notes)


def test_one_string_is_no_sequence():
    with pytest.raises(EvidenceError, match="interventions='patch'"):
        Subject("s", "d", "r", interventions="patch")
