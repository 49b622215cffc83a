"""A matplotlib figure that notebooks draw by themselves, whichever backend is in use."""

from __future__ import annotations

from matplotlib.figure import Figure

from wellcond.results.result import picture

DPI = 90
"""Of pictures in notebooks, which are about 900 pixels wide."""


class ShownFigure(Figure):
    """A figure that belongs to no window and is shown as the result of a cell."""

    def _repr_png_(self) -> bytes:
        return picture(self, dpi=DPI)
