"""Paths from a number on a page to an element of an evidence's value."""

from __future__ import annotations

import pytest
import xarray as xr
from pair_kit import known, lens_of

from reward_lens.errors import EvidenceError
from reward_lens.report.numbers import resolve, value_path

IDS = ["plain", "a, b=c/d|e%20f", '</data>&amp;"\u2028', "🙂é", "3", "-1.0"]


def test_ids_of_any_kind_lead_to_their_value():
    lens = lens_of(IDS, depths=3)
    for k, pair in enumerate(IDS):
        path = value_path(reading="applied", pair=pair, depth=2)
        assert path.count("/") == 1
        assert "|" not in path
        assert resolve(lens, path) == lens.value.values[1, k, 2]


def test_a_dimension_without_coordinates_is_counted():
    e = known("x", xr.DataArray([[1.0, 2.0], [3.0, 4.0]], dims=("row", "column"), name="v"))
    assert resolve(e, "value/column=0,row=1") == 3.0


@pytest.mark.parametrize(
    "path",
    ["value/reading=frozen,pair=a", "value/reading=frozen,pair=a,depth=0,depth=1", "value/",
     "value/reading=frozen,pair=b,depth=0", "value/reading=frozen,pair=a,deep=0", "value"],
)  # fmt: skip
def test_paths_into_nowhere_are_refused(path):
    with pytest.raises(EvidenceError, match="has nothing at 'value"):
        resolve(lens_of(["a"]), path)


def test_an_unknown_kind_of_path_is_refused():
    with pytest.raises(EvidenceError, match="begins with interval/, table/ or value/"):
        resolve(lens_of(["a"]), "values/reading=frozen")
