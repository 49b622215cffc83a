"""Still pictures of spectra: measured densities, and the Marchenko-Pastur law over a measured spectrum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

import torch

from wellcond.curvature.spectra.density import Density
from wellcond.measurements.blocks.marchenko_pastur import Eigenvalues, MarchenkoPastur, zeros_of_rounding
from wellcond.report.figures.style import COLORS, bare_axes, check_series, new_figure
from wellcond.results.rendering import renders

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARS = "#b9d3e6"
POINTS = 400
"""Points at which the density of a law is drawn."""


@renders("figure", Density)
def one_density_figure(density: Density) -> Figure:
    """The density in a band of two standard errors."""
    return density_figure({"": density})


def density_figure(densities: Mapping[str, Density]) -> Figure:
    """Spectral densities over each other, six decades deep, each in a band of two standard errors.

    Args:
        densities: What `density` returns, by the name of the network.

    Returns:
        The figure.
    """
    check_series(densities, "{'name': density(Hessian(problem))}", each=Density)
    figure = new_figure(7, 3.8)
    axes = figure.subplots()
    top = max(float(each.density.max()) for each in densities.values())
    for i, (name, each) in enumerate(densities.items()):
        grid, middle, band = each.grid.numpy(), each.density.numpy(), 2 * each.error.nan_to_num().numpy()
        color = COLORS[i % len(COLORS)]
        axes.plot(grid, middle, color=color, label=name)
        axes.fill_between(grid, (middle - band).clip(min=0), middle + band, color=color, alpha=0.2, linewidth=0)
    axes.set_yscale("log")
    axes.set_ylim(1e-6 * top, 2 * top)
    bare_axes(axes, x="eigenvalue", y="density")
    if any(densities):
        axes.legend(frameon=False)
    return figure


@renders("figure", MarchenkoPastur)
def law_figure(law: MarchenkoPastur, values: Eigenvalues | None = None) -> Figure:
    """The density of the law, over the histogram of a measured spectrum.

    Both are densities of all eigenvalues: an area is a share of them. The legend gives the shares at 0.

    Args:
        law: Law to draw.
        values: All eigenvalues of the spectrum, if there is one.

    Returns:
        The figure.
    """
    low, high = law.support
    # even steps of an angle are close at the edges of the support, where the density ends as a square root
    grid = low + (high - low) * torch.linspace(0, math.pi / 2, POINTS, dtype=torch.float64, device="cpu").sin() ** 2
    grid = grid[1:]  # at the edge the density of c = 1 is infinite
    density = law.density(grid).tolist()
    title, top = f"Marchenko-Pastur, c = {law.c:.4g}, σ = {law.sigma:.4g}", median(density)
    figure = new_figure(4.4, 3.8)
    axes = figure.subplots()
    if values is not None:
        measured = zeros_of_rounding(values)
        others = measured[measured != 0]
        ends = [low, high, *others.tolist()]
        bins = max(12, math.isqrt(4 * len(others)))
        edges = torch.linspace(min(ends), max(ends), 1 + bins, dtype=torch.float64, device="cpu")
        heights = (torch.histogram(others, edges).hist / (len(measured) * (edges[1] - edges[0]))).tolist()
        label = f"measured{_at_zero(1 - len(others) / len(measured))}"
        axes.stairs(heights, edges.tolist(), fill=True, color=BARS, label=label)
        distance, critical = law.distance(values), law.critical_value(len(measured))
        title += f"\nKolmogorov distance {distance:.2g}; critical at 1 %: {critical:.2g}"
        top = max(heights) or top
    axes.plot(grid.tolist(), density, color=COLORS[0], label=f"law{_at_zero(law.mass_at_zero)}")
    axes.set_ylim(0, 1.3 * top)
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(frameon=False)
    bare_axes(axes, x="eigenvalue", y="density")
    return figure


def _at_zero(share: float) -> str:
    return f", and {100 * share:.3g} % at 0" if share else ""
