"""Still pictures of spectra: densities with their errors, and eigenvalues over the law that random weights give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from wellcond.report.style import COLOURS, Curve, bare_axes, check_series, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BARS = "#b9d3e6"


@runtime_checkable
class DensityCurve(Protocol):
    """A spectral density with its standard error, each (points,). A `wellcond.spectral.density.Density` is one."""

    @property
    def grid(self) -> Tensor: ...
    @property
    def density(self) -> Tensor: ...
    @property
    def error(self) -> Tensor: ...


def density_figure(densities: Mapping[str, DensityCurve]) -> Figure:
    """Spectral densities over each other, six decades deep, each in a band of two standard errors.

    Args:
        densities: What `density` returns, by the name of the network.

    Returns:
        The figure.
    """
    check_series(densities, "{'name': density(Hessian(problem))}", each=DensityCurve)
    figure = new_figure(7, 3.8)
    axes = figure.subplots()
    top = max(float(each.density.max()) for each in densities.values())
    for i, (name, each) in enumerate(densities.items()):
        grid, middle, band = each.grid.numpy(), each.density.numpy(), 2 * each.error.nan_to_num().numpy()
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(grid, middle, color=colour, label=name)
        axes.fill_between(grid, (middle - band).clip(min=0), middle + band, color=colour, alpha=0.2, linewidth=0)
    axes.set_yscale("log")
    axes.set_ylim(1e-6 * top, 2 * top)
    bare_axes(axes, x="eigenvalue", y="density")
    if any(densities):
        axes.legend(frameon=False)
    return figure


def law_figure(
    title: str,
    law: Curve,
    law_at_zero: float,
    measured: tuple[Sequence[float], Sequence[float]] | None = None,
    measured_at_zero: float = 0.0,
) -> Figure:
    """The density of a law of eigenvalues, over the histogram of a measured spectrum.

    Both are densities of all eigenvalues: an area is a share of them. The legend gives the shares at 0.

    Args:
        title: Of the figure.
        law: Eigenvalues other than 0, and their density.
        law_at_zero: The share at 0.
        measured: The heights of the bars (n,) and their edges (n + 1,), if there are any.
        measured_at_zero: Of the measured spectrum, the share at 0.

    Returns:
        The figure.
    """
    figure = new_figure(4.4, 3.8)
    axes = figure.subplots()
    if measured is not None:
        axes.stairs(*measured, fill=True, color=BARS, label=f"measured{_at_zero(measured_at_zero)}")
    axes.plot(*law, color=COLOURS[0], label=f"law{_at_zero(law_at_zero)}")
    tallest_bar = 0.0 if measured is None else max(measured[0])
    axes.set_ylim(0, 1.3 * (tallest_bar or median(law[1])))
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(frameon=False)
    bare_axes(axes, x="eigenvalue", y="density")
    return figure


def _at_zero(share: float) -> str:
    return f", and {100 * share:.3g} % at 0" if share else ""
