"""Pictures of recorded runs: the loss with what was found, the rate against its limit, and layers over steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wellcond.diagnosis.finding import Finding, Severity
from wellcond.errors import OutputError
from wellcond.recording.comparison import Comparison
from wellcond.recording.history import History, Series
from wellcond.recording.run import Run
from wellcond.report.figures.style import COLORS, GRAY, LOG_FROM, bare_axes, look_of, new_figure
from wellcond.results import quantities as q
from wellcond.results.quantities import title_of
from wellcond.results.rendering import renders

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OF_SEVERITY: Mapping[Severity, str] = {"severe": COLORS[0], "warning": COLORS[4], "note": GRAY}
SMOOTHED = 60
"""Medians over this many stretches of a run are drawn over its single losses."""
MOST_MARKS = 8
"""Findings that are marked on the loss, the worst first; more cannot be read."""
MOST_NAMES = 24
"""Layers whose names are written at a heat map."""
LAYER_QUANTITIES = (q.GRADIENT_NORM, q.UPDATE_RATIO, q.SIGNAL_RMS, q.DEAD_SHARE)
"""Quantities of layers, of which the first two that were recorded are drawn."""


@renders("figure", Run)
def run_figure(run: Run) -> Figure:
    """The loss with findings marked, the rate against its limit, and two quantities of layers over the steps."""
    history = run.history
    if not len(history.series(q.TRAINING_LOSS)):
        raise OutputError("the run has no losses yet, so there is nothing to draw.")
    of_layers = [name for name in LAYER_QUANTITIES if history.layers(name)][:2]
    figure = new_figure(11, 6.6 if of_layers else 3.6)
    panels = list(figure.subplots(2 if of_layers else 1, 2).flat)
    _draw_losses(panels[0], history, run.findings)
    _draw_rates(panels[1], history)
    for axes, quantity in zip(panels[2:], of_layers, strict=False):
        _draw_heat_map(axes, history, quantity)
    for unused in panels[2 + len(of_layers) :]:
        unused.set_axis_off()
    return figure


@renders("figure", Comparison)
def comparison_figure(comparison: Comparison) -> Figure:
    """The losses of all runs."""
    return loss_figure(comparison.runs)


def loss_figure(runs: Mapping[str, Run]) -> Figure:
    """The losses of several runs, by name, in one panel."""
    figure = new_figure(8, 4)
    axes = figure.subplots()
    bare_axes(axes, title="loss", x="step")
    drawn = [run.history.series(q.TRAINING_LOSS) for run in runs.values()]
    _choose_scale(axes, np.concatenate([series.values for series in drawn]))
    for place, (name, series) in enumerate(zip(runs, drawn, strict=True)):
        axes.plot(series.steps, series.values, color=look_of(place)["color"], alpha=0.2, linewidth=0.6)
        smooth = _medians(series)
        axes.plot(smooth.steps, smooth.values, **look_of(place), linewidth=1.8, label=name)
    axes.legend(frameon=False)
    return figure


def _draw_losses(axes: Axes, history: History, findings: tuple[Finding, ...]) -> None:
    losses, validation = history.series(q.TRAINING_LOSS), history.series(q.VALIDATION_LOSS)
    bare_axes(axes, title="loss", x="step")
    _choose_scale(axes, np.concatenate((losses.values, validation.values)))
    axes.plot(losses.steps, losses.values, color=COLORS[1], alpha=0.3, linewidth=0.7)
    smooth = _medians(losses)
    axes.plot(smooth.steps, smooth.values, color=COLORS[1], linewidth=1.8, label="training")
    if len(validation):
        axes.plot(validation.steps, validation.values, "o-", color=COLORS[2], markersize=3, label="validation")
        axes.legend(frameon=False, loc="lower left")
    last = int(losses.steps[-1])
    for place, finding in enumerate(findings[:MOST_MARKS]):
        if finding.step is None:
            continue
        color = OF_SEVERITY[finding.severity]
        end = last if finding.until is None else finding.until
        axes.axvspan(finding.step, max(end, finding.step), color=color, alpha=0.08, linewidth=0)
        axes.axvline(finding.step, color=color, linewidth=1.2, linestyle="--")
        where = f" at {finding.layer}" if finding.layer else ""
        is_late = finding.step > last / 2
        axes.annotate(
            f"{finding.rule}{where}", (finding.step, 0.97 - 0.075 * place), color=color, fontsize=8, va="top",
            xycoords=axes.get_xaxis_transform(), ha="right" if is_late else "left",
            xytext=(-4 if is_late else 4, 0), textcoords="offset points",
        )  # fmt: skip


def _draw_rates(axes: Axes, history: History) -> None:
    """The rate, which stays as it is until it changes, and the largest stable one where it was measured."""
    rates, limits = history.series(q.LR), history.series(q.MAX_LR)
    bare_axes(axes, title="learning rate and its limit", x="step")
    losses = history.series(q.TRAINING_LOSS)
    if len(rates):
        steps, values = np.append(rates.steps, losses.steps[-1]), np.append(rates.values, rates.values[-1])
        axes.step(steps, values, where="post", color=COLORS[1], linewidth=1.6, label="learning rate")
    if len(limits):
        axes.plot(limits.steps, limits.values, "o--", color=COLORS[0], markersize=3, label="largest stable rate")
    _choose_scale(axes, np.concatenate((rates.values, limits.values)))
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False)


def _draw_heat_map(axes: Axes, history: History, quantity: str) -> None:
    layers = history.layers(quantity)
    steps = np.unique(np.concatenate([history.series(quantity, layer).steps for layer in layers]))
    image = np.full((len(layers), len(steps)), math.nan)
    for line, layer in zip(image, layers, strict=True):
        series = history.series(quantity, layer)
        line[np.searchsorted(steps, series.steps)] = series.values
        _hold_over_gaps(line)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log10(image)
    logs[~np.isfinite(logs)] = math.nan
    is_log = quantity != q.DEAD_SHARE
    places = np.arange(len(layers))
    colors = axes.pcolormesh(steps, places, logs if is_log else image, cmap="viridis", shading="nearest")
    label = axes.figure.colorbar(colors, ax=axes)
    label.set_label("log₁₀" if is_log else "")
    every = math.ceil(len(layers) / MOST_NAMES)
    axes.set_yticks(range(0, len(layers), every), layers[::every], fontsize=7)
    axes.invert_yaxis()
    axes.set_title(title_of(quantity), loc="left", fontsize=11)
    axes.set_xlabel("step")


def _hold_over_gaps(line: NDArray[np.float64]) -> None:
    """Fill the steps at which other layers were measured with the value before them."""
    last = math.nan
    for place, value in enumerate(line):
        if math.isnan(value):
            line[place] = last
        else:
            last = value


def _medians(series: Series) -> Series:
    """Medians over stretches of the run, at the middle of each."""
    stretches = list(_stretches(len(series)))
    middles = [series.steps[(low + high) // 2] for low, high in stretches]
    with np.errstate(invalid="ignore"):
        heights = [float(np.median(series.values[low:high])) for low, high in stretches]
    return Series(np.array(middles, np.int64), np.array(heights))


def _stretches(length: int) -> Iterator[tuple[int, int]]:
    ends = np.unique(np.linspace(0, length, min(length, SMOOTHED) + 1).astype(int))
    yield from zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)


def _choose_scale(axes: Axes, values: NDArray[np.float64]) -> None:
    """A logarithmic axis for positive values that span far."""
    finite = values[np.isfinite(values)]
    if len(finite) and finite.min() > 0 and finite.max() > LOG_FROM * finite.min():
        axes.set_yscale("log")
