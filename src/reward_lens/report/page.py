"""Evidence to one self-contained HTML page: opens from a file, no network, no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from reward_lens.data import Pairs
from reward_lens.evidence import Evidence
from reward_lens.evidence.receipt import lines as receipt_lines
from reward_lens.report.numbers import Numbers
from reward_lens.report.sections import Section, build_sections, summary


@dataclass(frozen=True)
class Page:
    """What a page is made of besides the evidence.

    Attributes
    ----------
    title, facts : str
        Name of the model, and a line about it.
    notes : sequence of str
        What a reader must know first: random weights, a demo, pairs left out.
    command : str
        What made the page.
    evidence_file : str
        Name of the file with the evidence beside it.
    missing : mapping of str to str
        Instrument -> why it did not run.
    """

    title: str
    facts: str
    command: str
    evidence_file: str
    notes: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


def render(page: Page, evidence: Mapping[str, Evidence], shown: Pairs) -> str:
    """Return the page.

    Parameters
    ----------
    evidence : mapping of str to Evidence
        By name, as :func:`~reward_lens.audit` returns it.
    shown : Pairs
        Whose texts are on the page.
    """
    number = Numbers(evidence)
    sections: list[Section] = build_sections(evidence, shown, number, page.missing)
    costs = [(name, e.provenance.cost_forwards) for name, e in evidence.items()]
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    here = files(__package__)
    template = environment.from_string(here.joinpath("page.html.j2").read_text("utf-8"))
    values: dict[str, Any] = {
        "title": page.title,
        "facts": page.facts,
        "notes": page.notes,
        "command": page.command,
        "evidence_file": page.evidence_file,
        "css": Markup(here.joinpath("page.css").read_text("utf-8")),
        "summary": summary(evidence, number),
        "sections": sections,
        "costs": costs,
        "forwards": sum(cost for _, cost in costs),
        "receipts": [(name, receipt_lines(e)) for name, e in evidence.items()],
    }
    return template.render(values)


def write_page(path: Path, page: Page, evidence: Mapping[str, Evidence], shown: Pairs) -> None:
    """Write the page; it appears whole or not at all."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(render(page, evidence, shown), encoding="utf-8")
    partial.replace(path)
