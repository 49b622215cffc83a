"""Still pictures of measured spectra over the law that random weights would give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from wellcond.report.style import COLOURS, bare_axes, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = (4.4, 3.8)
"""Inches."""
POINTS = 400
BARS = "#b9d3e6"


class Law(Protocol):
    """A law of eigenvalues: a share of them at 0, the others with a density on an interval."""

    @property
    def support(self) -> tuple[float, float]: ...
    @property
    def mass_at_zero(self) -> float: ...
    def density(self, x: Tensor) -> Tensor: ...
    def distance(self, values: Tensor) -> float: ...
    def critical_value(self, n: int) -> float: ...


def spectra_figure(panels: Mapping[str, tuple[Tensor | None, Law]]) -> Figure:
    """One panel per name: the histogram of a spectrum, the density of its law, and their Kolmogorov distance.

    Both are densities of all eigenvalues: an area is a share of them. The legend gives the shares at 0.

    Args:
        panels: By title, all eigenvalues, of which those that count as 0 are exactly 0, and the law to compare them
            with; without eigenvalues the law is drawn alone.

    Returns:
        The figure.

    Raises:
        ValueError: There are no panels.
    """
    if not panels:
        raise ValueError("panels is empty; write {title: (eigenvalues, law)}.")
    width, height = PANEL
    figure = new_figure(width * len(panels), height)
    for position, (name, (values, law)) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), position)
        title = [name] if name else []
        tallest = 0.0
        if values is not None:
            tallest = _draw_bars(axes, values.detach().cpu().double(), law)
            critical = law.critical_value(len(values))
            title.append(f"Kolmogorov distance {law.distance(values):.2g}; critical at 1 %: {critical:.2g}")
        _draw_law(axes, law, tallest)
        axes.set_title("\n".join(title), loc="left", fontsize=10)
    return figure


def _draw_bars(axes: Axes, values: Tensor, law: Law) -> float:
    """The measured eigenvalues other than 0; returns the height of the tallest bar."""
    (low, high), others = law.support, values[values != 0]
    start, end = min([low, *others.tolist()]), max([high, *others.tolist()])
    edges = torch.linspace(start, end, 1 + max(12, math.isqrt(4 * len(others))), dtype=torch.float64)
    heights = torch.histogram(others, edges).hist / (len(values) * (edges[1] - edges[0]))
    zeros = 1 - len(others) / len(values)
    axes.stairs(heights.tolist(), edges.tolist(), fill=True, color=BARS, label=f"measured{_at_zero(zeros)}")
    return float(heights.max())


def _draw_law(axes: Axes, law: Law, tallest_bar: float) -> None:
    low, high = law.support
    # even steps of an angle are close at the edges of the support, where the density ends as a square root
    grid = low + (high - low) * torch.linspace(0, math.pi / 2, POINTS, dtype=torch.float64).sin() ** 2
    bulk = law.density(grid[1:])  # without the edge, at which the density of c = 1 is infinite
    axes.plot(grid[1:].tolist(), bulk.tolist(), color=COLOURS[0], label=f"law{_at_zero(law.mass_at_zero)}")
    axes.set_ylim(0, 1.3 * (tallest_bar or float(bulk.median())))
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density")
    axes.legend(frameon=False)
    bare_axes(axes)


def _at_zero(share: float) -> str:
    return f", and {100 * share:.3g} % at 0" if share else ""
