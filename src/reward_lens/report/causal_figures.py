"""Figures of effects: bars of both directions, maps of squares, one view against another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from reward_lens.report.figures import (
    BOTTOM,
    NUMBERS,
    ROW_LABELS,
    WIDTH,
    Axes,
    Row,
    dots,
    frame,
    largest,
    padded,
    ticks,
    written,
)

Floats = npt.NDArray[np.float64]
#: Components that are drawn of one view against another.
MOST_MARKS = 300
_LEGEND = 30
#: Width of a cell from which its number has room beside the square.
_ROOMY = 62
#: Width of a letter on a narrow screen.
_LETTER = 9.5
#: From this share of the axes' range on, a component is named.
_FAR = 0.12


def _open(height: float, title: str) -> list[str]:
    return [
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{_short(x)}" y="{_short(y)}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _short(place: float) -> str:
    """A place to a tenth, as short as it can be written."""
    return f"{round(place, 1):g}"


def paired_bars(
    first: Sequence[Row], second: Sequence[Row], names: tuple[str, str], x_label: str, title: str
) -> Markup:
    """Two bars with whiskers for every label: the first filled, the second outlined.

    Parameters
    ----------
    first, second : sequence of Row
        With the same labels in the same order.
    names : tuple of str
        What the two are.
    """
    step, thick = 38, 13
    height = _LEGEND + step * len(first) + BOTTOM
    bottom = height - BOTTOM
    low, high = padded([v for r in (*first, *second) for v in (r.value, r.low, r.high)])

    def at(v: float) -> float:
        return round(ROW_LABELS + (v - low) / (high - low) * (WIDTH - ROW_LABELS - NUMBERS), 1)

    out = _open(height, title)
    for kind, name, x in (("s0", names[0], 16), ("s1", names[1], 320)):
        out.append(f'<rect class="bar {kind}" x="{x}" y="6" width="26" height="{thick}"/>')
        out.append(_text(x + 34, 17, name))
    for t in ticks(low, high):
        out.append(f'<line class="grid" x1="{at(t)}" y1="{_LEGEND}" x2="{at(t)}" y2="{bottom}"/>')
        out.append(_text(at(t), bottom + 18, f"{t:g}", "middle"))
    out.append(f'<line class="zero" x1="{at(0)}" y1="{_LEGEND}" x2="{at(0)}" y2="{bottom}"/>')
    most = largest([r.value for r in (*first, *second)])
    for k, pair in enumerate(zip(first, second, strict=True)):
        out.append(_text(ROW_LABELS - 8, _LEGEND + step * k + 23, pair[0].label, "end"))
        for kind, row, y in zip(("s0", "s1"), pair, (10, 27), strict=True):
            out += _bar(kind, row, _LEGEND + step * k + y, at, thick, most)
    out.append(_text((WIDTH + ROW_LABELS) / 2, height - 8, x_label, "middle", "label"))
    return Markup("".join([*out, "</svg>"]))


def _bar(
    kind: str, row: Row, y: float, at: Callable[[float], float], thick: int, most: float
) -> list[str]:
    if not math.isfinite(row.value):
        return [_text(WIDTH - 4, y + 5, "–", "end")]
    x0, x1 = sorted((at(0), at(row.value)))
    out = [f'<rect class="bar {kind}" x="{x0}" y="{y - thick / 2:g}" '
           f'width="{max(x1 - x0, 1):.1f}" height="{thick}"/>']  # fmt: skip
    if math.isfinite(row.low) and math.isfinite(row.high):
        out.append(
            f'<line class="whisker" x1="{at(row.low)}" y1="{y}" x2="{at(row.high)}" y2="{y}"/>'
        )
    out.append(_text(WIDTH - 4, y + 5, written(row.value, most), "end"))
    return out


def square_map(
    values: Floats,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    title: str,
    corner: str = "",
) -> Markup:
    """Shares as squares: area is size, filled is positive, outlined is negative, a dash is none.

    Where a cell has room its number is beside the square.

    Parameters
    ----------
    values : ndarray, [row, column]
        Shares; NaN where there is none.
    corner : str
        What the labels of the rows are.
    """
    n_rows, n_columns = values.shape
    left = 112.0
    width = (WIDTH - left - 8) / n_columns
    roomy = width >= _ROOMY
    # Long names of neighbours stand on two lines.
    lines = 2 if roomy and max(map(len, column_labels)) * _LETTER > width else 1
    top = 14.0 + 20.0 * lines
    tall = 30.0 if roomy else max(14.0, min(30.0, width))
    most = min(20.0, width - 2, tall - 4)
    full = largest(values.ravel().tolist())
    out = _open(top + tall * n_rows + (56 if roomy else 34), title)
    out.append(_text(left - 10, top - 10, corner, "end"))
    every = max(1, math.ceil(56 / width)) if not roomy else 1
    for c in range(0, n_columns, every):
        y = top - 10 - 20 * (c % lines)
        if lines == 2 and c == n_columns - 1:  # it would stand out over the edge
            out.append(_text(WIDTH - 2, y, column_labels[c], "end"))
        else:
            out.append(_text(left + width * (c + 0.5), y, column_labels[c], "middle"))
    filled: list[str] = []
    outlined: list[str] = []
    numbers: list[str] = []
    for r in range(n_rows):
        y = top + tall * (r + 0.5)
        if tall >= 18 or r % 2 == 0:
            out.append(_text(left - 10, y + 5, row_labels[r], "end"))
        for c in range(n_columns):
            value = float(values[r, c])
            x = left + width * c + (12 if roomy else width / 2)
            if not math.isfinite(value):
                numbers.append(_cell(x - 5, y + 5, "–"))
                continue
            side = most * math.sqrt(abs(value) / full) if full else 0.0
            (filled if value >= 0 else outlined).append(_square(x, y, side))
            if roomy:
                numbers.append(_cell(x + 14, y + 5, _percent(value)))
    out.append(f'<path class="bar s0" d="{"".join(filled)}"/>')
    out.append(f'<path class="bar s1" d="{"".join(outlined)}"/>')
    out.append(f'<g class="soft">{"".join(numbers)}</g>')
    below = top + tall * n_rows + 24
    out.append(_text(16, below, f"largest square: {full:.1%}; filled: +, outlined: −"))
    if roomy:
        out.append(_text(16, below + 22, "numbers: % of the margin"))
    return Markup("".join([*out, "</svg>"]))


def _cell(x: float, y: float, text: str) -> str:
    return f'<text x="{_short(x)}" y="{_short(y)}">{text}</text>'


def _percent(value: float) -> str:
    """Whole per cent; the square beside it says whether a zero is a small plus or minus."""
    return f"{value * 100:.0f}".replace("-0", "0") if abs(value) < 0.005 else f"{value * 100:.0f}"


def _square(x: float, y: float, side: float) -> str:
    half = side / 2
    long = _short(side)
    return f"M{_short(x - half)} {_short(y - half)}h{long}v{long}h-{long}z"


@dataclass(frozen=True)
class View:
    """What patching says of components, beside what they write: one direction."""

    name: str
    x: Floats
    y: Floats


def views(
    names: Sequence[str], both: Sequence[View], x_label: str, y_label: str, title: str
) -> Markup:
    """One view against another, a mark per component; the dashed line is where they are equal.

    The first series is drawn as dots, the second as squares; the farthest of the first are named.
    Of many, the :data:`MOST_MARKS` farthest from the origin are drawn.
    """
    x = np.concatenate([v.x for v in both])
    y = np.concatenate([v.y for v in both])
    bottom, top = padded(y)
    axes = Axes(padded(x), (bottom, top + 0.2 * (top - bottom)), 360)  # room for the legend
    low, high = max(axes.x[0], axes.y[0]), min(axes.x[1], axes.y[1])
    body = []
    if low < high:
        (x0, y0), (x1, y1) = axes.at(low, low), axes.at(high, high)
        body.append(f'<line class="same" x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}"/>')
    for k, view in enumerate(both):
        places = [axes.at(float(view.x[i]), float(view.y[i])) for i in _far_out(axes, view)]
        marks = [*places, (92.0, 20.0 + 20 * k)]  # the last one is the legend's
        if k == 0:
            body.append(dots(marks))
        else:
            squares = "".join(_square(px, py, 8) for px, py in marks)
            body.append(f'<path class="mark" d="{squares}"/>')
        body.append(_text(104, 25 + 20 * k, view.name))
    body += _names(axes, names, both[0])
    return frame(axes, x_label, y_label, title, body)


def _distance(axes: Axes, view: View) -> Floats:
    """How far each component is from the origin, in shares of the axes' ranges; -1 for nowhere."""
    spread = [axes.x[1] - axes.x[0], axes.y[1] - axes.y[0]]
    far = np.hypot(view.x / spread[0], view.y / spread[1])
    return np.where(np.isfinite(far), far, -1.0)


def _far_out(axes: Axes, view: View) -> list[int]:
    """The components that are drawn: the :data:`MOST_MARKS` farthest out, in order."""
    far = _distance(axes, view)
    order = np.argsort(-far, kind="stable")[:MOST_MARKS]
    return sorted(int(k) for k in order if far[k] >= 0)


def _names(axes: Axes, names: Sequence[str], view: View) -> list[str]:
    """Name the components that are far out, as far as the names do not lie on each other."""
    far = _distance(axes, view)
    placed: list[tuple[float, float]] = []
    out = []
    for k in np.argsort(-far, kind="stable")[:8]:
        if far[k] < _FAR:
            break
        px, py = axes.at(float(view.x[k]), float(view.y[k]))
        if any(abs(py - b) < 20 and abs(px - a) < 110 for a, b in placed):
            continue
        placed.append((px, py))
        right = px > WIDTH - 130
        out.append(_text(px + (-9 if right else 9), py + 5, names[k],
                         "end" if right else "start", "tick name"))  # fmt: skip
    return out
