"""Checks of arguments that many functions take."""

from __future__ import annotations

import numbers

from reward_lens.errors import DataError


def checked_count(name: str, value: object, least: int, why: str = "") -> int:
    """Return a whole number that is not below ``least``.

    Parameters
    ----------
    name : str
        Of the argument, for the error.
    why : str
        Why not less, or what else can be given; for the error.

    Raises
    ------
    DataError
        If it is no whole number (a bool is none), or below ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        more = f" ({why})" if why else ""
        raise DataError(f"{name}={value!r}: give a whole number, {least} or more{more}")
    return int(value)


def checked_seed(seed: object) -> int:
    """Return a seed that random numbers can be drawn from.

    Raises
    ------
    DataError
        If it is no whole number, or negative.
    """
    return checked_count("seed", seed, 0)
