"""Figures as inline SVG: no script, no network, and nothing said by colour alone.

Every figure has a text alternative, axis labels and units; a table with its numbers stands beside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

WIDTH, HEIGHT = 640, 260
MOST_POINTS = 800
LEFT, RIGHT, TOP, BOTTOM = 80, 14, 12, 50
#: Room for the labels of rows, and for the numbers at their end. Letters are drawn larger on a
#: narrow screen, where the drawing shrinks (see page.css), and have to fit then too.
ROW_LABELS, NUMBERS = 210, 78
#: Below this share of the largest number of a figure, a number is written as 0.
SMALLEST = 1e-6
#: Height of one line of a legend.
_LEGEND = 22


@dataclass(frozen=True)
class Axes:
    """A linear map from data to the drawing."""

    x: tuple[float, float]
    y: tuple[float, float]
    height: int = HEIGHT
    top: int = TOP

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Place of a data point."""
        (x0, x1), (y0, y1) = self.x, self.y
        px = LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)
        py = self.height - BOTTOM - (y - y0) / (y1 - y0) * (self.height - self.top - BOTTOM)
        return round(px, 1), round(py, 1)


def written(value: float, most: float) -> str:
    """A number beside its bar: a dash where there is none, 0 where it is rounding beside others."""
    if not math.isfinite(value):
        return "–"
    return "0" if abs(value) < SMALLEST * most else f"{value:.3g}"


def largest(values: Sequence[float]) -> float:
    """The largest finite size; 0 where there is none."""
    return max((abs(v) for v in values if math.isfinite(v)), default=0.0)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that cover a range."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    size = 10 ** math.floor(math.log10(raw))
    step = next(s * size for s in (1, 2, 2.5, 5, 10) if s * size >= raw)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [round((first + k) * step, 12) + 0.0 for k in range(count)]


def padded(values: Sequence[float] | npt.NDArray[np.float64], zero: bool = True) -> tuple[
    float, float
]:  # fmt: skip
    """A range that holds all finite values (and zero), with a little room."""
    finite = [v for v in np.asarray(values, dtype=float).ravel().tolist() if math.isfinite(v)]
    finite += [0.0] if zero or not finite else []
    low, high = min(finite), max(finite)
    room = 0.06 * (high - low) or 1.0
    return low - room, high + room


def frame(axes: Axes, x_label: str, y_label: str, title: str, body: list[str]) -> Markup:
    """Axes with ticks and labels around what is drawn."""
    out = [
        f'<svg viewBox="0 0 {WIDTH} {axes.height}" data-top="{axes.top}" role="img" '
        f'aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]
    for t in ticks(*axes.y):
        x, y = axes.at(axes.x[0], t)
        out.append(f'<line class="grid" x1="{x}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
        out.append(f'<text class="tick" x="{x - 6}" y="{y + 4}" text-anchor="end">{t:g}</text>')
    for t in ticks(*axes.x):
        x, y = axes.at(t, axes.y[0])
        out.append(f'<text class="tick" x="{x}" y="{y + 18}" text-anchor="middle">{t:g}</text>')
    if axes.y[0] < 0 < axes.y[1]:
        x, y = axes.at(axes.x[0], 0)
        out.append(f'<line class="zero" x1="{x}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>')
    middle = (WIDTH + LEFT) / 2
    out.append(
        f'<text class="label" x="{middle}" y="{axes.height - 8}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    half = (axes.top - TOP + axes.height - BOTTOM) / 2
    out.append(
        f'<text class="label" transform="translate(14 {half}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_label)}</text>"
    )
    return Markup("".join([*out, *body, "</svg>"]))


@dataclass(frozen=True)
class Curve:
    """One line of a figure with its interval band; ``style`` is a dash pattern and a marker."""

    name: str
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]


def curves(lines: Sequence[Curve], x_label: str, y_label: str, title: str) -> Markup:
    """Lines with bands; told apart by dash pattern and named above the axes.

    A point without a value is left out of its line.
    """
    every = np.concatenate([np.r_[c.y, c.low, c.high] for c in lines])
    x, room = np.concatenate([c.x for c in lines]), _LEGEND * len(lines)
    axes = Axes((float(x.min()), float(max(x.max(), x.min() + 1))), padded(every),
                HEIGHT + room, TOP + room)  # fmt: skip
    body = []
    for k, c in enumerate(lines):
        known = np.isfinite(c.y)
        points = [axes.at(a, b) for a, b in zip(c.x[known], c.y[known], strict=True)]
        ok = np.isfinite(c.low) & np.isfinite(c.high)
        upper = [axes.at(a, b) for a, b in zip(c.x[ok], c.high[ok], strict=True)]
        lower = [axes.at(a, b) for a, b in zip(c.x[ok], c.low[ok], strict=True)]
        if upper:
            body.append(f'<polygon class="band s{k}" points="{_points(upper + lower[::-1])}"/>')
        body.append(f'<polyline class="line s{k}" points="{_points(points)}"/>')
        marks = "".join(f'<circle class="s{k}" cx="{px}" cy="{py}" r="2.5"/>' for px, py in points)
        body.append(marks)
        lx = LEFT + 12
        ly = TOP + _LEGEND * k
        body.append(f'<line class="line s{k}" x1="{lx}" y1="{ly}" x2="{lx + 34}" y2="{ly}"/>')
        body.append(f'<text class="tick" x="{lx + 40}" y="{ly + 4}">{escape(c.name)}</text>')
    return frame(axes, x_label, y_label, title, body)


def _points(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)


def scatter(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], x_label: str, y_label: str, title: str
) -> Markup:
    """Points; at most :data:`MOST_POINTS` are drawn, evenly chosen in order of ``x``."""
    real = np.isfinite(x) & np.isfinite(y)
    x, y = x[real], y[real]
    order = np.argsort(x, kind="stable")
    if len(order) > MOST_POINTS:
        order = order[np.linspace(0, len(order) - 1, MOST_POINTS).astype(int)]
    axes = Axes(padded(x), padded(y))
    places = [axes.at(float(a), float(b)) for a, b in zip(x[order], y[order], strict=True)]
    return frame(axes, x_label, y_label, title, [dots(places, "dots small")])


def dots(places: Sequence[tuple[float, float]], kind: str = "dots") -> str:
    """Points as one path, which a round line end makes visible: few bytes for many points."""
    return f'<path class="{kind}" d="{"".join(f"M{x:g} {y:g}h0" for x, y in places)}"/>'


def histogram(values: npt.NDArray[np.float64], x_label: str, title: str) -> Markup:
    """Counts of values; those below zero are hatched by an outline, those above filled."""
    values = values[np.isfinite(values)]
    low, high = padded(values)
    edges = np.linspace(low, high, 31)
    edges = np.sort(np.append(edges[np.abs(edges) > (high - low) / 120], 0.0))
    counts, _ = np.histogram(values, edges)
    axes = Axes((low, high), (0, float(max(counts.max(), 1)) * 1.08))
    body = []
    for count, a, b in zip(counts, edges[:-1], edges[1:], strict=True):
        if count:
            (x0, y0), (x1, y1) = axes.at(a, float(count)), axes.at(b, 0)
            kind = "minus" if b <= 0 else "plus"
            body.append(
                f'<rect class="bar {kind}" x="{x0}" y="{y0}" width="{max(x1 - x0 - 1, 1):.1f}" '
                f'height="{y1 - y0:.1f}"><title>{a:.3g} to {b:.3g}: {count}</title></rect>'
            )
    return frame(axes, x_label, "pairs", title, body)


@dataclass(frozen=True)
class Row:
    """One labelled value of a bar or interval figure."""

    label: str
    value: float
    low: float = math.nan
    high: float = math.nan


def rows(data: Sequence[Row], x_label: str, title: str, *, mark: float | None = None) -> Markup:
    """Horizontal bars from zero, or, with ``mark``, points with intervals around a marked value."""
    step, left = 22, ROW_LABELS
    height = TOP + step * len(data) + BOTTOM
    every = [v for r in data for v in (r.value, r.low, r.high)]
    most = largest([r.value for r in data])
    low, high = (0.0, 1.0) if mark is not None else padded(every)

    def at(v: float) -> float:
        return round(left + (v - low) / (high - low) * (WIDTH - left - NUMBERS), 1)

    out = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]
    for t in ticks(low, high):
        x, bottom = at(t), height - BOTTOM
        out.append(f'<line class="grid" x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}"/>')
        out.append(
            f'<text class="tick" x="{x}" y="{bottom + 18}" text-anchor="middle">{t:g}</text>'
        )
    line = at(mark if mark is not None else 0.0)
    out.append(f'<line class="zero" x1="{line}" y1="{TOP}" x2="{line}" y2="{height - BOTTOM}"/>')
    for k, r in enumerate(data):
        y = TOP + step * k + step / 2
        out.append(
            f'<text class="tick" x="{left - 8}" y="{y + 4}" text-anchor="end">'
            f"{escape(r.label)}</text>"
        )
        if not math.isfinite(r.value):
            pass  # the dash at its end says so
        elif mark is None:
            x0, x1 = sorted((at(0), at(r.value)))
            kind = "minus" if r.value < 0 else "plus"
            out.append(
                f'<rect class="bar {kind}" x="{x0}" y="{y - 7}" width="{max(x1 - x0, 1):.1f}" '
                f'height="14"/>'
            )
        else:
            out.append(f'<circle class="s0" cx="{at(r.value)}" cy="{y}" r="4"/>')
        if math.isfinite(r.low) and math.isfinite(r.high):
            out.append(
                f'<line class="whisker" x1="{at(max(r.low, low))}" y1="{y}" '
                f'x2="{at(min(r.high, high))}" y2="{y}"/>'
            )
        out.append(
            f'<text class="tick" x="{WIDTH - 4}" y="{y + 4}" text-anchor="end">'
            f"{written(r.value, most)}</text>"
        )
    out.append(
        f'<text class="label" x="{(WIDTH + left) / 2}" y="{height - 8}" text-anchor="middle">'
        f"{escape(x_label)}</text></svg>"
    )
    return Markup("".join(out))
