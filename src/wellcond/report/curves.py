"""Curves over training: one line a name, the mean of its repetitions, in a band from the least to the greatest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from wellcond.report.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = tuple[Sequence[float], Sequence[float]]
"""Places (n,) and heights (n,)."""
STYLES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
"""Told apart without colour too."""


def draw_curves(axes: Axes, lines: Mapping[str, Sequence[Curve]], looks: Sequence[str] = ()) -> None:
    """Draw the mean of each line's curves and the band they fill.

    A line ends where the first of its curves does, as that of a diverged run, with a cross if others go on. looks: the
    names of several panels in one order, so that a name has one colour and style in all of them.
    """
    names = list(looks or lines)
    longest = max(len(places) for curves in lines.values() for places, _ in curves)
    for name, curves in lines.items():
        look = names.index(name)
        colour, style = COLOURS[look % len(COLOURS)], STYLES[look % len(STYLES)]
        length = min(len(places) for places, _ in curves)
        places = np.asarray(curves[0][0][:length])
        heights = np.array([values[:length] for _, values in curves])
        axes.plot(places, heights.mean(0), color=colour, linestyle=style, linewidth=1.6, label=name)
        axes.fill_between(places, heights.min(0), heights.max(0), color=colour, alpha=0.18, linewidth=0)
        if length < longest:
            axes.plot(places[-1:], heights.mean(0)[-1:], "x", color=colour, markersize=8)
    dress(axes)


def dress(axes: Axes) -> None:
    """A pale grid behind, and no frame."""
    axes.grid(color="#dfe3e8")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
