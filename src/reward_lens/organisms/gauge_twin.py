"""Gauge twins: signals that prefer exactly the same and look different.

Two ways to look different: the same network in other coordinates of its stream, and the same score
on another scale with a shift per prompt. A measure that tells a signal from its twin measures the
coordinates or the scale, not the preference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from reward_lens.backbone import Trunk, registered_names
from reward_lens.backbone.gauge import in_other_basis
from reward_lens.data import Item, as_items
from reward_lens.errors import CapabilityError, DataError
from reward_lens.evidence import Evidence, canonical, fingerprint
from reward_lens.evidence.arguments import checked_seed
from reward_lens.signals import Capability, ClassifierRM, RewardSignal, SignalMeta
from reward_lens.signals.protocol import NamedReadout


def make_gauge_twin(signal: ClassifierRM, seed: int = 0) -> ClassifierRM:
    """The same signal in other coordinates: a signed permutation of its stream, in a copy.

    Parameters
    ----------
    signal : ClassifierRM
    seed : int
        Of the permutation. Signs are drawn too where every norm is of the root-mean-square kind;
        LayerNorm, which takes out the mean, allows a plain permutation only.

    Returns
    -------
    ClassifierRM
        Its scores are those of ``signal`` up to rounding; its directions and states are permuted.

    Raises
    ------
    AnatomyError
        If the copy does not score the same: then a part of this trunk was not recognised.
    CapabilityError
        If the signal has a gate, which reads the stream outside the trunk, or is intervened on.
    DataError
        If the seed is no whole number from 0.
    """
    if signal.gate is not None or signal.trunk.edited:
        what = "a gated head" if signal.gate is not None else "interventions"
        raise CapabilityError(
            f"{signal.meta.architecture} has {what}, which a change of coordinates would have to "
            f"follow and does not: make the twin of the plain signal"
        )
    seed = checked_seed(seed)
    model, _ = in_other_basis(signal.trunk, seed)
    names = registered_names(str(getattr(signal.trunk.model.config, "model_type", "")))
    trunk = Trunk(model, names)
    trunk.alone_beyond = signal.trunk.alone_beyond
    note = f"the stream's coordinates are permuted (gauge twin, seed {seed})"
    meta = signal.meta.updated(notes=(*signal.meta.notes, note))
    return ClassifierRM(trunk, signal.encoder, meta)


class Rescaled:
    """A signal's scores times a number, plus a number per prompt.

    Parameters
    ----------
    signal : RewardSignal
    scale : float
        Not 0; a negative one prefers the opposite.
    shift : float
        Standard deviation of the shifts, in reward units of the result. The shift of a prompt is
        drawn from a hash of its text and ``seed``, so the same prompt always has the same one.
    seed : int

    Raises
    ------
    DataError
        If the scale is 0, a number is not finite, or the seed is no whole number from 0.
    """

    def __init__(
        self, signal: RewardSignal, scale: float = 1.0, shift: float = 0.0, seed: int = 0
    ) -> None:
        if not (np.isfinite(scale) and np.isfinite(shift)) or scale == 0:
            raise DataError(
                f"scale={scale!r}, shift={shift!r}: give finite ones, and no scale of 0"
            )
        self.signal, self.scale, self.shift = signal, float(scale), float(shift)
        self.seed = checked_seed(seed)

    def __repr__(self) -> str:
        return (
            f"<Rescaled {self.scale:g} times {self.signal!r}, shifts of SD {self.shift:g} per "
            f"prompt>"
        )

    @property
    def meta(self) -> SignalMeta:
        """What is known of the signal beneath, with what is done to its scores."""
        note = f"scores are times {self.scale:g}, with a shift of SD {self.shift:g} per prompt"
        return self.signal.meta.updated(notes=(*self.signal.meta.notes, note))

    @property
    def caps(self) -> Capability:
        """Scores only: what lies beneath is in other units."""
        return Capability.SCORES

    @property
    def fingerprint(self) -> str:
        """Hash of the signal beneath and of what is done to its scores."""
        settings = [self.scale, self.shift, self.seed]
        return fingerprint(self.signal.fingerprint, canonical(settings))

    def readouts(self) -> Sequence[NamedReadout]:
        """Those of the signal beneath."""
        return self.signal.readouts()

    def readout(self, name: str = "reward") -> NamedReadout:
        """One of the signal beneath, by name."""
        return self.signal.readout(name)

    def score(self, items: Iterable[Any], **options: Any) -> Evidence:
        """Score items; options go to the signal beneath.

        Returns
        -------
        Evidence
            As that of the signal beneath, its value float64 ``[item]``.
        """
        given = as_items(items)
        found = self.signal.score(given, **options)
        shifts = np.array([self.shift * self._draw(x) for x in given])
        values = self.scale * found.value.values.astype(np.float64) + shifts
        settings = {**found.provenance.parameters, "scale": self.scale, "shift": self.shift}
        return replace(
            found,
            value=found.value.astype(np.float64).copy(data=values),
            subject=replace(found.subject, signal=self.fingerprint),
            provenance=replace(found.provenance, parameters=settings),
            tables={},
        )

    def _draw(self, item: Item) -> float:
        """A standard normal number that belongs to the item's prompt."""
        said = [[m.role, m.content] for m in item.prompt or ()] or item.lineage
        digest = hashlib.blake2b(canonical([said, self.seed]), digest_size=8).digest()
        return float(np.random.default_rng(int.from_bytes(digest, "big")).standard_normal())
