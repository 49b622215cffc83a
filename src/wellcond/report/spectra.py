"""Still pictures of measured spectra over the law that random weights would give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch

from wellcond.errors import MissingExtra
from wellcond.local.marchenko_pastur import Eigenvalues, MarchenkoPastur, zeros_of_rounding
from wellcond.report.curves import dress
from wellcond.report.figures import COLOURS, save_figure
from wellcond.results.files import check_writable

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtra("matplotlib", "plots") from error

PANEL = (4.4, 3.8)
"""Inches."""
POINTS = 400


def save_spectrum_png(panels: Mapping[str, tuple[Eigenvalues, MarchenkoPastur]], path: str | Path) -> Path:
    """One panel a name: the histogram of a spectrum, the density of its law over it, and their Kolmogorov distance.

    Both are densities of all eigenvalues: an area is a share of them. The shares at 0 are said in the legend.
    """
    if not panels:
        raise ValueError("panels is empty; write {title: (eigenvalues, law)}.")
    check_writable(path)
    width, height = PANEL
    figure = Figure(figsize=(width * len(panels), height), layout="constrained")
    for place, (name, (values, law)) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), place)
        _draw(axes, values, law)
        axes.set_title(f"{name}\n{_verdict(values, law)}", loc="left", fontsize=10)
    return save_figure(figure, path)


def _draw(axes: Axes, values: Eigenvalues, law: MarchenkoPastur) -> None:
    measured, (low, high) = zeros_of_rounding(values).cpu(), law.support
    others = measured[measured != 0]
    start, end = min([low, *others.tolist()]), max([high, *others.tolist()])
    edges = torch.linspace(start, end, 1 + max(12, math.isqrt(4 * len(others))), dtype=torch.float64)
    heights = torch.histogram(others, edges).hist / (len(measured) * (edges[1] - edges[0]))
    zeros = 1 - len(others) / len(measured)
    axes.stairs(heights.tolist(), edges.tolist(), fill=True, color="#b9d3e6", label=f"measured{_at_zero(zeros)}")
    # even steps of an angle are close at the edges of the support, where the density ends as a square root
    grid = low + (high - low) * torch.linspace(0, math.pi / 2, POINTS, dtype=torch.float64).sin() ** 2
    bulk = law.density(grid[1:])  # without the edge, at which the density of c = 1 is infinite
    axes.plot(grid[1:].tolist(), bulk.tolist(), color=COLOURS[0], label=f"law{_at_zero(law.mass_at_zero)}")
    axes.set_ylim(0, 1.3 * (float(heights.max()) or float(bulk.median())))
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density")
    axes.legend(frameon=False)
    dress(axes)


def _at_zero(share: float) -> str:
    return f", and {100 * share:.3g} % at 0" if share else ""


def _verdict(values: Eigenvalues, law: MarchenkoPastur) -> str:
    critical = law.critical_value(len(zeros_of_rounding(values)))
    return f"Kolmogorov distance {law.distance(values):.2g}; critical at 1 %: {critical:.2g}"
