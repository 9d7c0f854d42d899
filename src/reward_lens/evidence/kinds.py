"""The labels every measurement carries: trust, gauge, units, tier."""

from __future__ import annotations

from enum import Enum, IntEnum


class _Printed(Enum):
    """Prints as ``GaugeStatus.INVARIANT`` by ``str`` and by ``repr``."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    __repr__ = __str__


class TrustLevel(IntEnum):
    """How far a measurement can be leaned on; each rung requires the one below."""

    EXPLORATORY = 0
    CALIBRATED = 1
    REGISTERED = 2
    ADJUDICATED = 3

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    __repr__ = __str__


class GaugeStatus(_Printed):
    """Dependence on the coordinates of the state space.

    ``COVARIANT`` needs a frame to be compared across signals; ``RAW_ONLY`` cannot be.
    """

    INVARIANT = "invariant"
    COVARIANT = "covariant"
    RAW_ONLY = "raw only"


class Units(_Printed):
    """Dependence on the reward's own scale and shift."""

    REWARD = "reward"
    SHARE = "share"
    RANK = "rank"
    ANGLE = "angle"
    PROBABILITY = "probability"


class Tier(_Printed):
    """Whether a measurement looks, intervenes, or probes for weaknesses."""

    OBSERVATIONAL = "observational"
    CAUSAL = "causal"
    VULNERABILITY = "vulnerability"
