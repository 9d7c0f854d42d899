"""An organism whose weights were set by hand, with what is true of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from reward_lens.data import Pairs
from reward_lens.errors import DataError
from reward_lens.signals import ClassifierRM

Floats = npt.NDArray[np.float64]

_SENDER = r"embed|L\d+\.(attn_out|mlp_out|H\d+)"
_COMPONENT = re.compile(_SENDER)
_PATH = re.compile(rf"({_SENDER}) -> (readout|L\d+\.(attn_in|mlp_in|H\d+(\.[qkv])?))")

#: What can be asked of a key -> what the value is, in reward units.
READINGS: dict[str, str] = {
    "attribution": "what a component writes of the margin, straight into the head",
    "noise": "what the margin loses when the chosen side gets the rejected side's activation",
    "denoise": "what the margin gains when the rejected side gets the chosen side's activation",
    "zero": "what the margin loses when a component writes nothing, on both sides",
    "gradient noise": "first-order estimate of noise",
    "gradient denoise": "first-order estimate of denoise",
    "noise everywhere": "noise at all tokens at once, not at the read token alone",
    "denoise everywhere": "denoise at all tokens at once",
    "gradient noise everywhere": "first-order estimate of noise everywhere",
    "gradient denoise everywhere": "first-order estimate of denoise everywhere",
    "noise path": "noise of a sender at the read token, seen by one receiver only",
    "denoise path": "denoise of a sender at the read token, seen by one receiver only",
    "noise path everywhere": "noise of a sender at all tokens, seen by one receiver only",
    "denoise path everywhere": "denoise of a sender at all tokens, seen by one receiver only",
}


@dataclass(frozen=True, eq=False)
class AnswerKey:
    """An organism with hand-set weights, pairs that show its rule, and the right answers.

    Attributes
    ----------
    name : str
    signal : ClassifierRM
    pairs : Pairs
    dose : float
        What the planted rule adds to the margin, in reward units; 0 for a null.
    planted : tuple of str
        The components that the rule is in, e.g. ``("L0.H1", "L0.attn_out")``.
    margin : ndarray, [pair]
        On paper.
    truth : mapping
        Reading (a key of :data:`READINGS`) -> component (``"L1.H2"``, ``"L0.mlp_out"``,
        ``"embed"``) or path (``"L0.H1 -> L2.mlp_in"``, ``"L0.H1 -> readout"``) -> float64
        ``[pair]``. A component that is not there has the value 0.
    """

    name: str
    signal: ClassifierRM
    pairs: Pairs
    dose: float
    planted: tuple[str, ...]
    margin: Floats = field(repr=False)
    truth: Mapping[str, Mapping[str, Floats]] = field(repr=False)

    def expected(self, reading: str, names: Iterable[str]) -> Floats:
        """The right answers to one reading.

        Parameters
        ----------
        reading : str
        names : iterable of str
            Components or paths, as an instrument names them.

        Returns
        -------
        ndarray
            float64 ``[pair, name]``.

        Raises
        ------
        DataError
            If this key has no such reading, or a name is no component or path.
        """
        if reading not in self.truth:
            raise DataError(
                f"the key {self.name!r} has no reading {reading!r}; it has {', '.join(self.truth)}"
            )
        names = list(names)
        form = _PATH if "path" in reading else _COMPONENT
        if wrong := [name for name in names if form.fullmatch(name) is None]:
            what = "path, as 'L0.H1 -> L2.mlp_in'" if form is _PATH else "component, as 'L0.H1'"
            raise DataError(f"{wrong[0]!r} is no {what}: this key says nothing of it")
        known, none = self.truth[reading], np.zeros(len(self.pairs))
        return np.stack([known.get(name, none) for name in names], axis=1)
