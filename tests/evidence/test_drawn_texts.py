"""Texts of a figure are shown as they are, whatever signs they hold."""

from __future__ import annotations

import numpy as np
from matplotlib import pyplot as plt

from reward_lens.evidence.drawing import _tick, draw
from reward_lens.evidence.pictures import Cell, Panel, Picture, Series


def test_no_formula_is_read_in_a_text():
    broken = "$\\frac{$"
    cells = (Cell(0, -1, 1), Cell(0, -1, 1))
    rows = ((broken, (broken, "$a$")),)
    series = tuple(Series(f"{k} {broken}", cells) for k in "ab")
    panels = (
        Panel("rows", broken, broken, rows, series),
        Panel("curve", broken, broken, ((broken, (1, 2)),), series),
        Panel("map", broken, broken, rows * 2, values=np.eye(2)),
        Panel("counts", broken, broken, values=np.arange(9.0)),
    )
    for panel in panels:
        for ax in (None, plt.subplots()[1]):
            drawn = draw(Picture(broken, (panel,), broken), ax)
            drawn.figure.canvas.draw()  # where a formula is read, it is no formula
            plt.close(drawn.figure)
    assert _tick("$a$" * 20).count("$") == _tick("$a$" * 20).count(r"\$") == 22
