"""What the plots of a page show (`data` and `layout`, drawn by plot.js), below headings that say which way is good.

Colors are names of CSS variables, which have the values of a light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from wellcond.curvature.spectra.density import Density
from wellcond.report.figures.style import LOG_FROM, Curve, LogScale
from wellcond.report.table import MATRICES, Pivot, over_training
from wellcond.results import Row, number
from wellcond.results.quantities import DYING, FULL, TRAINING_LOSS, UNITS
from wellcond.results.text import shortened

Plot = dict[str, Any]

SERIES_COLORS = 6
MOST_LAYER_TICKS = 24
DESCRIPTIONS = {"Σx": "what the layers receive", "Σ∇h": "the gradients at their outputs"}


@dataclass(frozen=True)
class Panel:
    """Plots that answer one question.

    Attributes:
        heading: Title of the panel.
        note: How to read the plots.
        plots: Plots by caption.
    """

    heading: str
    note: str
    plots: dict[str, Plot]


def panels(series: Mapping[str, Sequence[Row]], densities: Mapping[str, Density] | None = None) -> list[Panel]:
    """The panels for which there is something to draw, most important first.

    Args:
        series: Rows by network.
        densities: Spectral densities of the Hessian by network.
    """
    pivots = {name: Pivot.of(rows) for name, rows in series.items()}
    curves = {name: over_training(rows, TRAINING_LOSS) for name, rows in series.items()}
    measured = {m: [name for name in pivots if pivots[name].column(q.lambda_max)] for m, q in MATRICES.items()}
    every = [
        Panel(
            "Training",
            "The loss of each mini-batch, at the learning rate that served each network best. Lower is better.",
            {"loss over training": training_plot(curves)} if any(steps for steps, _ in curves.values()) else {},
        ),
        Panel(
            "Signal and gradient, layer by layer",
            "The largest eigenvalue of each layer's second moment, on a logarithmic scale. Healthy networks move over "
            "a few decades, where channels, positions or residual branches change; findings say where it matters.",
            {
                f"λmax of {matrix}: {DESCRIPTIONS[matrix]}": magnitude_plot(pivots, matrix)
                for matrix, names in measured.items()
                if names
            },
        ),
        *(_kappa_panel({name: pivots[name] for name in names}, matrix) for matrix, names in measured.items()),
        Panel(
            "Dead and always-on units",
            "ReLU units that are zero, or positive, on every example: a dead unit passes no gradient, and one that is "
            "always on is linear.",
            {name: neurons_plot(pivot) for name, pivot in pivots.items() if pivot.column(UNITS)},
        ),
        Panel(
            "Spectral density of the Hessian",
            "How many directions have which curvature, on a logarithmic scale. Narrow is good: the right end limits "
            "the learning rate, and what lies near zero then moves slowly. Left of zero the loss curves downwards.",
            {name: density_plot(of, list(series).index(name)) for name, of in (densities or {}).items()},
        ),
    ]
    return [panel for panel in every if panel.plots]


def _kappa_panel(pivots: Mapping[str, Pivot], matrix: str) -> Panel:
    scale = kappa_scale(pivots.values(), matrix)
    return Panel(
        f"Condition numbers of {matrix}, {DESCRIPTIONS[matrix]}",
        "The largest eigenvalue over the one at 20, 50, 80 and 100 % of all, counted from the largest. The lower, the "
        "more evenly a step moves all directions. ▲ at ∞: directions that carry nothing, as with few examples.",
        {name: kappa_plot(pivot, matrix, scale) for name, pivot in pivots.items()},
    )


def magnitude_plot(pivots: Mapping[str, Pivot], matrix: str) -> Plot:
    """λ_max of Σx or Σ∇h against the layer, one line per network."""
    columns = {name: pivot.column(MATRICES[matrix].lambda_max) for name, pivot in pivots.items()}
    layers = list(dict.fromkeys(layer for column in columns.values() for layer in column))
    scale = LogScale.of(value for column in columns.values() for value in column.values())
    data = []
    for i, (name, column) in enumerate(columns.items()):
        data += _line(name, column, scale, f"series-{i % SERIES_COLORS}", lane=i)
    return {"data": data, "layout": _layout(_layer_axis(layers), f"λmax of {matrix}", scale, len(pivots) > 1)}


def kappa_plot(pivot: Pivot, matrix: str, scale: LogScale) -> Plot:
    """κ_p of every layer, one line per share p."""
    names = MATRICES[matrix]
    layers = list(pivot.column(names.lambda_max))
    data = []
    for i, (share, quantity) in enumerate(names.kappa.items()):
        title = f"κ{share:.0%}"
        # κ_p grows with p: the outermost lane belongs to the largest
        lane = len(names.kappa) - 1 - i
        data += _line(title, pivot.column(quantity), scale, f"share-{i}", lane)
    return {"data": data, "layout": _layout(_layer_axis(layers), f"κ of {matrix}", scale, True)}


def kappa_scale(pivots: Iterable[Pivot], matrix: str) -> LogScale:
    """One axis for all networks, so that their plots compare."""
    quantities = MATRICES[matrix].kappa.values()
    return LogScale.of(value for pivot in pivots for q in quantities for value in pivot.column(q).values())


def neurons_plot(pivot: Pivot) -> Plot:
    """Dead and always-on units, stacked, as a share of the layer's units."""
    units = pivot.column(UNITS)
    data: list[Plot] = []
    for quantity, word, color in ((DYING, "dead", "dead"), (FULL, "always on", "full")):
        counts = pivot.column(quantity)
        data.append(
            {
                "type": "bar",
                "name": word,
                "x": list(counts),
                "y": [100 * count / max(units[layer], 1.0) for layer, count in counts.items()],
                "customdata": [f"{count:.0f} of {units[layer]:.0f} units {word}" for layer, count in counts.items()],
                "marker": {"color": color},
            }
        )
    layout = _layout(_layer_axis(list(units)), "% of units", None, True)
    layout["yaxis"] |= {"range": [0, 100]}
    layout |= {"barmode": "stack", "bargap": 0.25}
    if not any(bar for trace in data for bar in trace["y"]):
        layout["annotations"] = [_note(f"none of {sum(units.values()):,.0f} units is dead or always on")]
    return {"data": data, "layout": layout}


def density_plot(density: Density, color: int) -> Plot:
    """The spectral density of the Hessian, six decades deep."""
    layout = _layout({"title": {"text": "eigenvalue λ of the Hessian"}}, "density", None, False)
    places, heights = density.grid.tolist(), density.density.tolist()
    peak = max(heights, default=0.0)
    if not all(map(math.isfinite, [*places, *heights])) or peak <= 0:
        return {"data": [], "layout": layout | {"annotations": [_note("NaN: the Hessian overflows the model's dtype")]}}
    line = _curve("", places, [max(height, peak * 1e-7) for height in heights], color)
    layout["yaxis"] |= LogScale.of([peak * 1e-6, peak]).axis()
    return {"data": [line], "layout": layout}


def training_plot(curves: Mapping[str, Curve]) -> Plot:
    """The loss against the training step, one line per network."""
    layout = _layout({"title": {"text": "training step"}}, "training loss", None, len(curves) > 1)
    known = [[loss for loss in losses if not math.isnan(loss)] for _, losses in curves.values()]
    begin, top = (max((pick(losses) for losses in known if losses), default=0.0) for pick in (itemgetter(0), max))
    # on a linear axis a run that diverges would flatten all others
    is_wide = top > LOG_FROM * begin and all(loss >= 0 for losses in known for loss in losses)
    layout["yaxis"] |= {"type": "log"} if is_wide else {"rangemode": "tozero"}
    data = []
    for i, (name, (steps, losses)) in enumerate(curves.items()):
        # a loss that is fitted to 0 leaves a gap where the axis has no 0
        heights = [None if math.isnan(loss) or (is_wide and loss == 0) else loss for loss in losses]
        data.append(_curve(name, steps, heights, i))
    return {"data": data, "layout": layout}


def _curve(name: str, places: Sequence[float], heights: Sequence[float | None], color: int) -> Plot:
    line = {"color": f"series-{color % SERIES_COLORS}", "width": 2}
    return {"type": "scatter", "mode": "lines", "name": name, "x": places, "y": heights, "line": line}


def _line(name: str, column: Mapping[str, float], scale: LogScale, color: str, lane: int) -> list[Plot]:
    """A line through the values, and triangles where they are zero or infinite: never dropped."""
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": list(column),
        "y": [value if scale.is_finite(value) else None for value in column.values()],
        "customdata": [number(value) for value in column.values()],
        "line": {"color": color, "width": 2},
        "marker": {"color": color, "size": 6},
    }
    off = {layer: value for layer, value in column.items() if not scale.is_finite(value)}
    if not off:
        return [line]
    symbols = ["triangle-down" if value <= 0 else "triangle-up" for value in off.values()]
    marks = line | {
        "mode": "markers",
        "showlegend": False,
        "x": list(off),
        "y": [scale.place(value, lane) for value in off.values()],
        "customdata": [number(value) for value in off.values()],
        "marker": {"color": color, "size": 8, "symbol": symbols},
    }
    return [line, marks]


def _layer_axis(layers: Sequence[str]) -> Plot:
    """Layers in their order; long names by their ends, and no more labels than can be read."""
    stride = -(-len(layers) // MOST_LAYER_TICKS) or 1
    return {
        "type": "category",
        "categoryarray": list(layers),
        "tickvals": list(range(0, len(layers), stride)),
        "ticktext": [shortened(layer, 22) for layer in layers[::stride]],
        "title": {"text": "layer"},
    }


def _layout(x_axis: Plot, y_title: str, scale: LogScale | None, legend: bool) -> Plot:
    return {
        "xaxis": x_axis,
        "yaxis": {"title": {"text": y_title}} | (scale.axis() if scale else {}),
        "showlegend": legend,
    }


def _note(text: str) -> Plot:
    """A sentence in the middle of a plot that has nothing to draw."""
    return {"text": text}
