"""Figures of values that are missing, far apart in size, or many."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from reward_lens.report import causal_figures, figures
from reward_lens.report.accuracy_figures import Effect, effects
from reward_lens.report.figures import Row

NAN = math.nan
KNOWN, NONE = Row("known", 0.5, 0.4, 0.6), Row("none", NAN, NAN, NAN)
LINE = np.array([0.0, 1.0, 2.0])


def every_figure(row):
    """Every kind of figure, with a value that there is and one that may be missing."""
    v = row.value
    line = figures.Curve("c", LINE, np.array([0.1, v, 0.3]), np.full(3, v), np.full(3, v))
    view = causal_figures.View("noise", np.array([0.5, v]), np.array([0.5, v]))
    return {
        "rows": figures.rows([KNOWN, row], "x", "t"),
        "rows_marked": figures.rows([KNOWN, row], "x", "t", mark=0.5),
        "paired": causal_figures.paired_bars([KNOWN, row], [row, KNOWN], ("a", "b"), "x", "t"),
        "map": causal_figures.square_map(np.array([[0.5, v]]), ["r"], ["a", "b"], "t"),
        "effects": effects([Effect("e", v, v, v, v, False), Effect("f", 1, 0, 2, 1, True)], "", ""),
        "curves": figures.curves([line], "x", "y", "t"),
        "scatter": figures.scatter(np.array([0.5, v]), np.array([v, 0.5]), "x", "y", "t"),
        "histogram": figures.histogram(np.array([0.5, v]), "x", "t"),
        "views": causal_figures.views(["a", "b"], [view], "x", "y", "t"),
    }  # fmt: skip


@pytest.mark.parametrize("kind", every_figure(KNOWN))
def test_a_missing_value_is_drawn_as_nothing(kind):
    whole, found = every_figure(KNOWN)[kind], every_figure(NONE)[kind]
    ET.fromstring(found)
    assert "nan" not in found
    assert found != whole
    if kind in ("rows", "rows_marked", "paired", "map", "effects"):
        assert ">–<" in found
        assert ">–<" not in whole


def test_rounding_beside_large_numbers_is_zero():
    data = [Row("large", -3.0), Row("small", 2e-9), Row("still", 4e-6)]
    for svg in (
        figures.rows(data, "x", "t"),
        causal_figures.paired_bars(data, data, ("a", "b"), "x", "t"),
    ):
        assert "2e-09" not in svg
        assert ">0</text>" in svg
        assert ">4e-06</text>" in svg
    assert ">2e-09</text>" in figures.rows(data[1:2], "x", "t")


def test_names_of_lines_stand_above_the_axes():
    lines = [figures.Curve(n, LINE, LINE, LINE - 1, LINE + 1) for n in ("one", "two")]
    svg = ET.fromstring(figures.curves(lines, "x", "y", "t"))
    names = [float(t.get("y")) for t in svg.iter("text") if t.text in ("one", "two")]
    drawn = [
        float(point.split(",")[1])
        for shape in [*svg.iter("polyline"), *svg.iter("polygon")]
        for point in shape.get("points").split()
    ]
    assert max(names) < float(svg.get("data-top")) <= min(drawn)
