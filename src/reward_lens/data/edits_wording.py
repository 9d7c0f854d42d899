"""Edits of what a response says: added phrases, restating, cuts, typos, repetition, citations."""

from __future__ import annotations

import re

from reward_lens.data.edits_phrases import CITATIONS, EMOJI, PHRASES, RESTATING
from reward_lens.data.edits_prose import (
    FINAL,
    QUOTED,
    Prose,
    boundary,
    inserted,
    pick,
    sentence_at,
)

_WORD = re.compile(r"(?<![\w'’-])[a-z]{5,}(?![\w'’-])")
#: One word in so many has a typo.
_TYPO_EVERY = 4
#: Sentences that a restatement says again; at the end all of them.
_RESTATED = {"start": 2, "middle": 2}


def phrase(prose: Prose, name: str, position: str, seed: int) -> str | None:
    """Add one of the phrases of a tone at a place."""
    wordings = PHRASES[name][2]
    choices = wordings.get(position) or wordings["any"]
    return inserted(prose, pick(choices, name, seed, prose.text), position)


def emoji(prose: Prose, position: str, seed: int) -> str | None:
    """Add one emoji at a place."""
    return inserted(prose, pick(EMOJI, "emoji", seed, prose.text), position)


def restated(prose: Prose, position: str, seed: int) -> str | None:
    """Say again what the response says, announced as such.

    At the start the last two sentences, in the middle the two just before, at the end all. Of
    complete sentences of running text; nothing with fewer than two.
    """
    plain = prose.complete
    if len(plain) < 2:
        return None
    if position == "middle":
        after = boundary(prose)
        if after is None:
            return None
        plain = tuple(s for s in plain if s.stop <= after.stop)
    said = plain[-_RESTATED.get(position, len(plain)) :]
    again = " ".join(prose.words(s) for s in said)
    lead = pick(RESTATING[position], "restated", position, seed, prose.text)
    return inserted(prose, f"{lead} {again}", position)


def repeated(prose: Prose, position: str, seed: int) -> str | None:
    """Write the first, the middle or the last complete sentence of running text twice in a row."""
    found = sentence_at(prose, prose.complete, position)
    if found is None:
        return None
    return prose.replaced([(found.stop, found.stop, f" {prose.words(found)}")])


def trimmed(prose: Prose, position: str, seed: int) -> str | None:
    """Leave out the first, the middle or the last sentence; nothing with fewer than three.

    Not a heading, and not a sentence that announces what follows. A list item goes with its line.
    """
    those = [
        s
        for s in prose.sentences
        if s.kind in ("plain", "item") and not prose.words(s).endswith(":")
    ]
    found = sentence_at(prose, those, position) if len(those) > 2 else None
    if found is None:
        return None
    start, stop = found.start, found.stop
    if not any(s != found and s.line == found.line for s in prose.sentences):
        start, stop = found.line[0], min(found.line[1] + 1, len(prose.text))
        if not prose.text[stop:].strip():  # the last line goes with the line ends before it
            start, stop = len(prose.text[:start].rstrip()), len(prose.text.rstrip())
    else:
        last = not any(s.line == found.line and s.start > found.start for s in prose.sentences)
        if last:
            start = len(prose.text[:start].rstrip())
        else:
            stop = next(s.start for s in prose.sentences if s.start >= found.stop)
    return prose.replaced([(start, stop, "")])


def half(prose: Prose, seed: int) -> str | None:
    """Leave out the second half of the sentences of a response that is nothing but running text."""
    those, text = prose.sentences, prose.text
    if len(those) < 4 or any(line.kind not in ("plain", "blank") for line in prose.lines):
        return None
    keep = those[(len(those) + 1) // 2 - 1]
    end = len(text.rstrip())
    return text[: keep.stop] + text[end:]


def citation(prose: Prose, position: str, seed: int) -> str | None:
    """Put a reference to nothing before the end of the first, the middle or the last sentence."""
    those = [
        s for s in prose.sentences if s.kind in ("plain", "item") and FINAL.search(prose.words(s))
    ]
    found = sentence_at(prose, those, position)
    if found is None:
        return None
    ending = FINAL.search(prose.words(found))
    at = found.start + (ending.start() if ending else 0)
    source = pick(CITATIONS, "citation", seed, prose.text)
    return prose.replaced([(at, at, f" {source}")])


def typos(prose: Prose, position: str, seed: int) -> str | None:
    """Swap two inner letters in every fourth longer word of the first, middle or last third."""
    text = prose.text
    third = ("start", "middle", "end").index(position)
    low, high = third * len(text) / 3, (third + 1) * len(text) / 3
    found = [(s.start + a, s.start + b) for s in prose.sentences
             for a, b in _swappable(prose.words(s))
             if low <= s.start + a < high]  # fmt: skip
    changes = []
    for a, b in found[::_TYPO_EVERY]:
        word = text[a:b]
        k = next(k for k in range(len(word) // 2 - 1, len(word) - 2) if _swaps(word, k))
        changes.append((a, b, word[:k] + word[k + 1] + word[k] + word[k + 2 :]))
    return prose.replaced(changes) if changes else None


def _swaps(word: str, k: int) -> bool:
    return word[k] != word[k + 1]


def _swappable(words: str) -> list[tuple[int, int]]:
    """Longer lower-case words outside inline code with two inner letters that differ."""
    quoted = [m.span() for m in QUOTED.finditer(words)]
    return [
        m.span()
        for m in _WORD.finditer(words)
        if not any(a <= m.start() < b for a, b in quoted)
        and any(_swaps(m[0], k) for k in range(len(m[0]) // 2 - 1, len(m[0]) - 2))
    ]
