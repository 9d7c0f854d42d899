"""Graders to be checked: the documented one, and one per check that is wrong in one way."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xarray as xr

import reward_lens as rl
from reward_lens.data import as_item, as_items
from reward_lens.errors import DataError
from reward_lens.evidence import Evidence, Units
from reward_lens.signals import Capability
from reward_lens.signals.conformance import PROBES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "conformance.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run_blocks(blocks, space):
    """Run Python blocks of the page, one after the other, in one name space."""
    for block in blocks:
        exec(compile(block, "docs/conformance.md", "exec"), space)
    return space


Brevity = run_blocks([b for b in BLOCKS if "class Brevity" in b], {"rl": rl, "__name__": "page"})[
    "Brevity"
]


def remade(found, values=None, kind=Evidence, **changes):
    """Evidence with another value, or other facts."""
    fields = {f.name: getattr(found, f.name) for f in dataclasses.fields(Evidence)}
    if values is not None:
        fields["value"] = xr.DataArray(values, dims="item", name="score")
    return kind(**{**fields, **changes})


class Toy(Brevity):
    """The documented grader, with a place to meddle with scores."""

    def score(self, items):
        given = as_items(items)
        found = super().score(given)
        return remade(found, self.meddle(found.value.values.copy(), given))

    def meddle(self, values, given):
        return values


def text(item):
    return item.response or ""


class Delegate:
    """A classifier behind an object that is none, as a service would hide one."""

    def __init__(self, signal):
        self._signal = signal

    def __getattr__(self, name):
        return getattr(self._signal, name)


# One grader per check, each wrong in one way.


class PlainMeta(Toy):
    meta = {"architecture": "rule"}  # noqa: RUF012


class NoScores(Toy):
    caps = Capability(0)


class HashOfItsState(Toy):
    calls = 0

    @property
    def fingerprint(self):
        return f"state {self.calls}"

    def score(self, items):
        self.calls += 1
        return super().score(items)


class NameTwice(Toy):
    def readouts(self):
        return super().readouts() * 2


class AnyName(Toy):
    def readout(self, name="reward"):
        return self.readouts()[0]


class Rows(Toy):
    def score(self, items):
        found = super().score(items)
        return remade(found, value=found.value.rename({"item": "row"}))


class Ranks(Toy):
    def score(self, items):
        return remade(super().score(items), units=Units.RANK)


class Anonymous(Toy):
    def score(self, items):
        found = super().score(items)
        return remade(found, subject=dataclasses.replace(found.subject, signal="some grader"))


class Drifts(Toy):
    drift = 0.0

    def meddle(self, values, given):
        self.drift += 1e-9
        return values + self.drift


class Leaks(Toy):
    def meddle(self, values, given):
        return values - values.mean()


class Placed(Toy):
    """Loses the order of a batch whose first item is longer than its last."""

    def meddle(self, values, given):
        odd = len(given) == len(PROBES) and len(text(given[0])) > len(text(given[-1]))
        return np.sort(values) if odd else values


class PairsOnly(Toy):
    def score(self, items):
        given = list(items)
        if any(isinstance(x, Mapping) for x in given):
            raise DataError("give pairs")
        return super().score(given)


class CrashesOnIds(Toy):
    def score(self, items):
        given = as_items(items)
        if any(x.ids is not None for x in given):
            raise TypeError("object of type 'NoneType' has no len()")
        return super().score(given)


class Eats(Toy):
    def score(self, items):
        found = super().score(as_items(items))
        if isinstance(items, list):
            items.clear()
        return found


class Swallows(Toy):
    def score(self, items):
        if not isinstance(items, list):
            return super().score(items)
        return super().score([self.guessed(x) for x in items])

    def guessed(self, x):
        try:
            return as_item(x)
        except DataError:
            return ("?", str(x))


class ScoresNothing(Toy):
    def score(self, items):
        given = list(items)
        return super().score(given) if given else remade(super().score(PROBES), np.empty(0))


class NotANumber(Toy):
    def meddle(self, values, given):
        values[["🙂" in text(x) for x in given]] = np.nan
        return values


class Constant(Toy):
    def meddle(self, values, given):
        return 0 * values + 0.5


class Overclaims(Toy):
    caps = Capability.SCORES | Capability.PREFIX_SCORES


class Mislabelled(Evidence):
    def to_dict(self):
        return {**super().to_dict(), "version": "2"}


class Misfiled(Toy):
    def score(self, items):
        return remade(super().score(items), kind=Mislabelled)
