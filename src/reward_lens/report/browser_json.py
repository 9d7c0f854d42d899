"""What a page's browser is given: compact JSON, packed so that a small page holds many texts."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any


def dumps(value: Any) -> str:
    """A value of JSON's own types as compact text.

    Raises
    ------
    ValueError
        If a number is not finite: it has to be given as None.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def packed(value: Any) -> str:
    """A value as base64 of gzipped JSON, which nothing in a page can take for markup.

    Every browser since 2023 unpacks it (``DecompressionStream``). The same value gives the same
    text.
    """
    return base64.b64encode(gzip.compress(dumps(value).encode(), 9, mtime=0)).decode("ascii")


def unpacked(text: str) -> Any:
    """The value that :func:`packed` made a text of."""
    return json.loads(gzip.decompress(base64.b64decode(text)))


def size(value: Any) -> int:
    """Bytes of a value before it is packed."""
    return len(dumps(value).encode())


def spent(values: Mapping[str, Any]) -> int:
    """Bytes of the values of a mapping together."""
    return sum(size(value) for value in values.values())
