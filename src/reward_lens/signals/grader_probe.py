"""A grader that is being checked, and what every check of one is made of.

No check stops the others: what a grader raises is what that check found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from reward_lens.data import Item
from reward_lens.errors import DataError
from reward_lens.evidence import Evidence
from reward_lens.signals.check_report import Check
from reward_lens.signals.probed import COARSE, EXACT

#: What :meth:`ProbedGrader.close` allows, as printed.
NEARLY = f"{EXACT:.0e} of the scores' spread; {COARSE} in half precision"

Floats = npt.NDArray[np.float64]
Outcome = tuple[bool, str]  # passed, what was measured


class ProbedGrader:
    """A grader with probes and what several checks share."""

    def __init__(self, signal: Any, probes: Sequence[tuple[str, str]]) -> None:
        for prompt, response in probes:
            Item.of(prompt, response)  # the probes must be sound before a grader is blamed
        if len(probes) < 2:
            raise DataError("one probe cannot show that scores differ: give two or more")
        self.signal = signal
        self.pairs = [(p, r) for p, r in probes]

    @cached_property
    def evidence(self) -> Evidence:
        """All probes scored at once, as pairs."""
        found: Evidence = self.signal.score(list(self.pairs))
        return found

    @cached_property
    def together(self) -> Floats:
        """Their scores."""
        return scores_of(self.evidence, len(self.pairs))

    def scores(self, items: Sequence[Any]) -> Floats:
        """Scores of a fresh list of items, in one call."""
        return scores_of(self.signal.score(list(items)), len(items))

    def close(self, gap: float) -> Outcome:
        """Judge a difference of scores against their spread."""
        finite = self.together[np.isfinite(self.together)]
        spread, largest = (np.ptp(finite), np.abs(finite).max()) if len(finite) else (0.0, 0.0)
        share = gap / float(max(spread, 1e-6 * largest, 1e-12))
        allowed = COARSE if self._half else EXACT
        return share <= allowed, f"{share:.1e} of the scores' spread"

    @property
    def _half(self) -> bool:
        try:
            return self.signal.meta.dtype in ("float16", "bfloat16")
        except Exception:  # another check says what is wrong with meta
            return False

    def read_index(self) -> npt.NDArray[np.int64] | None:
        """The token that each score was read at, where the evidence says so."""
        coords = self.evidence.value.coords
        return coords["read_index"].values if "read_index" in coords else None


@dataclass(frozen=True)
class GraderCheck:
    """A measurement of a grader, with what it allows and what a failure means.

    Attributes
    ----------
    name, allowed, meaning : str
        As in :class:`~reward_lens.signals.Check`.
    measure : callable
        Says whether the grader passed, and what was measured; may raise.
    """

    name: str
    allowed: str
    meaning: str
    measure: Callable[[ProbedGrader], Outcome]

    def __call__(self, subject: ProbedGrader) -> Check:
        """Measure; what is raised is a failure, and its text what was measured."""
        try:
            passed, measured = self.measure(subject)
        except Exception as error:  # of a grader we know nothing: anything may come
            passed, measured = False, said(error)
        return Check(self.name, bool(passed), measured, self.allowed, self.meaning)


def check(
    name: str, allowed: str, meaning: str
) -> Callable[[Callable[[ProbedGrader], Outcome]], GraderCheck]:
    """Turn a measurement into a check (a decorator)."""
    return lambda measure: GraderCheck(name, allowed, meaning, measure)


def said(error: Exception) -> str:
    """An error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def scores_of(evidence: Any, n: int) -> Floats:
    """The scores in evidence of ``n`` items, as float64 ``[n]``.

    Raises
    ------
    AttributeError, ValueError
        If there is no value in it, or not one number for each item.
    """
    values: Floats = np.asarray(evidence.value.values, dtype=np.float64)
    if values.shape != (n,):
        raise ValueError(f"{n} items gave values of shape {values.shape}")
    return values


def largest_gap(a: Floats, b: Floats) -> float:
    """Largest difference; NaN equals NaN, and nothing else."""
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        gap = np.where(same, 0.0, np.abs(a - b))
    return float(np.nan_to_num(gap, nan=np.inf, posinf=np.inf).max())
