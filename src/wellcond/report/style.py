"""How still pictures look: colours, line styles, bare axes, curves with bands. All of them begin with `new_figure`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wellcond.errors import MissingExtra, OutputError
from wellcond.results import Row
from wellcond.results.files import check_writable, write_atomically
from wellcond.results.result import PICTURES, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#a67c00", "#56b4e9")
"""One per network; colour-blind readers can tell them apart."""
LINE_STYLES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
"""One per network, so that lines differ without colour too."""
GREY = "#8a929c"
"""Of lines that mark a reference."""

Curve = tuple[Sequence[float], Sequence[float]]
"""Places (n,) and heights (n,)."""
Series = Mapping[str, Sequence[Row]]
"""Rows by the name of the network."""


def new_figure(width: float, height: float) -> Figure:
    """An empty figure whose parts keep clear of each other.

    Args:
        width: In inches.
        height: In inches.

    Returns:
        The figure, which belongs to no window.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plots") from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure in the form that the suffix names, whole or not at all.

    Args:
        figure: What one of the functions in this room returns.
        path: Ends in `.png`, `.svg` or `.pdf`.

    Returns:
        The file that was written.

    Raises:
        OutputError: The suffix names no picture, or the file cannot be written.
    """
    target = check_writable(path)
    form = target.suffix.removeprefix(".").lower()
    if form not in PICTURES:
        raise OutputError(f"{path} is not the name of a picture; end it in one of .{', .'.join(PICTURES)}.")
    return write_atomically(target, picture(figure, form))


def bare_axes(axes: Axes) -> None:
    """A pale grid behind the curves, and no frame above or to the right."""
    axes.grid(color="#dfe3e8")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, axes: Axes, columns: int = 4) -> None:
    """One legend below all panels with the names of one of them; none where nothing has a name."""
    handles, names = axes.get_legend_handles_labels()
    if any(names):
        figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)


def draw_curves(axes: Axes, lines: Mapping[str, Sequence[Curve]], order: Sequence[str] = ()) -> None:
    """Draw one line per name: the mean of its curves, in a band from the least to the greatest.

    A line ends where the first of its curves does, such as that of a diverged run, with a cross if others go on.

    Args:
        axes: Where to draw.
        lines: Repetitions of one curve, by name.
        order: The names of all panels, so that a name has the same colour and style in each; by default those of
            `lines`.
    """
    names = list(order or lines)
    longest = max(len(places) for curves in lines.values() for places, _ in curves)
    for name, curves in lines.items():
        index = names.index(name)
        colour, style = COLOURS[index % len(COLOURS)], LINE_STYLES[index % len(LINE_STYLES)]
        length = min(len(places) for places, _ in curves)
        places = np.asarray(curves[0][0][:length])
        heights = np.array([values[:length] for _, values in curves])
        axes.plot(places, heights.mean(0), color=colour, linestyle=style, linewidth=1.6, label=name)
        axes.fill_between(places, heights.min(0), heights.max(0), color=colour, alpha=0.18, linewidth=0)
        if length < longest:
            axes.plot(places[-1:], heights.mean(0)[-1:], "x", color=colour, markersize=8)
    bare_axes(axes)


def check_series(series: Any, example: str, holds: type = Row, attributes: Sequence[str] = ()) -> None:
    """Raise `ValueError`, with what to pass instead, unless every name holds something to draw.

    Args:
        series: What the caller passed.
        example: What to pass, as code.
        holds: What each name has a sequence of, or a mapping to.
        attributes: Instead of a sequence, each name may hold one object that has all of these.
    """
    if not isinstance(series, Mapping) or not series:
        found = "an empty mapping" if isinstance(series, Mapping) else f"a {type(series).__name__}"
        raise ValueError(f"{found} cannot be drawn; pass {example}, by the names of networks.")
    for name, held in series.items():
        if attributes:
            is_right = all(hasattr(held, attribute) for attribute in attributes)
        else:
            items = list(held.values()) if isinstance(held, Mapping) else held
            is_right = isinstance(items, Sequence) and all(isinstance(item, holds) for item in items)
            if is_right and not items:
                raise ValueError(f"{name!r} is empty; pass {example}.")
        if not is_right:
            raise ValueError(f"{name!r} is a {type(held).__name__} of another kind; pass {example}.")
