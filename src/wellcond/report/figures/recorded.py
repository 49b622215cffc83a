"""Still pictures of recorded runs: findings above the loss, the rate against its limit; losses of several runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wellcond.diagnosis.finding import Finding, Severity
from wellcond.errors import OutputError
from wellcond.recording.comparison import Comparison
from wellcond.recording.history import History, Series
from wellcond.recording.run import Run
from wellcond.report.figures.style import COLORS, LOG_FROM, bare_axes, look_of, new_figure
from wellcond.report.text import headline
from wellcond.report.thinning import thinned
from wellcond.results import quantities as q
from wellcond.results.rendering import renders

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIRST_LOOK: dict[str, Any] = {"color": COLORS[1]}
SECOND_LOOK: dict[str, Any] = {"color": COLORS[0], "linestyle": "--"}
"""Of the loss and the rate, and of the validation loss and the limit."""
SEVERITY_INKS: dict[Severity, str] = {"severe": "#b3261e", "warning": "#8a5a00", "note": "#0b5c8f"}
MOST_BARS = 8
"""Findings that are drawn, the first ones; a page has all."""
BAR_HEIGHT = 0.24
"""Inches of a finding."""


@renders("figure", Run)
def recorded_figure(run: Run) -> Figure:
    """The findings from where they began to where they ended, the loss, and the learning rate against its limit."""
    if not len(run.history.series(q.TRAINING_LOSS)):
        raise OutputError("no loss was recorded yet, so there is nothing to draw.")
    findings = [each for each in run.findings if each.step is not None][:MOST_BARS]
    heights = [max(len(findings), 1) * BAR_HEIGHT, 2.8, 1.6]
    figure = new_figure(9, sum(heights) + 0.6)
    above, loss, rate = figure.subplots(3, 1, sharex=True, height_ratios=heights)
    _draw_findings(above, findings, run.last_step)
    _draw_losses(loss, run.history)
    _draw_rate(rate, run.history, run.last_step)
    for each in findings:
        loss.axvline(each.step, color=SEVERITY_INKS[each.severity], linestyle=":", linewidth=1)
    rate.set_xlim(0, max(run.last_step, 2))
    rate.set_xlabel("step")
    return figure


@renders("figure", Comparison)
def comparison_figure(comparison: Comparison) -> Figure:
    """The training losses of all runs."""
    figure = new_figure(8, 4.2)
    axes = figure.subplots()
    for i, (name, run) in enumerate(comparison.runs.items()):
        _plot(axes, run.history.series(q.TRAINING_LOSS), name, look_of(i))
    _set_scale(axes, [run.history.series(q.TRAINING_LOSS) for run in comparison.runs.values()])
    bare_axes(axes, x="step", y="training loss")
    axes.legend(frameon=False)
    return figure


def _draw_findings(axes: Axes, findings: Sequence[Finding], last_step: int) -> None:
    for row, each in enumerate(findings):
        color = SEVERITY_INKS[each.severity]
        begin, end = each.step or 0, last_step if each.until is None else each.until
        axes.barh(-row, end - begin, left=begin, height=0.5, color=color, alpha=0.35)
        axes.plot([begin, begin], [-row - 0.35, -row + 0.35], color=color, linewidth=2)
        is_late, is_short = begin > 0.6 * last_step, end - begin < 0.3 * last_step
        axes.annotate(
            f"{headline(each)}, {each.when}",
            (end if is_short and not is_late else begin, -row),
            xytext=(-5 if is_late else 5, 0),
            textcoords="offset points",
            ha="right" if is_late else "left",
            va="center",
            fontsize=8,
            color=color,
        )
    if not findings:
        axes.text(0.0, 0.0, "nothing was found", va="center", fontsize=8, color="#616b78")
    axes.set_ylim(-max(len(findings), 1) + 0.4, 0.6)
    axes.set_axis_off()


def _draw_losses(axes: Axes, history: History) -> None:
    curves = {"training": history.series(q.TRAINING_LOSS), "validation": history.series(q.VALIDATION_LOSS)}
    curves = {name: series for name, series in curves.items() if len(series)}
    for (name, series), look in zip(curves.items(), (FIRST_LOOK, SECOND_LOOK), strict=False):
        _plot(axes, series, name, look)
    _set_scale(axes, list(curves.values()))
    broken = curves["training"].steps[~np.isfinite(curves["training"].values)]
    if len(broken):
        top = [1.0] * len(broken)
        axes.plot(broken, top, "^", color=SEVERITY_INKS["severe"], transform=axes.get_xaxis_transform(), clip_on=False)
    bare_axes(axes, y="loss")
    if len(curves) > 1:
        axes.legend(frameon=False)


def _draw_rate(axes: Axes, history: History, last_step: int) -> None:
    rate, limit = history.series(q.LR), history.series(q.MAX_LR)
    if len(rate):
        steps, values = np.append(rate.steps, last_step), np.append(rate.values, rate.values[-1])
        axes.step(steps, values, where="post", label="learning rate", **FIRST_LOOK)
    if len(limit):
        axes.plot(limit.steps, limit.values, marker="o", markersize=3, label="largest stable rate", **SECOND_LOOK)
        low, high = history.series(q.MAX_LR_LOW), history.series(q.MAX_LR_HIGH)
        if len(low) == len(high) == len(limit):
            axes.fill_between(limit.steps, low.values, high.values, color=SECOND_LOOK["color"], alpha=0.18, linewidth=0)
    _set_scale(axes, [each for each in (rate, limit) if len(each)])
    bare_axes(axes, y="rate")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)


def _plot(axes: Axes, series: Series, name: str, look: Mapping[str, Any]) -> None:
    shown = thinned(series)
    heights = np.where(np.isfinite(shown.values), shown.values, np.nan)
    axes.plot(shown.steps, heights, linewidth=1.2, label=name, **look)


def _set_scale(axes: Axes, curves: Sequence[Series]) -> None:
    values = np.concatenate([np.empty(0), *(each.values for each in curves)])
    values = values[np.isfinite(values)]
    if len(values) and values.min() > 0 and values.max() > LOG_FROM * values.min():
        axes.set_yscale("log")
