"""Which plots a set of rows gives, under which heading, and the sentence that says which way is good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wellcond.report import plots
from wellcond.report.pivot import Pivot
from wellcond.results import Row

MATRICES = {"Σx": "what the layers receive", "Σ∇h": "the gradients at their outputs"}


@dataclass(frozen=True)
class Panel:
    """Plots that answer one question. figures: by caption."""

    heading: str
    note: str
    figures: dict[str, plots.Figure]


def panels(series: Mapping[str, Sequence[Row]]) -> list[Panel]:
    """The panels for which there are rows, most telling first."""
    pivots = {name: Pivot.of(rows) for name, rows in series.items()}
    every = [
        _training(series),
        _magnitudes(pivots),
        *(_kappas(pivots, matrix) for matrix in MATRICES),
        _neurons(pivots),
        _density(series),
    ]
    return [panel for panel in every if panel.figures]


def _training(series: Mapping[str, Sequence[Row]]) -> Panel:
    curves = {
        name: {row.step: row.value for row in rows if row.quantity == "training_loss" and row.step is not None}
        for name, rows in series.items()
    }
    note = "The loss of each mini-batch, at the learning rate that served each network best. Lower is better."
    drawn = {"loss over training": plots.training_figure(curves)} if any(curves.values()) else {}
    return Panel("Training", note, drawn)


def _magnitudes(pivots: Mapping[str, Pivot]) -> Panel:
    note = (
        "The largest eigenvalue of each layer's second moment, on a logarithmic scale. Level lines are good: a line "
        "that falls or climbs over many decades is a signal, or a gradient, that vanishes or explodes."
    )
    drawn = {
        f"λmax of {matrix}: {what}": plots.magnitude_figure(pivots, matrix)
        for matrix, what in MATRICES.items()
        if any(pivot.column(f"lambda_max({matrix})") for pivot in pivots.values())
    }
    return Panel("Signal and gradient, layer by layer", note, drawn)


def _kappas(pivots: Mapping[str, Pivot], matrix: str) -> Panel:
    note = (
        "The largest eigenvalue over the one at 20, 50, 80 and 100 % of all, counted from the largest. Low is good: a "
        "step that suits the strongest direction also moves the weaker ones. ▲ at ∞: directions that carry nothing."
    )
    measured = {name: pivot for name, pivot in pivots.items() if pivot.column(f"lambda_max({matrix})")}
    scale = plots.kappa_scale(measured.values(), matrix)
    drawn = {name: plots.kappa_figure(pivot, matrix, scale) for name, pivot in measured.items()}
    return Panel(f"Condition numbers of {matrix}, {MATRICES[matrix]}", note, drawn)


def _neurons(pivots: Mapping[str, Pivot]) -> Panel:
    note = (
        "ReLU units that are zero, or positive, on every example. Few is good: a dead unit passes no gradient, and one "
        "that is always on is linear."
    )
    drawn = {name: plots.neurons_figure(pivot) for name, pivot in pivots.items() if pivot.column("units")}
    return Panel("Dead and always-on units", note, drawn)


def _density(series: Mapping[str, Sequence[Row]]) -> Panel:
    note = (
        "How many directions have which curvature, on a logarithmic scale. Narrow is good: the right end limits the "
        "learning rate, and what lies near zero then moves slowly. Left of zero the loss curves downwards."
    )
    drawn = {
        name: plots.density_figure(rows, i)
        for i, (name, rows) in enumerate(series.items())
        if any(row.quantity.startswith("density(") for row in rows)
    }
    return Panel("Spectral density of the Hessian", note, drawn)
