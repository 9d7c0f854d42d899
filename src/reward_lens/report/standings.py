"""How far each number can be leaned on: the rungs that a store's records support, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reward_lens.evidence import Evidence, Standing
from reward_lens.report.parts import Cell, Section, Table, only_below, rung

_UNCHECKED = (
    "no planted rule has shown that the instrument finds what it should on this model. These are "
    "leads, not findings"
)


def trust_answer(evidence: Mapping[str, Evidence]) -> str:
    """What may be leaned on, and why the rest may not, in words.

    Numbers that are exploratory are so for one of three reasons, which are told apart: the
    instrument passed its scorecard and reads nothing as large as the rules that it finds; it failed
    its scorecard; or no scorecard speaks of it.
    """
    standings = {name: e.standing for name, e in evidence.items()}
    above = [n for n, s in standings.items() if s.above]
    below = {n: s for n, s in standings.items() if only_below(s)}
    failed = [n for n, s in standings.items() if s.failed]
    others = [n for n in standings if n not in {*above, *below, *failed}]
    said = []
    if above:
        said.append(
            f"Calibrated or higher: {_listed(above)}. There the instrument finds planted rules on "
            f"this model, and it reads something as large."
        )
    if below:
        sizes = "; ".join(f"{name} {under_the_limit(s)}" for name, s in below.items())
        said.append(
            f"Checked on planted rules and passed, but all that is read on these pairs is smaller "
            f"than what is found reliably (sizes in SDs of the margin): {sizes}. Such readings "
            f"stay exploratory."
        )
    if failed:
        said.append(
            f"FAILED on planted rules on this model: {_listed(failed)}. Do not lean on what it "
            f"says here."
        )
    if others:
        said.append(_never_checked(others, alone=not said))
    if not (above or below or failed):
        said.append("An audit with --calibrate finds out what the instruments can see here.")
    return " ".join(said)


def _never_checked(names: Sequence[str], *, alone: bool) -> str:
    if alone:
        return f"Every number here is exploratory: {_UNCHECKED}."
    return (
        f"Exploratory, since no scorecard that can be relied on speaks of it: {_listed(names)}. "
        f"There {_UNCHECKED}."
    )


def under_the_limit(standing: Standing) -> str:
    """What an instrument finds, and the largest that it reads, as the end of a sentence.

    Parameters
    ----------
    standing : Standing
        One whose readings are all below the detection dose.
    """
    dose = standing.detection_dose
    finds = "finds planted rules" + ("" if dose is None else f" of {dose:.2g} SD")
    return f"{finds}, its largest reading is {max(standing.below.values()):.2g} SD"


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
    return [name, rung(standing), above, "; ".join(standing.because)]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
