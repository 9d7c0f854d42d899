"""Evidence to one self-contained HTML page: opens from a file, no network, nothing loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, Template
from markupsafe import Markup

from reward_lens.data import Pairs
from reward_lens.evidence import Evidence
from reward_lens.report.browser_data import BrowserData, Budgets, browser_data, fitting
from reward_lens.report.folders import by_folder, sources_of
from reward_lens.report.numbers import Numbers, TracedTable
from reward_lens.report.parts import Cell, Section
from reward_lens.report.receipts import Receipts
from reward_lens.report.sections import build_sections, summary

#: The section that the pair browser stands in.
PAIRS = "pairs"
_SCRIPTS = ("pair_browser.js", "page.js")  # the second begins what the first defines
#: What of a line of the script only a person needs: its indent, and a comment that fills it.
_MARGIN = re.compile(r"^\s*(//.*\n)?", re.MULTILINE)
#: Of a page with its pairs, less their search and links: 500 kB can be sent round by mail. What the
#: rest of the page takes is not there for pairs.
MOST_BYTES = 490_000


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
    sidecar : str
        Name of the file beside it with all pairs that were scored; empty where there is none.
    kind : str
        What the page is, in a word or two.
    data, written : str
        Of how many pairs it is; when it was written, and by what.
    """

    title: str
    facts: str
    command: str
    evidence_file: str
    notes: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    sidecar: str = ""
    kind: str = "audit"
    data: str = ""
    written: str = ""


def render(page: Page, evidence: Mapping[str, Evidence], pairs: Pairs) -> str:
    """Return the page of an audit.

    Parameters
    ----------
    evidence : mapping of str to Evidence
        By name, as :func:`~reward_lens.audit` returns it.
    pairs : Pairs
        All that were scored; the texts of some of them are on the page.

    Raises
    ------
    EvidenceError
        If a pair was not scored.
    """
    number = Numbers(evidence)
    return compose(
        page,
        evidence,
        summary(evidence, number),
        build_sections(evidence, number, page.missing),
        lambda budgets: browser_data(evidence, pairs, sidecar=page.sidecar, budgets=budgets),
    )


def compose(
    page: Page,
    evidence: Mapping[str, Evidence],
    answers: Sequence[tuple[str, Cell]],
    sections: Sequence[Section],
    browser: Callable[[Budgets], BrowserData] | None = None,
) -> str:
    """Return a page of any first screen, sections and pairs; the receipts are the evidence's.

    Parameters
    ----------
    evidence : mapping of str to Evidence
        Whose receipts and costs are printed, by name.
    answers : sequence of (str, str or Markup)
        Question and answer, for the first screen.
    sections : sequence of Section
        The one with the id :data:`PAIRS` gets the pair browser; it is added where it is missing.
    browser : callable, optional
        Makes what the pair browser shows from the budgets that the rest of the page leaves of
        :data:`MOST_BYTES`; there is no browser without it.
    """
    data, block = None, ""
    if browser is not None:
        rest = len(compose(page, evidence, answers, sections).encode())
        data, block = fitting(browser, MOST_BYTES - rest)
    if data is not None and all(s.id != PAIRS for s in sections):
        sections = [*sections, Section(PAIRS, "Pairs")]
    sources = sources_of(evidence)
    return _template().render(
        page=page,
        css=_text("page.css"),
        script=Markup("").join(Markup(_MARGIN.sub("", _text(name))) for name in _SCRIPTS),
        browser_section=PAIRS,
        summary=answers,
        sections=sections,
        browser_data=block,
        embedded=set() if data is None else {pair["id"] for pair in data.pairs},
        traced_table=TracedTable.of,
        by_folder=lambda text: by_folder(text, sources),
        with_content=with_content,
        told=told,
        receipts=Receipts.of(evidence),
        costs=[(name, f"{e.provenance.cost_forwards:.0f}") for name, e in evidence.items()],
        forwards=sum(e.provenance.cost_forwards for e in evidence.values()),
    )


def with_content(
    head: Sequence[str], rows: Sequence[Sequence[object]]
) -> tuple[list[str], list[list[object]]]:
    """Leave out the columns that are empty in every row."""
    kept = [k for k in range(len(head)) if not rows or any(str(row[k]) for row in rows)]
    return [head[k] for k in kept], [[row[k] for k in kept] for row in rows]


def told(pair: str, subset: str) -> bool:
    """Whether an id begins with its subset, which then need not be said beside it."""
    rest = pair.removeprefix(subset)
    return bool(subset) and rest != pair and not rest[:1].isalnum()


def _text(name: str) -> Markup:
    """A file of this room, as it stands."""
    return Markup(files(__package__).joinpath(name).read_text("utf-8"))


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_text("page.html.j2"))


def write_page(path: Path, page: Page, evidence: Mapping[str, Evidence], pairs: Pairs) -> None:
    """Write the page of an audit; it appears whole or not at all."""
    write_whole(path, render(page, evidence, pairs))


def write_whole(path: Path, text: str) -> None:
    """Write a file that appears whole or not at all."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
