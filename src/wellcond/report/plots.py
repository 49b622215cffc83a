"""Interactive plots as plain plotly figures (`data` and `layout`), made from rows.

Colours are names of CSS variables; the page puts in those of its light or dark theme.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wellcond.report.columns import shortened
from wellcond.report.pivot import Pivot
from wellcond.report.scale import LogScale
from wellcond.results import Row, number

Figure = dict[str, Any]

SHARES = ("20%", "50%", "80%", "100%")
SERIES_COLOURS = 6
MOST_LAYER_TICKS = 24


def magnitude_figure(pivots: Mapping[str, Pivot], matrix: str) -> Figure:
    """λ_max of Σx or Σ∇h against the layer, one line a network."""
    columns = {name: pivot.column(f"lambda_max({matrix})") for name, pivot in pivots.items()}
    layers = list(dict.fromkeys(layer for column in columns.values() for layer in column))
    scale = LogScale.of(value for column in columns.values() for value in column.values())
    data = []
    for i, (name, column) in enumerate(columns.items()):
        data += _line(name, column, scale, f"series-{i % SERIES_COLOURS}", f"λmax({matrix})", lane=i)
    return {"data": data, "layout": _layout(_layer_axis(layers), f"λmax of {matrix}", scale, len(pivots) > 1)}


def kappa_figure(pivot: Pivot, matrix: str, scale: LogScale) -> Figure:
    """κ_p of every layer, one line a share p."""
    layers = list(pivot.column(f"lambda_max({matrix})"))
    data = []
    for i, share in enumerate(SHARES):
        column = pivot.column(f"kappa_{share}({matrix})")
        # κ_p grows with p: the outermost lane belongs to the largest
        data += _line(f"κ{share}", column, scale, f"share-{i}", f"κ{share}({matrix})", lane=len(SHARES) - 1 - i)
    return {"data": data, "layout": _layout(_layer_axis(layers), f"κ of {matrix}", scale, True)}


def kappa_scale(pivots: Iterable[Pivot], matrix: str) -> LogScale:
    """One axis for all networks, so that their plots compare."""
    return LogScale.of(
        value for pivot in pivots for share in SHARES for value in pivot.column(f"kappa_{share}({matrix})").values()
    )


def neurons_figure(pivot: Pivot) -> Figure:
    """Dead and always-on units, stacked, as a share of the layer's units."""
    units = pivot.column("units")
    data: list[Figure] = []
    for quantity, word, colour in (("dying", "dead", "dead"), ("full", "always on", "full")):
        counts = pivot.column(quantity)
        data.append(
            {
                "type": "bar",
                "name": word,
                "x": [_label(layer) for layer in counts],
                "y": [100 * count / max(units[layer], 1.0) for layer, count in counts.items()],
                "customdata": [f"{count:.0f} of {units[layer]:.0f} units {word}" for layer, count in counts.items()],
                "hovertemplate": "%{customdata}<extra></extra>",
                "marker": {"color": colour},
            }
        )
    layout = _layout(_layer_axis(list(units)), "% of units", None, True)
    layout["yaxis"] |= {"range": [0, 100]}
    layout |= {"barmode": "stack", "bargap": 0.25}
    if not any(bar for trace in data for bar in trace["y"]):
        text = f"none of {sum(units.values()):,.0f} units is dead or always on"
        layout["annotations"] = [_note(text)]
    return {"data": data, "layout": layout}


def density_figure(rows: Sequence[Row], colour: int) -> Figure:
    """The spectral density of the Hessian, six decades deep."""
    layout = _layout({"title": {"text": "eigenvalue λ of the Hessian"}}, "density", None, False)
    points = [(float(m[1]), row.value) for row in rows if (m := re.fullmatch(r"density\((.+)\)", row.quantity))]
    peak = max((value for _, value in points), default=0.0)
    if not all(math.isfinite(x) and math.isfinite(value) for x, value in points) or peak <= 0:
        return {"data": [], "layout": layout | {"annotations": [_note("NaN: the Hessian overflows the model's dtype")]}}
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": [x for x, _ in points],
        "y": [max(value, peak * 1e-7) for _, value in points],
        "line": {"color": f"series-{colour % SERIES_COLOURS}", "width": 2},
        "hovertemplate": "λ = %{x:.3g}<br>density %{y:.2g} a unit of λ<extra></extra>",
    }
    layout["yaxis"] |= LogScale.of([peak * 1e-6, peak]).axis()
    return {"data": [line], "layout": layout | {"hovermode": "closest"}}


def training_figure(curves: Mapping[str, Mapping[int, float]]) -> Figure:
    """The loss against the training step, one line a network."""
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": _label(name),
            "x": list(curve),
            "y": [value if math.isfinite(value) else None for value in curve.values()],
            "line": {"color": f"series-{i % SERIES_COLOURS}", "width": 2},
            "hovertemplate": "loss %{y:.4g}",
        }
        for i, (name, curve) in enumerate(curves.items())
    ]
    layout = _layout({"title": {"text": "SGD step"}}, "training loss", None, len(curves) > 1)
    layout["yaxis"] |= {"rangemode": "tozero"}
    return {"data": data, "layout": layout}


def _line(
    name: str, column: Mapping[str, float], scale: LogScale, colour: str, quantity: str, lane: int
) -> list[Figure]:
    """A line through the values, and triangles where they are zero or infinite: never dropped."""
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": _label(name),
        "legendgroup": _label(name),
        "x": [_label(layer) for layer in column],
        "y": [value if scale.is_finite(value) else None for value in column.values()],
        "customdata": [number(value) for value in column.values()],
        "hovertemplate": quantity + " = %{customdata}",
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "size": 6},
    }
    off = {layer: value for layer, value in column.items() if not scale.is_finite(value)}
    if not off:
        return [line]
    marks = line | {
        "mode": "markers",
        "showlegend": False,
        "x": [_label(layer) for layer in off],
        "y": [scale.place(value, lane) for value in off.values()],
        "customdata": [number(value) for value in off.values()],
        "marker": {
            "color": colour,
            "size": 8,
            "symbol": ["triangle-down" if value <= 0 else "triangle-up" for value in off.values()],
        },
    }
    return [line, marks]


def _layer_axis(layers: Sequence[str]) -> Figure:
    """Layers in their order; long names by their ends, and no more labels than can be read."""
    stride = -(-len(layers) // MOST_LAYER_TICKS) or 1
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": [_label(layer) for layer in layers],
        "range": [-0.5, len(layers) - 0.5],
        "tickmode": "array",
        "tickvals": list(range(0, len(layers), stride)),
        "ticktext": [_label(shortened(layer, 22)) for layer in layers[::stride]],
        "title": {"text": "layer"},
    }


def _layout(x_axis: Figure, y_title: str, scale: LogScale | None, legend: bool) -> Figure:
    lines = {"gridcolor": "rule", "linecolor": "rule", "zerolinecolor": "rule", "automargin": True}
    return {
        "xaxis": lines | {"showgrid": False} | x_axis,
        "yaxis": lines | {"title": {"text": y_title}} | (scale.axis() if scale else {}),
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "hovermode": "x unified",
        "hoverlabel": {"bgcolor": "paper", "bordercolor": "rule", "font": {"color": "ink"}},
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "ink"},
        "margin": {"l": 64, "r": 12, "t": 36, "b": 48},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "muted", "activecolor": "ink"},
        "height": 340,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }


def _note(text: str) -> Figure:
    """A sentence in the middle of a plot that has nothing to draw."""
    middle = {"xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False}
    return middle | {"text": text, "font": {"color": "muted"}}


def _label(text: str) -> str:
    """Plotly reads some HTML in labels; a layer's name is shown as it is."""
    return html.escape(text, quote=False)
