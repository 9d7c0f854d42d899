"""Which organisms a calibration looks at, and where it draws the line between rule and chance."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from reward_lens.errors import DataError
from reward_lens.evidence.arguments import checked_count

#: The kind of rule on whose nulls the threshold is fixed; everything else is tested on the others.
FIXED_ON = "mlp write"
DOSES = (0.5, 1.0, 2.0)
#: Organisms at each dose, nulls, and nulls on which the threshold is fixed.
ORGANISMS, NULLS, FIXING = 21, 63, 32
#: The share of new nulls that may lie above the threshold, by the fit.
TAIL = 0.005
#: The smallest threshold, in SDs of the margin: below it is what float32 leaves of nothing.
_LEAST = 1e-3


@dataclass(frozen=True, order=True)
class Draw:
    """One organism to be made.

    Attributes
    ----------
    number : int
        Organisms are made in this order, so that a run that is cut short has some of everything.
    kind : str
    dose : float
        In SDs of the margin; 0 for a null.
    fresh : bool
        Made after the card, for a test of what it states.
    """

    number: int
    kind: str
    dose: float = 0.0
    fresh: bool = False

    def seed(self, seed: int, attempt: int = 0) -> int:
        """Seed of the organism, for a seed of the calibration."""
        text = repr((seed, self.kind, self.dose, self.number, self.fresh, attempt))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1


@dataclass(frozen=True)
class Design:
    """How many organisms of what size; see :func:`~reward_lens.calibrate`."""

    doses: Sequence[float] = DOSES
    organisms: int = ORGANISMS
    nulls: int = NULLS
    fixing: int = FIXING

    def __post_init__(self) -> None:
        try:
            found = tuple(float(d) for d in self.doses)
        except (TypeError, ValueError):
            found = ()
        if isinstance(self.doses, str) or not found or not all(0 < d < math.inf for d in found):
            raise DataError(
                f"doses={self.doses!r}: give a list of positive numbers of SDs of the margin"
            )
        object.__setattr__(self, "doses", found)
        for name, least in (("organisms", 1), ("nulls", 1), ("fixing", 2)):
            why = "two nulls to fix the threshold on" if least == 2 else ""
            object.__setattr__(self, name, checked_count(name, getattr(self, name), least, why))

    def tested(self, kinds: Sequence[str]) -> Iterator[Draw]:
        """Rules at every dose and nulls, spread over kinds."""
        for dose in sorted(set(self.doses)):
            yield from _spread(kinds, self.organisms, dose)
        yield from _spread(kinds, self.nulls)

    def fixed(self, kind: str) -> Iterator[Draw]:
        """Nulls on which the threshold is fixed."""
        return _spread([kind], self.fixing)


def fresh_nulls(kinds: Sequence[str], count: int) -> list[Draw]:
    """Nulls that no calibration makes."""
    return list(_spread(kinds, count, fresh=True))


def _spread(
    kinds: Sequence[str], count: int, dose: float = 0.0, *, fresh: bool = False
) -> Iterator[Draw]:
    for k in range(count):
        yield Draw(k // len(kinds), kinds[k % len(kinds)], dose, fresh)


def threshold_of(largest: Iterable[float]) -> float:
    """The reading from which on a row is taken for a rule, in SDs of the margin.

    Parameters
    ----------
    largest : iterable of float
        The largest reading of all rows, of each null.

    Returns
    -------
    float
        The point above which a Gumbel distribution, fitted to them by maximum likelihood, has
        :data:`TAIL` of its mass; and no less than the largest of them.

    Notes
    -----
    A largest of many readings has about a Gumbel distribution (Fisher and Tippett 1928); for means
    over pairs, whose tails are normal, its upper tail is too heavy, which is the safe side. With
    32 nulls the share of new ones above it is below 0.2 % in the median and below 2 % in 99 of 100
    calibrations (simulated for 4 to 60 normal rows); then a right instrument passes on 63 nulls, of
    which 2 may lie above, with a probability of 0.996.
    """
    from scipy.stats import gumbel_r

    found = np.array(list(largest), dtype=np.float64)
    if np.ptp(found) <= 1e-9 * max(1.0, float(found.max())):
        return max(float(found.max()), _LEAST)  # nothing varies: there is no distribution to fit
    place, scale = gumbel_r.fit(found)
    return max(float(gumbel_r.isf(TAIL, place, scale)), float(found.max()), _LEAST)
