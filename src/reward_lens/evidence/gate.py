"""The gate: which numbers of two signals may be set against each other, and which may not.

Bradley–Terry fixes a reward only up to a positive scale and a shift per prompt, and a direction in
the states of one model says nothing about the states of another. A difference of two such numbers
looks like a finding and is none, so it is refused here, with the way out. Within one signal all
numbers live on one scale and in one set of coordinates.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from reward_lens.errors import EvidenceError, GaugeError
from reward_lens.evidence.kinds import GaugeStatus, Units
from reward_lens.evidence.parts import Provenance, Subject

if TYPE_CHECKING:
    from reward_lens.evidence.record import Evidence

_WAY_OUT = (
    "convert both first: in_shares, in_ranks or in_prompt_sds (reward_lens.evidence.conversions), "
    "or compare the signals themselves with compare or effective_angle"
)
#: From the least to the most dependent on coordinates.
_ORDER = (GaugeStatus.INVARIANT, GaugeStatus.COVARIANT, GaugeStatus.RAW_ONLY)


def check_comparable(a: Evidence, b: Evidence) -> None:
    """Refuse a numeric comparison that the gauge or the units forbid.

    Parameters
    ----------
    a, b : Evidence

    Raises
    ------
    GaugeError
        If the units differ; or, for two signals, if either is ``RAW_ONLY``, either is
        ``COVARIANT`` and they name no common frame, or anything is in reward units. The message
        names the way out. Two evidences of one signal fingerprint share coordinates and scale.
    """
    for name, (one, other) in _units(a, b).items():
        if one is not other:
            raise GaugeError(
                f"{_named(a)} and {_named(b)}: {name} is in units of {one.value} in one and "
                f"{other.value} in the other; bring both to the same units first"
            )
    if a.subject.signal == b.subject.signal:
        return
    both = f"{_named(a)} is of signal {a.subject.signal}, {_named(b)} of {b.subject.signal}"
    gauge = worse_gauge(a.gauge, b.gauge)
    if gauge is GaugeStatus.RAW_ONLY:
        raise GaugeError(
            f"{both}: raw coordinates of two models have nothing to do with each other (gauge raw "
            f"only). Show both side by side, or compare what the signals do: effective_angle or "
            f"compare on the same pairs"
        )
    if gauge is GaugeStatus.COVARIANT:
        _check_frame(a, b, both)
    for name, (one, _) in _units(a, b).items():
        if one is Units.REWARD:
            raise GaugeError(
                f"{both}: {name} is in reward units, which every model has its own scale (and "
                f"shift per prompt) of. Show both side by side, or {_WAY_OUT}"
            )


def difference(a: Evidence, b: Evidence) -> Evidence:
    """Evidence of ``a − b``, entry by entry, where the gate lets it through.

    Parameters
    ----------
    a, b : Evidence
        Of the same instrument, tier and data, with the same dimensions and labels.

    Returns
    -------
    Evidence
        Float64, instrument ``"difference"``, with both as parents. It has no intervals: those of
        ``a`` and ``b`` were made from the same rows and cannot be put together.

    Raises
    ------
    GaugeError
        As :func:`check_comparable`.
    EvidenceError
        If they measure different things; says what differs.
    """
    check_comparable(a, b)
    _check_same_question(a, b)
    left, right = (e.value.astype(np.float64) for e in (a, b))
    shared = {k: c for k, c in left.coords.items() if k in right.coords and c.equals(right[k])}
    value = xr.DataArray(
        left.values - right.values,
        dims=left.dims,
        coords=shared,
        name=f"difference of {left.name}",
    )
    return dataclasses.replace(
        a,
        value=value,
        instrument="difference",
        version="1",
        subject=_joint_subject(a, b),
        gauge=worse_gauge(a.gauge, b.gauge),
        provenance=_joint_provenance(a, b),
        uncertainty=(),
        tables={},
        calibration=None,
    )


def worse_gauge(a: GaugeStatus, b: GaugeStatus) -> GaugeStatus:
    """The one that depends more on coordinates."""
    return max(a, b, key=_ORDER.index)


def _check_frame(a: Evidence, b: Evidence, both: str) -> None:
    frames = (a.subject.frame, b.subject.frame)
    if frames[0] is not None and frames[0] == frames[1]:
        return
    said = " and ".join("no frame" if f is None else f"frame {f}" for f in frames)
    raise GaugeError(
        f"{both}: what depends on coordinates (gauge covariant) can only be compared in one common "
        f"frame, and these are in {said}. Fit one with reward_lens.geometry.fit_frame on a shared "
        f"corpus and measure both in it"
    )


def _units(a: Evidence, b: Evidence) -> dict[str, tuple[Units, Units]]:
    """What is subtracted -> its units in both; by quantity where the value has that dimension."""

    def by_name(e: Evidence) -> dict[str, Units]:
        if "quantity" not in e.value.dims:
            return {str(e.value.name): e.units}
        return {str(q): e.quantity_units.get(str(q), e.units) for q in e.value["quantity"].values}

    one, other = by_name(a), by_name(b)
    return {k: (one[k], other[k]) for k in one if k in other} or {
        str(a.value.name): (a.units, b.units)
    }


def _check_same_question(a: Evidence, b: Evidence) -> None:
    """Refuse a difference of things that are not two answers to one question."""
    for what, one, other in (
        ("tier", a.tier.value, b.tier.value),
        ("instrument", f"{a.instrument} v{a.version}", f"{b.instrument} v{b.version}"),
        ("value", a.value.name, b.value.name),
        ("data", a.subject.data, b.subject.data),
        ("dimensions", a.value.dims, b.value.dims),
        ("shape", a.value.shape, b.value.shape),
    ):
        if one != other:
            raise EvidenceError(
                f"{_named(a)} and {_named(b)} do not answer the same question: {what} "
                f"{one!r} and {other!r}"
            )
    for dim in a.value.dims:
        one, other = a.value.coords.get(dim), b.value.coords.get(dim)
        if (one is None) != (other is None) or (one is not None and not one.equals(other)):
            raise EvidenceError(
                f"{_named(a)} and {_named(b)}: their labels along {dim!r} differ; select the ones "
                f"they share from .value, or measure both on the same"
            )


def _joint_subject(a: Evidence, b: Evidence) -> Subject:
    one, other = a.subject, b.subject
    return Subject(
        signal=either(one.signal, other.signal),
        data=one.data,
        readout=either(one.readout, other.readout),
        interventions=tuple(dict.fromkeys((*one.interventions, *other.interventions))),
        frame=one.frame,
        notes={"a": one.notes, "b": other.notes},
    )


def _joint_provenance(a: Evidence, b: Evidence) -> Provenance:
    one, other = a.provenance, b.provenance
    return Provenance(
        versions={k: either(v, other.versions.get(k, v)) for k, v in one.versions.items()},
        dtype=either(one.dtype, other.dtype),
        device=either(one.device, other.device),
        kernel=either(one.kernel, other.kernel),
        parents=(a.id, b.id),
        parameters={"instrument": a.instrument, "minuend": a.id, "subtrahend": b.id},
    )


def either(one: str, other: str) -> str:
    """One word for both, where they agree; else both."""
    return one if one == other else f"{one} and {other}"


def _named(e: Evidence) -> str:
    return f"{e.instrument} ({e.id[:13]})"
