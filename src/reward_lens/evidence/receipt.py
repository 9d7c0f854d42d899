"""The receipt: in plain words, what was measured and how far it can be leaned on."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

from reward_lens.evidence.kinds import GaugeStatus, TrustLevel, Units

if TYPE_CHECKING:
    from reward_lens.evidence.record import Evidence, Interval

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
_TRUST = {
    TrustLevel.EXPLORATORY: "nothing has checked this instrument on this model: a lead, no finding",
    TrustLevel.CALIBRATED: "the instrument recovers planted rules of this size on this model",
    TrustLevel.REGISTERED: "the expectation was stored before the data was measured",
    TrustLevel.ADJUDICATED: "the registered expectation held",
}


def receipt(evidence: Evidence) -> str:
    """Say what was measured, on what, how surely, and what it licenses the reader to say."""
    return "\n".join(f"{name}: {text}" for name, text in lines(evidence))


def lines(evidence: Evidence) -> list[tuple[str, str]]:
    """The receipt as (heading, text) lines."""
    e, p, s = evidence, evidence.provenance, evidence.subject
    shape = " × ".join(f"{n} {d}" for d, n in e.value.sizes.items())
    facts = ", ".join(f"{k} {v}" for k, v in sorted(s.notes.items()) if k != "readout_note")
    said = [
        ("measured", f"{e.instrument} v{e.version}, {e.tier.value}: {e.value.name} ({shape})"),
        ("subject", f"signal {s.signal}, data {s.data}, readout {s.readout}; {facts}"),
    ]
    if "readout_note" in s.notes:
        said.append(("note", f"the readout is a {s.notes['readout_note']}"))
    if s.interventions:
        said.append(("interventions", ", ".join(s.interventions)))
    said += [(f"result {i.name}", interval_text(i)) for i in e.uncertainty]
    ran = ", ".join(f"{k} {v}" for k, v in p.versions.items())
    where = f"{p.dtype} on {p.device}, {p.kernel} attention; {ran}"
    settings = ", ".join(f"{k}={v}" for k, v in p.parameters.items())
    return [
        *said,
        ("gauge", f"{e.gauge.value}: {_GAUGE[e.gauge]}"),
        ("units", f"{e.units.value}: {_UNITS[e.units]}"),
        ("trust", f"{e.trust.name.lower()}: {_TRUST[e.trust]}"),
        ("circumstances", where),
        ("parameters", settings or "none"),
        ("cost", f"{p.cost_forwards:g} forwards"),
        ("id", e.id),
    ]


def interval_text(i: Interval) -> str:
    """One interval in a line: estimate, range, rows and independent rows, and any doubt."""
    if math.isnan(i.low):
        span = "no interval"
    else:
        span = f"{i.level:.0%} interval {i.low:.4g} to {i.high:.4g}"
    note = f"; {i.note}" if i.note else ""
    size = f"n = {i.n} in {i.clusters} lineages, worth {i.n_effective:.4g} independent"
    return f"{i.estimate:.4g}, {span} ({i.method}, {size}{note})"


def as_html(evidence: Evidence) -> str:
    """The receipt as a table above the array, for notebooks."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(k)}</th>"
        f"<td style='text-align:left'>{html.escape(v)}</td></tr>"
        for k, v in lines(evidence)
    )
    return f"<table>{rows}</table>{evidence.value._repr_html_()}"  # type: ignore[no-untyped-call]
