"""Where the sentences of a response are, so that an edit never cuts a word or touches code.

Plain rules on lines and punctuation: no model decides, so the same text is always read the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_VERBATIM = re.compile(r"(?: {4}|\t|\s*\|)")
_RULE = re.compile(r"\s*(?:-{3,}|\*{3,}|_{3,}|={3,})\s*$")
_MARKER = re.compile(
    r"\s*(?:(?P<heading>#{1,6}\s+)|(?P<item>(?:[-*+•]|\d{1,3}[.)])\s+)|(?P<quote>>\s?))"
)
#: After what ends a sentence, before what begins one.
_BREAK = re.compile(
    r"(?<=[.!?…])[\"'”’)\]*_]*(?P<space>\s+)(?=[\"'“‘(\[*_$]*[A-Z0-9À-ÖØ-Þ])|(?<=[。！？])(?=[^\s。！？])"
)
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|cf|e\.g|i\.e|No|Fig|Eq|approx|[A-Z]|\d{1,2})\.$"
)
PARAGRAPH = "\n\n"
#: What ends a sentence, with the closing marks behind it.
FINAL = re.compile(r"[.!?…。！？]+[\"'”’)\]*_]*$")
#: Inline code, mathematics and addresses, which are not words to change.
QUOTED = re.compile(r"`[^`\n]+`|\$[^$\n]+\$|https?://\S+|\S+@\S+|\S*[_\\/]\S*")


@dataclass(frozen=True)
class Sentence:
    """One sentence in a text: ``text[start:stop]``, in a line ``text[line[0]:line[1]]``.

    Attributes
    ----------
    kind : {"plain", "item", "heading", "quote"}
        Of its line; ``start`` lies behind the line's marker.
    """

    start: int
    stop: int
    kind: str
    line: tuple[int, int]


@dataclass(frozen=True)
class Line:
    """One line of a text: ``text[start:stop]`` without its end; ``content`` is where its words are.

    Attributes
    ----------
    kind : {"plain", "item", "heading", "quote", "verbatim", "blank", "rule"}
        ``verbatim`` is code (fences included), an indented line or a row of a table.
    """

    start: int
    stop: int
    content: int
    kind: str


class Prose:
    """A response as lines and sentences.

    Parameters
    ----------
    text : str
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Every line, in order."""
        out, start, fence = [], 0, ""
        for raw in self.text.split("\n"):
            stop = start + len(raw)
            mark = _FENCE.match(raw)
            if fence or mark:
                out.append(Line(start, stop, start, "verbatim"))
                if not fence and mark:
                    fence = mark[1]
                elif mark and mark[1].startswith(fence) and not raw[mark.end() :].strip():
                    fence = ""
            else:
                out.append(_line(raw, start, stop))
            start = stop + 1
        return tuple(out)

    @cached_property
    def sentences(self) -> tuple[Sentence, ...]:
        """Every sentence outside code and tables, in order."""
        return tuple(s for line in self.lines for s in self._split(line))

    @property
    def plain(self) -> tuple[Sentence, ...]:
        """The sentences of running text: no headings, list items and quotations."""
        return tuple(s for s in self.sentences if s.kind == "plain")

    @property
    def complete(self) -> tuple[Sentence, ...]:
        """The sentences of running text that have an end of their own: a full stop or the like."""
        return tuple(s for s in self.plain if FINAL.search(self.words(s)))

    def words(self, sentence: Sentence) -> str:
        """The text of a sentence."""
        return self.text[sentence.start : sentence.stop]

    def _split(self, line: Line) -> Iterable[Sentence]:
        if line.kind in ("verbatim", "blank", "rule"):
            return
        content = self.text[line.content : line.stop].rstrip()
        quoted = [m.span() for m in QUOTED.finditer(content)]
        start = 0
        for found in _BREAK.finditer(content):
            stop = found.start("space") if found["space"] else found.start()
            inside = any(a < stop < b for a, b in quoted)
            if inside or _ABBREVIATION.search(content[start:stop]):
                continue
            yield self._sentence(line, start, stop)
            start = found.end()
        yield self._sentence(line, start, len(content))

    @staticmethod
    def _sentence(line: Line, start: int, stop: int) -> Sentence:
        at = line.content
        return Sentence(at + start, at + stop, line.kind, (line.start, line.stop))

    def replaced(self, changes: Iterable[tuple[int, int, str]]) -> str:
        """The text with ``text[start:stop]`` replaced, for changes that do not overlap.

        Of two at the same place the one given first comes first.
        """
        parts, at = [], 0
        for start, stop, new in sorted(changes, key=lambda c: c[:2]):
            parts += [self.text[at:start], new]
            at = stop
        return "".join([*parts, self.text[at:]])


def _line(raw: str, start: int, stop: int) -> Line:
    if not raw.strip():
        return Line(start, stop, start, "blank")
    if _RULE.match(raw):
        return Line(start, stop, start, "rule")
    marker = _MARKER.match(raw)
    # A list may be indented as far as code is: its marker decides.
    if marker and marker.lastgroup and raw[marker.end() :].strip():
        return Line(start, stop, start + marker.end(), marker.lastgroup)
    if _VERBATIM.match(raw):
        return Line(start, stop, start, "verbatim")
    return Line(start, stop, start + len(raw) - len(raw.lstrip()), "plain")


def middle_of(sentences: Sequence[Sentence], text: str) -> Sentence | None:
    """Of the inner sentences the one whose middle lies nearest to the text's; the first of equals.

    ``None`` with fewer than three sentences.
    """
    inner = sentences[1:-1]
    half = len(text) / 2
    return min(inner, key=lambda s: abs((s.start + s.stop) / 2 - half)) if inner else None


def sentence_at(prose: Prose, sentences: Sequence[Sentence], position: str) -> Sentence | None:
    """The first, the middle or the last of some sentences of a text.

    ``None`` if there is none of its own: the only one is the first, and neither middle nor last.
    """
    if position == "middle":
        return middle_of(sentences, prose.text)
    if position == "start":
        return sentences[0] if sentences else None
    return sentences[-1] if len(sentences) > 1 else None


def boundary(prose: Prose) -> Sentence | None:
    """The complete sentence of running text whose end is nearest the middle, but not the last."""
    open_ = [s for s in prose.complete if s != prose.sentences[-1]]
    half = len(prose.text) / 2
    return min(open_, key=lambda s: abs(s.stop - half)) if open_ else None


def inserted(prose: Prose, new: str, position: str) -> str | None:
    """Put something of its own at the start, the middle or the end of a text.

    It joins sentences of running text with a space, and stands in a paragraph of its own before or
    after anything else (a sign without letters joins there too). White space at both ends stays
    where it is. ``None`` where the text has no boundary between two sentences to be its middle.
    """
    text = prose.text
    if position == "middle":
        after = boundary(prose)
        return None if after is None else prose.replaced([(after.stop, after.stop, f" {new}")])
    solid = [line for line in prose.lines if line.kind != "blank"]
    sign = not any(c.isalpha() for c in new)
    if position == "start":
        first = solid[0]
        at = first.content if first.kind == "plain" else first.start
        return f"{text[:at]}{new}{' ' if first.kind == 'plain' else PARAGRAPH}{text[at:]}"
    end = len(text.rstrip())
    joins = solid[-1].kind == "plain" and (sign or FINAL.search(text[:end]))
    return f"{text[:end]}{' ' if joins else PARAGRAPH}{new}{text[end:]}"


def pick(choices: Sequence[str], *key: object) -> str:
    """One of several texts, always the same one for the same key."""
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=8).digest()
    return choices[int.from_bytes(digest, "big") % len(choices)]
