"""Edits of how a response looks: markdown on and off, lists, bold, headings."""

from __future__ import annotations

import re

from reward_lens.data.edits_phrases import HEADINGS
from reward_lens.data.edits_prose import Prose, Sentence, boundary, pick, sentence_at

_BULLET = re.compile(r"\s*[-*+•]\s+$")
_IMAGE = re.compile(r"!?\[([^\]\n]*)\]\([^)\n]*\)")
#: Marks around words, longest first. A lone star between numbers is a product and stays.
_EMPHASIS = tuple(
    re.compile(rf"(?<![\w*_\\]){m}(?=[^\s*_])([^\n]*?[^\s*_\\]){m}(?![\w*_])")
    for m in (r"\*\*\*", r"\*\*", r"__", r"\*", r"_")
)
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


def markdown_off(prose: Prose, seed: int) -> str | None:
    """Take the marks off headings, list items, quotations and words; the words stay in order.

    Numbers of a numbered list stay: they are read aloud too. Fenced code and tables stay.
    """
    out = []
    for line in prose.lines:
        raw = prose.text[line.start : line.stop]
        if line.kind == "rule":
            continue
        if line.kind in ("verbatim", "blank"):
            out.append(raw)
            continue
        marker, words = raw[: line.content - line.start], raw[line.content - line.start :]
        if line.kind in ("heading", "quote") or _BULLET.match(marker):
            marker = ""
        out.append(marker + unmarked(words))
    return "\n".join(out)


def unmarked(words: str) -> str:
    """Take the marks off the words of one line."""
    words = _IMAGE.sub(r"\1", words)
    pieces = _CODE.split(words)  # what stands between backticks is not emphasis
    for k in range(0, len(pieces), 2):
        for marks in _EMPHASIS:
            pieces[k] = marks.sub(r"\1", pieces[k])
    return "".join(pieces)


def list_form(prose: Prose, seed: int) -> str | None:
    """Make every sentence of running text an item of a list; nothing with fewer than two.

    Not where the text is a list already.
    """
    if len(prose.plain) < 2 or any(s.kind == "item" for s in prose.sentences):
        return None
    return _listed(prose, prose.plain)


def markdown_on(prose: Prose, seed: int) -> str | None:
    """Write the first sentence in bold and make list items of the others.

    Not where the text has a list, a heading or bold words already.
    """
    first = sentence_at(prose, prose.plain, "start")
    marked = any(s.kind in ("item", "heading") for s in prose.sentences) or "**" in prose.text
    if marked or first is None or len(prose.plain) < 2 or not _can_be_bold(prose, first):
        return None
    return _listed(prose, prose.plain[1:], bold=first)


def _listed(prose: Prose, items: tuple[Sentence, ...], bold: Sentence | None = None) -> str:
    changes = []
    if bold is not None:
        changes += [(bold.start, bold.start, "**"), (bold.stop, bold.stop, "**")]
    before: Sentence | None = bold
    for s in items:
        # The space between two sentences of one line becomes the line's end.
        joined = before is not None and before.line == s.line
        start = before.stop if joined and before is not None else s.start
        gap = "\n\n" if before is bold else "\n"
        changes.append((start, s.start, f"{gap if joined else ''}- "))
        before = s
    return prose.replaced(changes)


def _can_be_bold(prose: Prose, sentence: Sentence) -> bool:
    words = prose.words(sentence)
    return bool(words) and not any(mark in words for mark in ("*", "`", "__"))


def bold(prose: Prose, position: str, seed: int) -> str | None:
    """Write the first, the middle or the last sentence in bold."""
    kinds = [s for s in prose.sentences if s.kind in ("plain", "item") and _can_be_bold(prose, s)]
    found = sentence_at(prose, kinds, position)
    if found is None:
        return None
    return prose.replaced([(found.start, found.stop, f"**{prose.words(found)}**")])


def heading(prose: Prose, position: str, seed: int) -> str | None:
    """Put a heading before the text, at its middle, or before its last sentence."""
    text = prose.text
    line = f"## {pick(HEADINGS[position], 'headings', position, seed, text)}"
    if position == "start":
        lead = len(text) - len(text.lstrip("\n"))
        return f"{text[:lead]}{line}\n\n{text[lead:]}"
    if position == "middle":
        after = boundary(prose)
        at = None if after is None else after.stop
    else:
        plain = prose.plain
        last = len(plain) > 1 and plain[-1] == prose.sentences[-1]
        at = plain[-2].stop if last else None
    if at is None:
        return None
    rest = text[at:].lstrip()
    return f"{text[:at]}\n\n{line}\n\n{rest}"
