"""The three files of a page: itself, every number behind it, and every pair that was scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from reward_lens import __version__
from reward_lens.data import Pairs
from reward_lens.errors import DataError
from reward_lens.evidence import Evidence, with_all_parents, write_jsonl
from reward_lens.report import Page, write_page
from reward_lens.report.comparison import write_comparison as write_compared_page
from reward_lens.report.comparison_pairs import write_compared
from reward_lens.report.comparison_parts import Models
from reward_lens.report.folders import followed
from reward_lens.report.sidecar import is_sidecar, write_sidecar
from reward_lens.wording import counted, cut_note

if TYPE_CHECKING:
    from reward_lens.auditing import Audit
    from reward_lens.comparing import Comparison
    from reward_lens.signals import SignalMeta

#: Endings of a page.
PAGES = (".html", ".htm")
#: Ids of pairs left out that the page names.
_NAMED = 5


@contextmanager
def _refused(page: Path) -> Iterator[None]:
    """What the file system says of a name, as a refusal of the page."""
    try:
        yield
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{page} cannot be written: {error}") from error


@contextmanager
def _said(files: PageFiles) -> Iterator[None]:
    """A full disk is no fault of the program."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{files.report} could not be written: {error}") from error


@dataclass(frozen=True)
class PageFiles:
    """Where a page is, and what lies beside it.

    Attributes
    ----------
    report : Path
        The page.
    evidence : Path
        Every number on it and many more, as JSON lines.
    scored_pairs : Path
        Every pair with its texts and scores, as JSON lines.
    """

    report: Path
    evidence: Path
    scored_pairs: Path

    @classmethod
    def beside(cls, page: Path) -> PageFiles:
        """Their names, whether or not they can be written.

        Raises
        ------
        DataError
            If the page is a folder, or no file can have such a name.
        """
        with _refused(page):
            if page.is_dir():
                raise DataError(f"{page} is a folder; name another output")
            return cls(page, page.with_suffix(".evidence.jsonl"), page.with_suffix(".pairs.jsonl"))

    @classmethod
    def of(cls, report: str | PathLike[str]) -> PageFiles:
        """Name them after the page.

        Raises
        ------
        DataError
            If no browser would open a page of that name, its folder is not there or cannot be
            written to, one of the names is a folder's, or pairs stand there that no page wrote.
        """
        page = Path(report)
        found = cls.beside(page)
        with _refused(page):
            if page.suffix.lower() not in PAGES:
                raise DataError(f"{page}: a report is a page; end it in .html")
            if not page.parent.is_dir():
                raise DataError(f"{page}: there is no folder {page.parent}")
            for path in vars(found).values():
                if path.is_dir():
                    raise DataError(f"{path} is a folder; name another output")
                _try_to_write(path)
            if found.scored_pairs.is_file() and not is_sidecar(found.scored_pairs):
                raise DataError(
                    f"{found.scored_pairs} would be replaced, and no page wrote it: name another "
                    f"output, or move it"
                )
        return found


def write_audit(
    found: Audit,
    report: str | PathLike[str],
    *,
    command: str,
    title: str | None = None,
    notes: Sequence[str] | str = (),
) -> PageFiles:
    """Write the page of an audit; see :meth:`reward_lens.auditing.Audit.write`."""
    files, m = PageFiles.of(report), found.meta
    notes = [notes] if isinstance(notes, str) else notes
    scores = found["preference"]
    facts = (
        f"{m.architecture}, {m.n_layers} layers of width {m.width}, {m.dtype} on {m.device}, "
        f"{m.kernel} attention; {_form(m)}; head {m.head}, read at {_place(m)}; readout "
        f"{_readout(scores)}"
    )
    cut = cut_note(scores, m)
    page = Page(
        title=title or followed(m.source).name,
        facts=facts,
        data=_data(found.pairs),
        written=_written(),
        command=command,
        evidence_file=files.evidence.name,
        notes=(*notes, *_left_out(found.left_out), *([f"{cut}."] if cut else []), *found.notes,
               *_not_offered(found.not_offered), *m.notes),
        missing=found.missing,
        sidecar=files.scored_pairs.name,
    )  # fmt: skip
    with _said(files):
        write_jsonl(files.evidence, with_all_parents(found.evidence.values()))
        write_sidecar(files.scored_pairs, found.pairs, scores)
        write_page(files.report, page, found.evidence, found.pairs)
    return files


def write_comparison(found: Comparison, report: str | PathLike[str], *, command: str) -> PageFiles:
    """Write the page of two models; see :meth:`reward_lens.comparing.Comparison.write`."""
    files = PageFiles.of(report)
    facts = "; ".join(
        f"{letter}: {name}, {f['architecture']}, {f['layers']} layers of width {f['width']}"
        for letter, name, f in zip("ab", found.names, found.facts, strict=True)
    )
    page = Page(
        title=" against ".join(found.names),
        facts=facts,
        data=_data(found.pairs),
        written=_written(),
        command=command,
        evidence_file=files.evidence.name,
        notes=found.notes,
        missing={**found.missing, **found.not_offered},
        sidecar=files.scored_pairs.name,
        kind="comparison",
    )
    models = Models(found.names, found.facts)
    with _said(files):
        write_jsonl(files.evidence, with_all_parents(found.evidence.values()))
        write_compared(files.scored_pairs, found.pairs, found["compare"])
        write_compared_page(files.report, page, models, found.evidence, found.pairs, found.left_out)
    return files


def _try_to_write(path: Path) -> None:
    """Find out now, before anything is measured, whether a file of that name can be written."""
    partial = path.with_name(path.name + ".part")
    there = partial.exists()
    with partial.open("ab"):
        pass
    if not there:
        partial.unlink()


def _data(pairs: Pairs) -> str:
    """How many pairs, lineages and, where they are named, subsets."""
    said = f"{counted(len(pairs), 'pair')} of {counted(len(set(pairs.lineages)), 'lineage')}"
    subsets = pairs.subset_counts
    return said if set(subsets) == {""} else f"{said} in {counted(len(subsets), 'subset')}"


def _written() -> str:
    return f"Written on {date.today().isoformat()} by reward-lens {__version__}"


def _left_out(left_out: dict[str, str]) -> list[str]:
    if not left_out:
        return []
    were = "was" if len(left_out) == 1 else "were"
    more = " and more" if len(left_out) > _NAMED else ""
    named = ", ".join(list(left_out)[:_NAMED])
    return [f"{counted(len(left_out), 'over-long pair')} {were} left out: {named}{more}."]


def _place(meta: SignalMeta) -> str:
    """Where the head reads, in words."""
    from reward_lens.backbone.reading import RULES  # with torch, which a refusal need not wait for

    return RULES[meta.reads if meta.position == "native" else meta.position]


def _form(meta: SignalMeta) -> str:
    return "question and answer as a text pair" if meta.template == "pair" else meta.template


def _readout(evidence: Evidence) -> str:
    note = evidence.subject.notes.get("readout_note")
    return f"{evidence.subject.readout} ({note})" if note else evidence.subject.readout


def _not_offered(not_offered: dict[str, str]) -> list[str]:
    """One note a reason."""
    by_reason: dict[str, list[str]] = {}
    for name, why in not_offered.items():
        by_reason.setdefault(why.removeprefix(f"{name}: "), []).append(name)
    return [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not offered on this model: {why}"
        for why, names in by_reason.items()
    ]
