"""Arrays and tables as strict JSON that gives back every bit: dtype, shape, labels, NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from reward_lens.errors import EvidenceError

Json = Any  # a value of strict JSON


def float_to_json(x: float) -> Json:
    """A finite float as itself, NaN and infinities as strings (JSON has no such numbers)."""
    x = float(x)
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "Infinity" if x > 0 else "-Infinity"
    return x


def float_from_json(x: Json) -> float:
    """Undo :func:`float_to_json`."""
    return float(x)  # float() reads all three strings


def array_to_json(array: npt.NDArray[Any]) -> Json:
    """Encode an array of floats, integers, booleans or strings.

    Raises
    ------
    EvidenceError
        On another dtype, or an object array that holds anything but strings.
    """
    array = np.asarray(array)
    flat = array.reshape(-1)
    kind = array.dtype.kind
    if kind == "f":
        data: list[Any] = [float_to_json(v) for v in flat.tolist()]
    elif kind in "iub":
        data = flat.tolist()
    elif kind in "UOT":
        data = flat.tolist()
        wrong = next((v for v in data if not isinstance(v, str)), None)
        if wrong is not None:
            raise EvidenceError(f"an array of labels may hold strings only, found {wrong!r}")
    else:
        raise EvidenceError(f"values of dtype {array.dtype} cannot be kept exactly")
    name = "str" if kind in "UOT" else array.dtype.name
    return {"dtype": name, "shape": list(array.shape), "data": data}


def array_from_json(record: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Undo :func:`array_to_json`."""
    dtype, shape = record["dtype"], tuple(record["shape"])
    if dtype == "str":
        out: npt.NDArray[Any] = np.empty(len(record["data"]), dtype=object)
        out[:] = record["data"]
        return out.reshape(shape)
    data = record["data"]
    if np.dtype(dtype).kind == "f":
        data = [float_from_json(v) for v in data]
    return np.asarray(data, dtype=dtype).reshape(shape)


def dataarray_to_json(value: xr.DataArray) -> Json:
    """Encode a named array with its dimensions and coordinates."""
    return {
        "name": str(value.name),
        "dims": [str(d) for d in value.dims],
        "values": array_to_json(value.values),
        "coords": {
            str(k): {"dims": [str(d) for d in c.dims], "values": array_to_json(c.values)}
            for k, c in value.coords.items()
        },
    }


def dataarray_from_json(record: Mapping[str, Any]) -> xr.DataArray:
    """Undo :func:`dataarray_to_json`."""
    coords = {
        k: (tuple(c["dims"]), array_from_json(c["values"])) for k, c in record["coords"].items()
    }
    values = array_from_json(record["values"])
    return xr.DataArray(values, dims=record["dims"], coords=coords, name=record["name"])


def table_to_json(table: pd.DataFrame) -> Json:
    """Encode a table column by column; its index is not kept."""
    return {str(c): array_to_json(table[c].to_numpy()) for c in table.columns}


def table_from_json(record: Mapping[str, Any]) -> pd.DataFrame:
    """Undo :func:`table_to_json`."""
    columns = {c: array_from_json(a) for c, a in record.items()}
    return pd.DataFrame(columns)


def plain(value: Any) -> Json:
    """Turn nested mappings, sequences and scalars into strict JSON.

    Raises
    ------
    EvidenceError
        On anything else.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float_to_json(float(value))
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    raise EvidenceError(f"{value!r} of type {type(value).__name__} cannot be kept in a record")
