"""How an audit shows itself: one row an evidence, in a terminal and in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from reward_lens.evidence.pictures import clip
from reward_lens.evidence.showing import LEFT, size_of, table

if TYPE_CHECKING:
    from reward_lens.auditing import Audit

_HEAD = ("evidence", "n", "trust", "forwards")
#: Characters of a reason; reasons and notes that are shown.
_REASON, _MOST = 100, 4


def in_terminal(audit: Audit) -> str:
    """Every evidence with its size, trust and cost; what is missing, and why, in short."""
    rows = [_HEAD, *_rows(audit)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(_HEAD))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return (
        "\n".join([f"<{_title(audit)}", *(f"  {x}".rstrip() for x in [*lines, *_said(audit)])])
        + ">"
    )


def in_notebook(audit: Audit) -> str:
    """The same as a table."""
    head = "".join(f"<th style='{LEFT}'>{name}</th>" for name in _HEAD)
    body = (
        "".join(f"<td style='{LEFT}'>{escape(cell)}</td>" for cell in row) for row in _rows(audit)
    )
    said = "".join(f"<div>{escape(line)}</div>" for line in _said(audit))
    rows = table(f"<tr>{row}</tr>" for row in (head, *body))
    return f"<div><strong>{escape(_title(audit))}</strong>{rows}{said}</div>"


def _title(audit: Audit) -> str:
    checks = "conformance passed" if audit.conformance.passed else "conformance FAILED"
    n = len(audit.pairs)
    of = "pair" if n == 1 else "pairs"
    return (
        f"Audit of {clip(audit.conformance.signal, _REASON)}: {checks}, {n} {of}, "
        f"{audit.forwards:.0f} forwards"
    )


def _rows(audit: Audit) -> list[tuple[str, ...]]:
    return [
        (clip(name, 40), size_of(e), e.standing.name, f"{e.provenance.cost_forwards:.0f}")
        for name, e in audit.evidence.items()
    ]


def _said(audit: Audit) -> list[str]:
    """What a reader would not see in the rows."""
    failed = audit.conformance.failed
    lines = [f"FAILED checks: {clip(', '.join(failed), _REASON)}"] if failed else []
    for what, reasons in (("did not run", audit.missing), ("not offered", audit.not_offered)):
        shown = list(reasons.items())[:_MOST]
        lines += [f"{what}: {name}: {clip(why, _REASON)}" for name, why in shown]
        if len(reasons) > _MOST:
            lines.append(f"{what}: and {len(reasons) - _MOST} more")
    counts = {
        ("pair left out, .left_out", "pairs left out, .left_out"): len(audit.left_out),
        ("note, .notes", "notes, .notes"): len(audit.notes),
        ("of them from the store, .resumed",) * 2: len(audit.resumed),
    }
    said = [f"{n} {words[n > 1]}" for words, n in counts.items() if n]
    return [*lines, *(["; ".join(said)] if said else [])]
