"""Arrays, tables and settings as strict JSON that gives back every bit: dtype, shape, labels, NaN.

JSON has no NaN and no infinities. Where a field is known to be a float they are written as strings
(``"NaN"``, ``"-Infinity"``); in free-form settings, where a string may be meant, as
``{"$float": "NaN"}``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.errors import EvidenceError
from reward_lens.evidence.hashing import fingerprint

Json = Any  # a value of strict JSON
Array = npt.NDArray[Any]

_FLOAT = "$float"
_KEPT = "a record keeps float16/32/64, integers, booleans and strings"


def checked_array(array: npt.ArrayLike, where: str) -> Array:
    """Return the array in native byte order if every bit of it can be kept.

    Raises
    ------
    EvidenceError
        On another dtype (``longdouble``, complex, dates), or an object array that holds anything
        but strings; names ``where``.
    """
    found: Array = np.asarray(array)
    dtype = found.dtype
    if dtype.kind == "O":
        wrong = [v for v in found.reshape(-1).tolist() if not isinstance(v, str)]
        if wrong:
            raise EvidenceError(
                f"{where}: an array of objects may hold strings only, found {wrong[0]!r}; {_KEPT}"
            )
    elif dtype.kind not in "iubU" and not (dtype.kind == "f" and dtype.itemsize <= 8):
        raise EvidenceError(
            f"{where}: dtype {dtype} cannot be kept exactly; {_KEPT}: convert it first"
        )
    return found.astype(dtype.newbyteorder("="), copy=False)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return f"U{dtype.itemsize // 4}" if dtype.kind == "U" else dtype.name


def array_to_json(array: Array) -> Json:
    """Encode an array that passed :func:`checked_array`."""
    flat = array.reshape(-1).tolist()
    data = [float_to_json(v) for v in flat] if array.dtype.kind == "f" else flat
    return {"dtype": _dtype_name(array.dtype), "shape": list(array.shape), "data": data}


def array_to_digest(array: Array) -> Json:
    """Describe an array by dtype, shape and a hash of its exact bits.

    Bits are taken little-endian; every NaN counts as the same NaN, since which one a computation
    gives depends on the processor.
    """
    if array.dtype.kind in "UO":
        digest = fingerprint(*array.reshape(-1).tolist())
    else:
        bits = array.astype(array.dtype.newbyteorder("<"))
        if array.dtype.kind == "f":
            bits[np.isnan(bits)] = np.nan
        digest = fingerprint(bits.tobytes())
    return {"dtype": _dtype_name(array.dtype), "shape": list(array.shape), "digest": digest}


def array_from_json(record: Mapping[str, Any]) -> Array:
    """Undo :func:`array_to_json`.

    Raises
    ------
    ValueError
        If the data does not fit the stated dtype and shape exactly.
    """
    dtype, given = np.dtype(record["dtype"]), record["data"]
    data = [float(v) for v in given] if dtype.kind == "f" else given  # float() reads "NaN" too
    array: Array = np.empty(len(data), dtype=dtype)
    array[:] = data
    array = array.reshape(tuple(record["shape"]))
    if array_to_json(array)["data"] != given:
        raise ValueError(f"data that {record['dtype']} cannot hold exactly")
    return array


def dataarray_to_json(
    value: xr.DataArray, encode: Callable[[Array], Json] = array_to_json
) -> dict[str, Json]:
    """Encode a named array with its dimensions, coordinates and attributes."""
    return {
        "name": value.name,
        "dims": list(value.dims),
        "values": encode(value.values),
        "attrs": plain(value.attrs),
        "coords": {
            str(k): {"dims": list(c.dims), "values": encode(c.values), "attrs": plain(c.attrs)}
            for k, c in value.coords.items()
        },
    }


def dataarray_from_json(record: Mapping[str, Any]) -> xr.DataArray:
    """Undo :func:`dataarray_to_json`."""
    coords = {
        k: (tuple(c["dims"]), array_from_json(c["values"]), unplain(c["attrs"]))
        for k, c in record["coords"].items()
    }
    return xr.DataArray(
        array_from_json(record["values"]),
        dims=tuple(record["dims"]),
        coords=coords,
        name=record["name"],
        attrs=unplain(record["attrs"]),
    )


def table_to_json(
    table: pd.DataFrame, encode: Callable[[Array], Json] = array_to_json
) -> list[Json]:
    """Encode a table column by column, in order."""
    return [{"column": c, **encode(table[c].to_numpy())} for c in table.columns]


def table_from_json(record: list[Mapping[str, Any]]) -> pd.DataFrame:
    """Undo :func:`table_to_json`."""
    return pd.DataFrame({c["column"]: array_from_json(c) for c in record})


def float_to_json(x: float) -> Json:
    """A finite float as itself, NaN and infinities as strings."""
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "Infinity" if x > 0 else "-Infinity"
    return float(x)


def plain(value: Any) -> Json:
    """Turn nested mappings, sequences and scalars into strict JSON.

    Raises
    ------
    EvidenceError
        On anything else, and on a mapping whose keys are not strings.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        found = float_to_json(float(value))
        return found if isinstance(found, float) else {_FLOAT: found}
    if isinstance(value, Mapping):
        wrong = next((k for k in value if not isinstance(k, str) or k == _FLOAT), None)
        if wrong is not None:
            raise EvidenceError(
                f"key {wrong!r}: keys of a record are strings other than {_FLOAT!r}"
            )
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    raise EvidenceError(
        f"{value!r} of type {type(value).__name__} cannot be kept in a record; "
        "use strings, numbers, booleans, None, lists and mappings of these"
    )


def unplain(value: Json) -> Any:
    """Undo :func:`plain`."""
    if isinstance(value, Mapping):
        if set(value) == {_FLOAT}:
            return float(value[_FLOAT])
        return {k: unplain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [unplain(v) for v in value]
    return value
