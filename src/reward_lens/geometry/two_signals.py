"""Two signals as one subject: scores of either by the protocol alone, and one receipt for both."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from reward_lens.data import Item
from reward_lens.errors import CapabilityError, DataError, NumericsError
from reward_lens.evidence import Evidence, Provenance, Subject
from reward_lens.evidence.gate import either
from reward_lens.progress import Progress
from reward_lens.signals import Capability, ClassifierRM, RewardSignal, require
from reward_lens.signals.classifier import BATCH_TOKENS
from reward_lens.signals.identity import provenance

Floats = npt.NDArray[np.float64]
#: Readout of both signals, or of the first and the second.
Readouts = str | tuple[str, str]

#: What a scoring call may be asked for -> what it does where nothing is asked.
_PLAIN: dict[str, Any] = {
    "readout": "reward",
    "position": None,
    "truncate": "error",
    "batch_tokens": BATCH_TOKENS,
}


def both(readout: Readouts) -> tuple[str, str]:
    """The readout of the first signal and of the second.

    Raises
    ------
    DataError
        If it is neither a name nor two.
    """
    if isinstance(readout, str):
        return readout, readout
    if len(readout) != 2 or not all(isinstance(r, str) for r in readout):
        raise DataError(f"readout={readout!r}: give one name, or one for each of the two signals")
    return readout


def score_items(
    signal: RewardSignal, items: list[Item], progress: Progress | None, **options: Any
) -> Evidence:
    """Score items with a grader of any kind.

    Parameters
    ----------
    options : dict
        ``readout``, ``position``, ``truncate``, ``batch_tokens``. A grader that does not know one
        is not told of it as long as it has its usual value.

    Raises
    ------
    CapabilityError
        If the signal has no scores, or does not know an option that was chosen.
    NumericsError
        If it does not give one finite number an item.
    """
    require(signal, Capability.SCORES, "a comparison of signals")
    known = inspect.signature(signal.score).parameters
    told = {k: v for k, v in options.items() if k in known}
    for name, value in options.items():
        if name not in known and value != _PLAIN[name]:
            raise CapabilityError(
                f"{name}={value!r}: the score of {signal.meta.architecture} has no such choice; "
                f"leave it out"
            )
    if progress is not None and "progress" in known:
        told["progress"] = progress
    found = signal.score(items, **told)
    values = scores_of(found)
    if values.shape != (len(items),) or not np.isfinite(values).all():
        raise NumericsError(
            f"{signal.meta.architecture} gave scores of shape {values.shape} for {len(items)} "
            f"items, {int((~np.isfinite(values)).sum())} of them not finite: a comparison needs "
            f"one finite number an item"
        )
    return found


def scores_of(evidence: Evidence) -> Floats:
    """The scores that an evidence holds, float64 ``[item]``."""
    return np.asarray(evidence.value.values, dtype=np.float64)


def joint_subject(
    signals: tuple[RewardSignal, RewardSignal],
    data: str,
    readouts: tuple[str, str],
    position: str | None = None,
    frame: str | None = None,
) -> Subject:
    """What a comparison is about: both signals by fingerprint, with a note on each."""
    a, b = signals
    changed = [getattr(s, "interventions", ()) for s in signals]
    return Subject(
        signal=either(a.fingerprint, b.fingerprint),
        data=data,
        readout=either(*readouts),
        interventions=tuple(f"{w}: {i}" for w, c in zip("ab", changed, strict=True) for i in c),
        frame=frame,
        notes={
            "a": _facts(a, readouts[0], position),
            "b": _facts(b, readouts[1], position),
        },
    )


def _facts(signal: RewardSignal, readout: str, position: str | None) -> dict[str, Any]:
    m = signal.meta
    facts = {
        "signal": signal.fingerprint,
        "architecture": m.architecture,
        "source": m.source,
        "readout": readout,
        "position": position or m.position,
    }
    note = str(getattr(signal.readout(readout), "note", ""))
    return {**facts, "readout_note": note} if note else facts


def joint_provenance(
    signals: tuple[RewardSignal, RewardSignal],
    parameters: Mapping[str, Any],
    *,
    cost: float,
    parents: tuple[str, ...],
    seeds: tuple[int, ...] = (),
) -> Provenance:
    """Under what circumstances two signals were compared."""
    # Only the facts that every grader has are asked for.
    one, other = (provenance(cast(ClassifierRM, s), parameters, cost=cost) for s in signals)
    return Provenance(
        versions=one.versions,
        dtype=either(one.dtype, other.dtype),
        device=either(one.device, other.device),
        kernel=either(one.kernel, other.kernel),
        seeds=seeds,
        parents=tuple(dict.fromkeys(parents)),
        cost_forwards=cost,
        parameters=parameters,
    )
