"""JSON inside a page: compact, and with nothing in it that a browser could take for markup."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

#: What could end or begin a tag, and the two line ends that old scripts do not allow in a text.
_UNSAFE = re.compile("[<>&\u2028\u2029]")


def dumps(value: Any) -> Markup:
    r"""A JSON value as text for a ``<script type="application/json">`` element.

    Parameters
    ----------
    value : object
        Of JSON's own types; all characters that need it are written as ``\uXXXX``.

    Raises
    ------
    ValueError
        If a number is not finite: it has to be given as None.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(_UNSAFE.sub(lambda m: f"\\u{ord(m[0]):04x}", text))


def size(value: Any) -> int:
    """Bytes that a value takes in a page."""
    return len(dumps(value).encode())


def spent(values: Mapping[str, Any]) -> int:
    """Bytes that the values of a mapping take in a page together."""
    return sum(size(value) for value in values.values())
