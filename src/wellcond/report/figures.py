"""Still pictures of the same rows, for a README or a paper."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from wellcond.errors import MissingExtra
from wellcond.report.columns import shortened
from wellcond.report.pivot import Pivot
from wellcond.report.scale import LogScale
from wellcond.results import Row
from wellcond.results.files import check_writable, write_atomically
from wellcond.spectral.density import Density

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtra("matplotlib", "plots") from error

COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#a67c00", "#56b4e9")
"""Of the networks; told apart by colour-blind eyes too."""
STYLES = {"Σx": "-", "Σ∇h": "--"}
MOST_LABELS = 20


def save_png(series: Mapping[str, Sequence[Row]], path: str | Path) -> Path:
    """Two panels against the layer, one colour a network: λ_max of Σx and Σ∇h, and κ_50 of both.

    Zero and infinity are drawn as triangles at the lower and upper edge.
    """
    check_writable(path)
    pivots = {name: Pivot.of(rows) for name, rows in series.items()}
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    _panel(left, pivots, "lambda_max", "largest eigenvalue λmax: level is good")
    _panel(right, pivots, "kappa_50%", "condition number κ50: low is good")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return save_figure(figure, path)


def save_density_png(series: Mapping[str, Density], path: str | Path) -> Path:
    """Spectral densities over each other, six decades deep, with a band of two standard errors."""
    check_writable(path)
    figure = Figure(figsize=(7, 3.8), layout="constrained")
    axes = figure.subplots()
    top = max(float(density.density.max()) for density in series.values())
    for (name, density), colour in zip(series.items(), itertools.cycle(COLOURS), strict=False):
        grid, middle, band = density.grid.numpy(), density.density.numpy(), 2 * density.error.nan_to_num().numpy()
        axes.plot(grid, middle, color=colour, label=name)
        axes.fill_between(grid, (middle - band).clip(min=0), middle + band, color=colour, alpha=0.2, linewidth=0)
    axes.set_yscale("log")
    axes.set_ylim(1e-6 * top, 2 * top)
    axes.set_xlabel("eigenvalue")
    axes.set_ylabel("density")
    axes.grid(color="#dfe3e8")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return save_figure(figure, path)


def save_figure(figure: Figure, path: str | Path, dpi: int = 160) -> Path:
    """Write a PNG, whole or not at all."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi)
    return write_atomically(path, content.getvalue())


def _panel(axes: Axes, pivots: Mapping[str, Pivot], quantity: str, title: str) -> None:
    columns = {
        (name, matrix): pivot.column(f"{quantity}({matrix})") for name, pivot in pivots.items() for matrix in STYLES
    }
    layers = list(dict.fromkeys(layer for column in columns.values() for layer in column))
    scale = LogScale.of(value for column in columns.values() for value in column.values())
    for (name, matrix), column in columns.items():
        colour = COLOURS[list(pivots).index(name) % len(COLOURS)]
        places = [layers.index(layer) for layer in column]
        heights = [value if scale.is_finite(value) else float("nan") for value in column.values()]
        axes.plot(places, heights, STYLES[matrix], color=colour, marker="o", markersize=3, label=f"{name}, {matrix}")
        for place, value in zip(places, column.values(), strict=True):
            if not scale.is_finite(value):
                axes.plot(place, scale.place(value), "v" if value <= 0 else "^", color=colour, markersize=5)
    _dress(axes, layers, scale)
    axes.set_title(title, loc="left", fontsize=11)


def _dress(axes: Axes, layers: Sequence[str], scale: LogScale) -> None:
    axis = scale.axis()
    axes.set_yscale("log")
    axes.set_yticks(axis["tickvals"], axis["ticktext"])
    axes.minorticks_off()
    axes.set_ylim(*(math.pow(10, min(exponent, 308.0)) for exponent in axis["range"]))
    stride = -(-len(layers) // MOST_LABELS) or 1
    names = [shortened(layer, 16) for layer in layers[::stride]]
    axes.set_xticks(range(0, len(layers), stride), names, rotation=90, fontsize=8)
    axes.set_xlabel("layer")
    axes.grid(axis="y", color="#dfe3e8")
    axes.spines[["top", "right"]].set_visible(False)
