"""The receipt: in plain words, what was measured and how far it can be leaned on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from reward_lens.evidence.kinds import GaugeStatus, Units

if TYPE_CHECKING:
    from reward_lens.evidence.parts import Interval, Provenance, Subject
    from reward_lens.evidence.record import Evidence
    from reward_lens.evidence.standing import Standing

_GAUGE = {
    GaugeStatus.INVARIANT: "does not depend on the coordinates of the model's states",
    GaugeStatus.COVARIANT: "comparable across models only in a common frame",
    GaugeStatus.RAW_ONLY: "says nothing outside this model's own coordinates",
}
_UNITS = {
    Units.REWARD: (
        "a reward is fixed only up to its scale and a shift per prompt, so these numbers are not "
        "comparable between models"
    ),
    Units.SHARE: "a share of this model's own margin",
    Units.RANK: "an order; free of scale and shift",
    Units.ANGLE: "an angle; free of scale and shift",
    Units.PROBABILITY: "a probability under the model's own scale",
}


def receipt(evidence: Evidence) -> str:
    """Say what was measured, on what, how surely, and what it licenses the reader to say."""
    return "\n".join(f"{name}: {text}" for name, text in lines(evidence))


def lines(evidence: Evidence) -> list[tuple[str, str]]:
    """The receipt as (heading, text) lines."""
    e = evidence
    shape = " × ".join(f"{n} {d}" for d, n in e.value.sizes.items()) or "one number"
    return [
        ("measured", f"{e.instrument} v{e.version}, {e.tier.value}: {e.value.name} ({shape})"),
        *_subject(e.subject),
        *_results(e),
        ("gauge", f"{e.gauge.value}: {_GAUGE[e.gauge]}"),
        ("units", f"{e.units.value}: {_UNITS[e.units]}"),
        *((f"units of {q}", f"{u.value}: {_UNITS[u]}") for q, u in e.quantity_units.items()),
        *_trust(e.standing),
        *([("calibration", e.calibration)] if e.calibration is not None else []),
        *_circumstances(e.provenance),
        ("id", e.id),
    ]


def _subject(s: Subject) -> list[tuple[str, str]]:
    facts = "".join(
        f"; {k} {_one_line(v)}" for k, v in sorted(s.notes.items()) if k != "readout_note"
    )
    said = [("subject", f"signal {s.signal}, data {s.data}, readout {s.readout}{facts}")]
    if "readout_note" in s.notes:
        said.append(("note", f"readout: {s.notes['readout_note']}"))
    if s.interventions:
        said.append(("interventions", ", ".join(s.interventions)))
    if s.frame is not None:
        said.append(("frame", s.frame))
    return said


def _results(e: Evidence) -> list[tuple[str, str]]:
    if e.uncertainty:
        return [(f"result {i.name}", interval_text(i)) for i in e.uncertainty]
    if e.value.ndim == 0:
        number = e.value.item()
        shown = f"{number:.4g}" if isinstance(number, float) else str(number)
        return [("result", f"{shown}, stated without an interval")]
    return [("result", "the array; no summary of it was made, so there is no interval")]


def _trust(standing: Standing) -> list[tuple[str, str]]:
    return [
        ("trust", f"{standing.level.name.lower()}: {standing.meaning}"),
        *(("because", why) for why in standing.because),
        ("you may say", standing.licence),
    ]


def _circumstances(p: Provenance) -> list[tuple[str, str]]:
    ran = "".join(f"; {k} {v}" for k, v in sorted(p.versions.items()))
    said = [("circumstances", f"{p.dtype} on {p.device}, {p.kernel} attention{ran}")]
    if p.seeds:
        said.append(("seeds", ", ".join(map(str, p.seeds))))
    if p.parents:
        said.append(("computed from", ", ".join(p.parents)))
    settings = ", ".join(f"{k}={_one_line(v)}" for k, v in sorted(p.parameters.items()))
    return [
        *said,
        ("parameters", settings or "none"),
        ("cost", f"{p.cost_forwards:g} forwards"),
    ]


def _one_line(value: object) -> str:
    """A setting as it is, with line breaks escaped so that the receipt keeps a fact a line."""
    return "\\n".join(str(value).splitlines())


def interval_text(i: Interval) -> str:
    """One interval in a line: estimate, range, rows and independent rows, and any doubt."""
    if math.isnan(i.low):
        span = "no interval"
    else:
        span = f"{100 * i.level:g}% interval {i.low:.4g} to {i.high:.4g}"
    note = f"; {i.note}" if i.note else ""
    size = f"n = {i.n} in {i.clusters} lineages, worth {i.n_effective:.4g} independent"
    return f"{i.estimate:.4g}, {span} ({i.method}, {size}{note})"
