"""How far a measurement can be leaned on, why, and what that licenses its reader to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from reward_lens.evidence.kinds import TrustLevel

MEANING = {
    TrustLevel.EXPLORATORY: "nothing has checked this instrument on this model: a lead, no finding",
    TrustLevel.CALIBRATED: "the instrument recovers planted rules of this size on this model",
    TrustLevel.REGISTERED: "the expectation was stored before the data was measured",
    TrustLevel.ADJUDICATED: "the registered expectation held",
}
LICENCE = {
    TrustLevel.EXPLORATORY: (
        "this was read; it may point somewhere. Not that it is so: nobody knows yet whether the "
        "instrument can see such a thing here"
    ),
    TrustLevel.CALIBRATED: (
        "on this model the instrument finds planted rules of this size, and it reads one of this "
        "size here. Not that it was expected, and not that it holds on other data or models"
    ),
    TrustLevel.REGISTERED: (
        "the instrument finds rules of this size here, and what it would read was written down "
        "first. Not that the expectation held"
    ),
    TrustLevel.ADJUDICATED: (
        "what was predicted before the data was measured came out, by an instrument that finds "
        "planted rules of this size on this model. Not that it holds on other data or models"
    ),
}


@dataclass(frozen=True)
class Standing:
    """The rung of one evidence and the reasons for it, computed from records.

    Attributes
    ----------
    level : TrustLevel
    because : tuple of str
        Reasons in words, what speaks against a higher rung among them.
    above : mapping of str to float
        Readings above the detection dose, in SDs of the margin.
    below : mapping of str to float
        Readings under the detection limit.
    records : tuple of str
        Ids of the records it follows from.
    failed : bool
        Whether the instrument failed the scorecard that speaks of it.
    detection_dose : float, optional
        The size that a reading has to have to be ``above``, in SDs of the margin; ``None`` where no
        scorecard that passed speaks of it.
    """

    level: TrustLevel
    because: tuple[str, ...] = ()
    above: Mapping[str, float] = field(default_factory=dict)
    below: Mapping[str, float] = field(default_factory=dict)
    records: tuple[str, ...] = ()
    failed: bool = False
    detection_dose: float | None = None

    def __post_init__(self) -> None:
        for name in ("above", "below"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def meaning(self) -> str:
        """What the rung says, in a clause."""
        return MEANING[self.level]

    @property
    def name(self) -> str:
        """The rung in a word or two, for labels."""
        return self.level.name.lower() + (", FAILED its scorecard" if self.failed else "")

    @property
    def licence(self) -> str:
        """What the reader may say on the strength of it, and what not."""
        return LICENCE[self.level]
