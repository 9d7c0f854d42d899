"""The figure of two models: the margins of one against those of the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from reward_lens.report.figures import (
    BOTTOM,
    LEFT,
    MOST_POINTS,
    TOP,
    WIDTH,
    Axes,
    dots,
    frame,
    padded,
)

Floats = npt.NDArray[np.float64]
_HEIGHT = 420
#: Room above the axes for what the marks mean.
_LEGEND = 24


@dataclass(frozen=True)
class Marks:
    """Points that are drawn alike, and what they are."""

    name: str
    x: Floats
    y: Floats


def margins(agreed: Marks, flips: Marks, x_label: str, y_label: str, title: str) -> Markup:
    """One signal's margins against the other's: dots where they agree, crosses where they flip.

    At most :data:`~reward_lens.report.figures.MOST_POINTS` are drawn of each, evenly chosen in
    order of ``x``. Lines at zero part who prefers what.
    """
    across = padded(np.concatenate([agreed.x, flips.x]))
    low, high = padded(np.concatenate([agreed.y, flips.y]))
    room = (high - low) * _LEGEND / (_HEIGHT - TOP - BOTTOM)  # the legend stands above the points
    axes = Axes(across, (low, high + room), _HEIGHT)
    (x0, top), (_, bottom) = axes.at(0, axes.y[1]), axes.at(0, axes.y[0])
    body = [f'<line class="zero" x1="{x0}" y1="{top}" x2="{x0}" y2="{bottom}"/>']
    crosses = "".join(_cross(*axes.at(x, y)) for x, y in _some(flips))
    body.append(f'<path class="mark" d="{crosses}"/>')
    y = TOP + 8
    key = (LEFT + 16, y)
    body.append(dots([*(axes.at(*place) for place in _some(agreed)), key], "dots small"))
    body.append(_legend(LEFT + 26, y, f"{agreed.name} ({len(agreed.x)})"))
    middle = (LEFT + WIDTH) / 2
    body.append(f'<path class="mark" d="{_cross(middle, y)}"/>')
    body.append(_legend(middle + 10, y, f"{flips.name} ({len(flips.x)})"))
    return frame(axes, x_label, y_label, title, body)


def _some(marks: Marks) -> list[tuple[float, float]]:
    order = np.argsort(marks.x, kind="stable")
    if len(order) > MOST_POINTS:
        order = order[np.linspace(0, len(order) - 1, MOST_POINTS).astype(int)]
    return [(float(x), float(y)) for x, y in zip(marks.x[order], marks.y[order], strict=True)]


def _cross(x: float, y: float) -> str:
    return f"M{x - 3.5:g} {y - 3.5:g}l7 7m0 -7l-7 7"


def _legend(x: float, y: float, text: str) -> str:
    return f'<text class="tick" x="{x:g}" y="{y + 4:g}">{escape(text)}</text>'
