"""How far each number can be leaned on: the rungs that a store's records support, and why."""

from __future__ import annotations

from collections.abc import Mapping

from reward_lens.evidence import Evidence, Standing, TrustLevel
from reward_lens.report.parts import Cell, Section, Table

_PLAIN = (
    "Exploratory means that no planted rule has shown that the instrument finds what it should on "
    "this model: leads, not findings."
)


def trust_answer(evidence: Mapping[str, Evidence]) -> str:
    """The lowest rung of all numbers, and which instruments stand higher or failed."""
    standings = {name: e.standing for name, e in evidence.items()}
    lowest = min(s.level for s in standings.values()).name.lower()
    said = [f"The lowest trust of any number here is {lowest}."]
    above = [n for n, s in standings.items() if s.level > TrustLevel.EXPLORATORY]
    failed = [n for n, s in standings.items() if s.failed]
    if above:
        said.append(
            f"Calibrated or higher: {', '.join(above)}. There the instrument finds planted rules "
            f"on this model, and it reads something as large."
        )
    if failed:
        said.append(
            f"FAILED on planted rules on this model: {', '.join(failed)}. Do not lean on what it "
            f"says here."
        )
    return " ".join([*said, _PLAIN])


def standings_section(evidence: Mapping[str, Evidence]) -> Section | None:
    """Every rung with its reasons; nothing where no evidence is in a store."""
    rows = [_row(name, e.standing) for name, e in evidence.items() if e.has_store]
    if not rows:
        return None
    head = ["measured", "trust", "readings above the detection dose", "why"]
    return Section(
        "trust",
        "How far can it be trusted?",
        [
            "Computed from the records of an evidence store. A reading is calibrated if the "
            "instrument found rules that were planted in this model, took few models without one "
            "for such, and reads an effect here as large as the rules that it finds. Sizes are in "
            "standard deviations of the margin."
        ],
        tables=[Table("Trust, and why", head, rows, open=True)],
    )


def _row(name: str, standing: Standing) -> list[Cell]:
    readings = len(standing.above) + len(standing.below)
    above = f"{len(standing.above)} of {readings}" if readings else ""
    return [name, standing.name, above, "; ".join(standing.because)]
