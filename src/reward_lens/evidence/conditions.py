"""Under which conditions a scorecard speaks of an evidence."""

from __future__ import annotations

from typing import Any

from reward_lens.evidence.record import Evidence

#: What an evidence of an organism says was done to its signal begins with this.
PLANTED = "planted "

#: Parameters that say how a measurement is carried out, or which rows of it are looked at, but not
#: what a row means.
INERT = frozenset({
    "batch_tokens", "executor", "sample", "layers", "components", "senders", "receivers", "top",
})  # fmt: skip


def observables(evidence: Evidence) -> dict[str, Any]:
    """What a scorecard and an evidence must have in common beside instrument, model and size.

    Every parameter but the inert ones (:data:`INERT`), the token that was read, the interventions
    but planted rules (a card speaks of organisms of the model as of the model itself: they are what
    it was made on), and the frame. Numbers and sequences are compared as they are.
    """
    s = evidence.subject
    found = {k: v for k, v in evidence.provenance.parameters.items() if k not in INERT}
    found |= {"position": s.notes.get("position"), "frame": s.frame}
    planted = plants_in(evidence)
    return {**found, "interventions": tuple(i for i in s.interventions if i not in planted)}


def plants_in(evidence: Evidence) -> list[str]:
    """What an evidence says was planted in its signal."""
    return [i for i in evidence.subject.interventions if i.startswith(PLANTED)]


def n_of(evidence: Evidence) -> int:
    """Pairs, or items, that an evidence is of; 0 if its value has neither dimension."""
    sizes = evidence.value.sizes
    return int(sizes.get("pair", sizes.get("item", 0)))
