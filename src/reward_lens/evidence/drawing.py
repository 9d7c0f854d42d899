"""Draws a picture of an evidence with matplotlib; nothing is told apart by colour alone."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reward_lens.errors import EvidenceError
from reward_lens.evidence.pictures import Panel, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKS, _DASHES = ("o", "s", "^", "D", "v", "P"), ("-", "--", ":", "-.")
#: Maps up to this many cells have their numbers written in them, and ticks for up to so many rows.
_WRITTEN, _MOST_TICKS, _LONGEST = 60, 24, 34
_LETTERS = 13  # of a title, per inch


def draw(picture: Picture, ax: Axes | None = None) -> Any:
    """Draw a picture.

    Parameters
    ----------
    picture : Picture
    ax : matplotlib Axes, optional
        Where to draw, if it has one panel.

    Returns
    -------
    Axes or ndarray of Axes, [panel]

    Raises
    ------
    EvidenceError
        If there are several panels for one ``ax``.
    """
    panels = picture.panels
    if ax is not None:
        if len(panels) > 1:
            names = "; ".join(f"{p.name}, {p.value}".strip(", ") for p in panels)
            raise EvidenceError(f"{len(panels)} panels do not fit into one ax: {names}; select one")
        _panel(ax, panels[0])
        said = "\n".join(filter(None, [picture.title, panels[0].name, picture.note]))
        said = textwrap.fill(said, 80, replace_whitespace=False)
        ax.set_title(_plain(said), fontsize="small")
        return ax
    from matplotlib import pyplot as plt

    columns = _columns(len(panels))
    rows = math.ceil(len(panels) / columns)
    width, height = _size(panels[0], columns)
    rowwise = panels[0].kind == "rows" and all(p.axes == panels[0].axes for p in panels)
    figure, grid = plt.subplots(rows, columns, squeeze=False, layout="constrained",
                                sharey="row" if rowwise else False,
                                figsize=(width * columns, height * rows + 0.9))  # fmt: skip
    axes = grid.ravel()
    for k, (at, panel) in enumerate(zip(axes, panels, strict=False)):
        _panel(at, panel)
        at.set_title(_plain(panel.name), fontsize="medium")
        if rowwise and k % columns:
            at.set_ylabel("")
    for at in axes[len(panels) :]:
        at.remove()
    letters = int(width * columns * _LETTERS)
    lines = [textwrap.fill(line, letters) for line in picture.title.splitlines()]
    figure.suptitle(_plain("\n".join(lines)), fontsize="medium")
    if picture.note:
        figure.supxlabel(_plain(textwrap.fill(picture.note, letters)), fontsize="small")
    return axes[0] if len(panels) == 1 else np.asarray(axes[: len(panels)])


def _columns(panels: int) -> int:
    return panels if panels <= 3 else math.ceil(panels / 2) if panels <= 6 else 3


def _size(panel: Panel, columns: int) -> tuple[float, float]:
    """Inches of one panel."""
    if panel.kind == "rows":
        longest = max((len(_tick(v)) for v in panel.axes[0][1]), default=0)
        wide = 5.6 if columns == 1 else 3.6
        return wide + 0.08 * longest / columns, 1.4 + 0.27 * len(panel.axes[0][1])
    if panel.kind == "map":
        return 5.6, 1.8 + 0.25 * min(len(panel.axes[1][1]), _MOST_TICKS)
    return (6.4 if columns == 1 else 4.6), 3.6


def _panel(ax: Axes, panel: Panel) -> None:
    {"rows": _rows, "curve": _curve, "map": _map, "counts": _counts}[panel.kind](ax, panel)


def _rows(ax: Axes, panel: Panel) -> None:
    name, labels = panel.axes[0]
    places = np.arange(len(labels), dtype=float)
    for k, series in enumerate(panel.series):
        shift = 0.22 * (k - (len(panel.series) - 1) / 2)
        low, estimate, high = _columns_of(series.cells)
        bars = np.vstack([estimate - low, high - estimate]).clip(min=0)
        ax.errorbar(estimate, places + shift, xerr=np.nan_to_num(bars), fmt=_MARKS[k % 6],
                    markersize=4.5, capsize=2, linewidth=1.2,
                    label=_plain(series.name))  # fmt: skip
        if series.name == "threshold":  # of a size, whatever the sign
            ax.plot(-estimate, places + shift, _MARKS[k % 6], color=f"C{k}", markersize=4.5)
    ax.axvline(0, color="0.5", linewidth=0.8)
    ax.set_yticks(places, [_tick(v) for v in labels])
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.grid(axis="y", color="0.9")
    ax.set_axisbelow(True)
    ax.set(xlabel=_plain(panel.value), ylabel=_plain(name))
    if panel.binary:
        ax.set_xticks([0, 1], ["no", "yes"])
        ax.set_xlim(-0.3, 1.3)
    _legend(ax, panel)


def _curve(ax: Axes, panel: Panel) -> None:
    name, entries = panel.axes[0]
    x = np.asarray(entries, dtype=float)
    for k, series in enumerate(panel.series):
        low, estimate, high = _columns_of(series.cells)
        (line,) = ax.plot(x, estimate, linestyle=_DASHES[k % 4], marker=_MARKS[k % 6],
                          markersize=3.5 if len(x) <= 60 else 0,
                          label=_plain(series.name))  # fmt: skip
        if np.isfinite(low).any():
            ax.fill_between(x, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
    ax.axhline(0, color="0.5", linewidth=0.8)
    ax.set(xlabel=_plain(name), ylabel=_plain(panel.value))
    _legend(ax, panel)


def _map(ax: Axes, panel: Panel) -> None:
    (x, columns), (y, rows) = panel.axes
    values = panel.values.T
    largest = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0
    signed = bool((values < 0).any())
    image = ax.imshow(values, cmap="RdBu_r" if signed else "Blues", vmax=largest or 1,
                      vmin=-largest if signed else 0, aspect="auto",
                      interpolation="nearest")  # fmt: skip
    ax.set_facecolor("0.85")
    ax.figure.colorbar(image, ax=ax, label=_plain(panel.value))
    named = any(isinstance(v, str) for v in columns)
    for axis, entries in ((ax.xaxis, columns), (ax.yaxis, rows)):
        # Numbers along the wide side need more room than names that are turned upright.
        most = _MOST_TICKS // 2 if axis is ax.xaxis and not named else _MOST_TICKS
        step = math.ceil(len(entries) / most)
        axis.set_ticks(range(0, len(entries), step), [_tick(v) for v in entries[::step]])
    if named:
        ax.tick_params(axis="x", rotation=90)
    if values.size <= _WRITTEN:
        for (row, column), number in np.ndenumerate(values):
            dark = abs(number) > 0.6 * largest
            text = "–" if math.isnan(number) else f"{number:.2g}"
            ax.text(column, row, text, ha="center", va="center", fontsize="x-small",
                    color="white" if dark else "black")  # fmt: skip
    ax.set(xlabel=_plain(x), ylabel=_plain(y))


def _counts(ax: Axes, panel: Panel) -> None:
    values = panel.values
    ax.hist(values, bins=min(40, max(8, math.ceil(math.sqrt(len(values))))), color="0.55")
    mean = float(values.mean())
    ax.axvline(mean, linestyle="--", color="black", label=f"mean {mean:.3g}")
    ax.set(xlabel=_plain(panel.value), ylabel=f"count of {len(values)}")
    ax.legend(fontsize="small")


def _columns_of(cells: tuple[Any, ...]) -> tuple[npt.NDArray[np.float64], ...]:
    table = np.array([[c.low, c.estimate, c.high] for c in cells], dtype=float)
    return table[:, 0], table[:, 1], table[:, 2]


def _tick(value: Any) -> str:
    """A label that cannot grow without end; of a long one the end, where names differ."""
    if isinstance(value, float):
        return f"{value:.3g}"
    text = " ".join(str(value).split())
    return _plain(text if len(text) <= _LONGEST else f"…{text[-_LONGEST + 1 :]}")


def _plain(text: str) -> str:
    """A text that matplotlib shows as it is, and reads no formula in."""
    return text.replace("$", r"\$")


def _legend(ax: Axes, panel: Panel) -> None:
    if len(panel.series) > 1:
        ax.legend(fontsize="small")
