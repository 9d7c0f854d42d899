"""Figures of stated against observed probabilities, and of effects beside their thresholds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from reward_lens.report.figures import (
    BOTTOM,
    NUMBERS,
    ROW_LABELS,
    TOP,
    WIDTH,
    Axes,
    frame,
    padded,
    ticks,
)

_STEP = 22


@dataclass(frozen=True)
class Bin:
    """One point of a reliability curve: what was stated, what came of it, with its interval."""

    stated: float
    observed: float
    low: float
    high: float
    pairs: int


def reliability(bins: Sequence[Bin]) -> Markup:
    """Observed shares against stated probabilities; on the dashed line they are equal.

    The number above a point is how many pairs it stands for.
    """
    axes = Axes((0.48, 1.02), (-0.02, 1.08), 320)
    (x0, y0), (x1, y1) = axes.at(0.5, 0.5), axes.at(1.0, 1.0)
    body = [f'<line class="same" x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}"/>']
    for b in bins:
        x, y = axes.at(b.stated, b.observed)
        top = y
        if math.isfinite(b.low) and math.isfinite(b.high):
            (_, bottom), (_, top) = axes.at(b.stated, b.low), axes.at(b.stated, b.high)
            body.append(f'<line class="whisker" x1="{x}" y1="{bottom}" x2="{x}" y2="{top}"/>')
        body.append(f'<circle class="s0" cx="{x}" cy="{y}" r="4"/>')
        body.append(
            f'<text class="tick" x="{x}" y="{min(top, y - 4) - 5:g}" text-anchor="middle">'
            f"{b.pairs}</text>"
        )
    return frame(
        axes,
        "stated probability of the preferred side",
        "share that is right",
        "Share that is right by stated probability",
        body,
    )


@dataclass(frozen=True)
class Effect:
    """One effect with its interval, and the smallest size that counts."""

    label: str
    value: float
    low: float
    high: float
    least: float
    named: bool


def effects(data: Sequence[Effect], x_label: str, title: str) -> Markup:
    """Bars with whiskers, and brackets at the smallest effect that counts on either side."""
    height = TOP + _STEP * len(data) + BOTTOM
    bottom = height - BOTTOM
    low, high = padded([v for e in data for v in (e.value, e.low, e.high, e.least, -e.least)])

    def at(v: float) -> float:
        return round(ROW_LABELS + (v - low) / (high - low) * (WIDTH - ROW_LABELS - NUMBERS), 1)

    out = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]
    for t in ticks(low, high):
        out.append(f'<line class="grid" x1="{at(t)}" y1="{TOP}" x2="{at(t)}" y2="{bottom}"/>')
        out.append(_text(at(t), bottom + 18, f"{t:g}", "middle"))
    out.append(f'<line class="zero" x1="{at(0)}" y1="{TOP}" x2="{at(0)}" y2="{bottom}"/>')
    for k, e in enumerate(data):
        out += _row(e, TOP + _STEP * k + _STEP / 2, at)
    out.append(_text((WIDTH + ROW_LABELS) / 2, height - 8, x_label, "middle", "label"))
    return Markup("".join([*out, "</svg>"]))


def _row(e: Effect, y: float, at: Callable[[float], float]) -> list[str]:
    out = [_text(ROW_LABELS - 8, y + 4, f"{'▸ ' if e.named else ''}{e.label}", "end")]
    if not math.isfinite(e.value):
        return [*out, _text(WIDTH - 4, y + 4, "–", "end")]
    x0, x1 = sorted((at(0), at(e.value)))
    kind = "minus" if e.value < 0 else "plus"
    out.append(
        f'<rect class="bar {kind}" x="{x0}" y="{y - 6:g}" width="{max(x1 - x0, 1):.1f}" '
        f'height="12"/>'
    )
    if math.isfinite(e.low) and math.isfinite(e.high):
        out.append(
            f'<line class="whisker" x1="{at(e.low)}" y1="{y:g}" x2="{at(e.high)}" y2="{y:g}"/>'
        )
    if math.isfinite(e.least):
        brackets = "".join(
            f"M{at(sign * e.least) - 4 * sign:g} {y - 9:g}h{4 * sign}v18h{-4 * sign}"
            for sign in (-1, 1)
        )
        out.append(f'<path class="least" d="{brackets}"/>')
    return [*out, _text(WIDTH - 4, y + 4, f"{e.value:+.2f}", "end")]


def _text(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
