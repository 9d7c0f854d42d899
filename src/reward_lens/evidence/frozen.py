"""Contents that cannot be changed after they were recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from reward_lens.errors import EvidenceError
from reward_lens.evidence.encoding import Array, checked_array, plain, unplain


class FrozenMapping(Mapping[str, Any]):
    """A mapping of settings that is read like a dict, hashes, and cannot be changed."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = {k: _frozen_setting(v) for k, v in items.items()}

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def frozen_settings(settings: Mapping[str, Any]) -> FrozenMapping:
    """Copy nested settings; lists become tuples, numpy scalars plain ones.

    Raises
    ------
    EvidenceError
        On what a record cannot keep.
    """
    if not isinstance(settings, Mapping):
        raise EvidenceError(f"settings are a mapping with string keys, not {settings!r}")
    return FrozenMapping(unplain(plain(settings)))


def _frozen_setting(value: Any) -> Any:
    if isinstance(value, Mapping):
        return FrozenMapping(value)
    if isinstance(value, list):
        return tuple(_frozen_setting(v) for v in value)
    return value


def frozen_dataarray(value: xr.DataArray) -> xr.DataArray:
    """Copy a named array so that writing to its values or coordinates raises.

    Raises
    ------
    EvidenceError
        If it has no name, a name that is no string, or a dtype that cannot be kept exactly.
    """
    if not isinstance(value, xr.DataArray) or not isinstance(value.name, str):
        raise EvidenceError("the value of an evidence is a named xarray.DataArray: give it a name")
    wrong = next((d for d in (*value.dims, *value.coords) if not isinstance(d, str)), None)
    if wrong is not None:
        raise EvidenceError(f"dimension or coordinate {wrong!r}: their names are strings")
    coords = {
        name: xr.Variable(
            c.dims,
            _read_only(checked_array(c.values, f"coordinate {name!r}")),
            dict(frozen_settings(c.attrs)),
        )
        for name, c in value.coords.items()
    }
    values = _read_only(checked_array(value.values, f"value {value.name!r}"))
    attrs = dict(frozen_settings(value.attrs))
    bare = xr.DataArray(values, dims=value.dims, name=value.name, attrs=attrs)
    kept = bare.assign_coords(coords)  # the constructor would make writeable copies of them
    for part in (kept, *(c for name, c in kept.coords.items() if name not in kept.indexes)):
        if part.dtype == object:  # xarray copies these in any case
            part.values.flags.writeable = False
    return kept


def _read_only(array: Array) -> Array:
    """Copy an array; strings as objects are sealed once xarray has made its own copy."""
    if array.dtype.kind == "O":
        return array.copy()
    # Memory of a bytes object: numpy refuses to make it writeable again.
    return np.ndarray(array.shape, array.dtype, buffer=array.tobytes())


class HandedOut:
    """An attribute that keeps one frozen array and hands out a light wrapper of it each time.

    The wrappers share the read-only memory, so that renaming one or giving it new coordinates
    changes that wrapper only.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, instance: object, owner: type) -> xr.DataArray:
        if instance is None:
            raise AttributeError("an array belongs to one evidence, not to the class")
        kept: xr.DataArray = instance.__dict__[self._name]
        return kept.copy(deep=False)

    def __set__(self, instance: object, value: xr.DataArray) -> None:
        instance.__dict__[self._name] = frozen_dataarray(value)


class FrozenTables(Mapping[str, pd.DataFrame]):
    """Tables that cannot be changed from outside: copies in, copies out.

    Columns are kept as numpy arrays or strings; a plain row number is not kept as an index.
    """

    def __init__(self, tables: Mapping[str, pd.DataFrame]) -> None:
        self._tables = {k: _checked_table(k, t) for k, t in tables.items()}

    def __getitem__(self, name: str) -> pd.DataFrame:
        return self._tables[name].copy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


def _checked_table(name: str, table: pd.DataFrame) -> pd.DataFrame:
    if not isinstance(name, str) or not isinstance(table, pd.DataFrame):
        raise EvidenceError(f"table {name!r}: a table is a DataFrame under a string")
    columns = list(table.columns)
    if not all(isinstance(c, str) for c in columns) or len(set(columns)) < len(columns):
        raise EvidenceError(f"table {name!r}: columns need distinct string names, got {columns}")
    index = table.index
    if index.nlevels > 1 or index.name is not None or not pd.api.types.is_integer_dtype(index):
        raise EvidenceError(
            f"table {name!r}: its index {index.name!r} would be lost; make it a column first "
            "(reset_index())"
        )
    arrays = {
        c: checked_array(table[c].to_numpy(), f"table {name!r}, column {c!r}") for c in columns
    }
    return pd.DataFrame(arrays, copy=True)
