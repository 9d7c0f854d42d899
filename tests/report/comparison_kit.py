"""Two models whose preferences are planted, compared once for all tests of their page."""

from __future__ import annotations

import dataclasses
import html
import re
from functools import cache

from bias_kit import organism

import reward_lens as rl
from reward_lens.assets import asset
from reward_lens.comparing import Comparison, compare_models
from reward_lens.data import Pairs, as_pairs
from reward_lens.report import Page
from reward_lens.report.browser_json import unpacked
from reward_lens.report.comparison import (
    comparison_sections,
    comparison_summary,
    render_comparison,
)
from reward_lens.report.comparison_parts import Models
from reward_lens.report.numbers import Numbers

#: Put before the shorter response of some pairs; it has five words that flatter.
PRAISE = "What a brilliant, thoughtful, clever, impressive question, excellent. "


@cache
def praised_pairs() -> Pairs:
    """Short held-out pairs; in every third one the shorter response begins with praise."""
    found = rl.load_pairs(asset("demo/pairs.jsonl"))
    rows = [
        {"id": p.id, "subset": p.subset, "prompt": p.chosen.prompt_text,
         "chosen": p.chosen.response, "rejected": p.rejected.response}
        for p in found
        if all(len(str(i.content())) < 400 for i in (p.chosen, p.rejected))
    ]  # fmt: skip
    for one in rows[::3]:
        side = min(("chosen", "rejected"), key=lambda s, one=one: len(one[s]))
        one[side] = PRAISE + one[side]
        one["subset"] = "praised"
    return as_pairs(rows)


@cache
def planted_pair() -> Comparison:
    """One model that rewards length, one that rewards flattery beside it."""
    one, other = organism()[0], organism(flattery=8.0)[0]
    names = ("<length>", "flattery")
    return compare_models(one, other, praised_pairs(), names=names, biases=30)


def page_of(found, **more) -> str:
    page = Page("a against b", "facts", "reward-lens compare A B", "e.jsonl", kind="comparison")
    models = Models(found.names, found.facts)
    return render_comparison(
        dataclasses.replace(page, **more), models, found.evidence, found.pairs, found.left_out
    )


def plain(text) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", str(text)))


def answers(found) -> dict[str, str]:
    said = comparison_summary(found.evidence, Numbers(found.evidence))
    return {question: plain(answer) for question, answer in said}


def sections(found, **evidence):
    every = {**found.evidence, **evidence}
    models = Models(found.names, found.facts)
    made = comparison_sections(models, every, Numbers(every), found.missing, found.left_out)
    return {s.id: s for s in made}


def block_of(text: str):
    found = re.search(r'<script type="application/gzip" id="browser-data">(.*?)</script>', text)
    return unpacked(found[1])
