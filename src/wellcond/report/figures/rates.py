"""Pictures of learning rates: a race of some, what each layer adds to the predicted λ_max, and λ_max against γ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from torch import Tensor

from wellcond.errors import OutputError
from wellcond.learning_rate.meanfield.prediction import Prediction
from wellcond.learning_rate.race.outcome import Race
from wellcond.learning_rate.race.rate_table import RateTable
from wellcond.learning_rate.race.suggested_rate import SuggestedRate
from wellcond.report.figures.curves import label_layers
from wellcond.report.figures.style import COLORS, GRAY, bare_axes, draw_curves, legend_below, new_figure
from wellcond.results import number
from wellcond.results.rendering import renders

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@renders("figure", SuggestedRate)
def suggestion_figure(suggestion: SuggestedRate) -> Figure:
    """The race: the loss over the steps, and over the learning rate; without a race, the prediction's figure."""
    race, predicted = suggestion.race, suggestion.predicted
    if race is None and predicted is not None:
        return prediction_figure(predicted)
    if race is None or not race.longest:
        raise OutputError("there was no race and no prediction, so there is nothing to draw.")
    limits = {} if suggestion.limit is None else {"limit of the curvature": suggestion.limit.value}
    if predicted is not None:
        limits["limit predicted"] = float(predicted.max_lr)
    return race_figure(race, limits)


def race_figure(race: Race, limits: Mapping[str, float]) -> Figure:
    """The loss of every run over its steps, and its final loss over the learning rate.

    Runs that diverged are crosses at the upper edge.

    Args:
        race: Runs at several learning rates.
        limits: Learning rates by name, drawn as vertical lines; one that is not finite is left out.

    Returns:
        The figure.
    """
    figure = new_figure(10.5, 4.4)
    over_steps, over_rates = figure.subplots(1, 2)
    longest = max(len(run.losses) for run in race.runs.values())
    window = max(1, longest // 12)
    smooth = {
        lr: [fmean(run.losses[max(0, k - window) : k]) for k in range(1, len(run.losses) + 1)]
        for lr, run in race.runs.items()
    }
    begin = max((means[0] for means in smooth.values() if means), default=1.0)
    top = begin + 0.3 * abs(begin)
    for place, (lr, means) in enumerate(smooth.items()):
        color = _between(COLORS[2], COLORS[0], place / max(len(smooth) - 1, 1))
        shown = [loss if loss <= top else math.nan for loss in means]
        label, width = (f"lr {lr:.2g}", 1.8) if len(means) == longest else (None, 0.9)
        over_steps.plot(range(1, len(shown) + 1), shown, color=color, linewidth=width, label=label)
    for steps in sorted({len(run.losses) for run in race.runs.values() if run.diverged_at is None}):
        points = [(lr, min(means[steps - 1], top)) for lr, means in smooth.items() if len(means) >= steps > 0]
        line, width = (COLORS[1], 1.8) if steps == longest else (GRAY, 0.9)
        over_rates.plot(*zip(*points, strict=True), "o-", color=line, linewidth=width, label=f"after {steps} steps")
    diverged = [lr for lr, run in race.runs.items() if run.diverged_at is not None]
    over_rates.plot(diverged, [0.97] * len(diverged), "x", color=COLORS[0], transform=over_rates.get_xaxis_transform())
    for (name, rate), dashes in zip(limits.items(), (COLORS[0], COLORS[3]), strict=False):
        if math.isfinite(rate):
            over_rates.axvline(rate, color=dashes, linestyle="--", linewidth=1.2, label=f"{name}: {rate:.3g}")
    if math.isfinite(race.lr):
        over_rates.axvspan(race.low, race.high, color=COLORS[2], alpha=0.15, linewidth=0)
        label = f"for {race.steps} steps: {race.lr:.3g}"
        over_rates.axvline(race.lr, color=COLORS[2], linewidth=1.8, label=label)
    over_rates.set_xscale("log")
    low = min((min(means) for means in smooth.values() if means), default=0.0)
    over_rates.set_ylim(low - 0.03 * abs(begin), top)
    over_steps.set_ylim(*over_rates.get_ylim())
    bare_axes(over_steps, x="step", y="loss, running mean")
    bare_axes(over_rates, x="learning rate")
    legend_below(figure, over_rates, columns=4)
    over_steps.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


@renders("figure", RateTable)
def rate_table_figure(table: RateTable) -> Figure:
    """Rates against the batch size, with what linear scaling and the gradient noise give; and against weight decay."""
    figure = new_figure(10.5 if table.by_weight_decay else 6, 4.2)
    panels = figure.subplots(1, 2 if table.by_weight_decay else 1, sharey=True, squeeze=False)[0]
    sizes = list(table.by_batch_size)
    present = table.by_batch_size[table.batch_size].lr
    _draw_rates(panels[0], table.by_batch_size)
    panels[0].plot(sizes, [present * size / table.batch_size for size in sizes], "--", color=GRAY, label="linear")
    panels[0].plot(sizes, [table.scaled(size) for size in sizes], color=COLORS[1], label="by the gradient noise")
    if sizes[0] <= table.noise_scale <= sizes[-1]:
        panels[0].axvline(table.noise_scale, color=COLORS[0], linewidth=1.2, label="as much noise as signal")
    panels[0].set_xscale("log")
    bare_axes(panels[0], x="batch size", y="learning rate")
    if table.by_weight_decay:
        _draw_rates(panels[1], table.by_weight_decay)
        panels[1].set_xscale("symlog", linthresh=min((d for d in table.by_weight_decay if d), default=1.0))
        panels[1].margins(x=0.1)
        bare_axes(panels[1], x="weight decay")
    legend_below(figure, panels[0], columns=4)
    return figure


def _draw_rates(axes: Axes, rates: Mapping[int, SuggestedRate] | Mapping[float, SuggestedRate]) -> None:
    """Each suggested rate as a point in the range that is equally good."""
    trained = [(float(place), each) for place, each in rates.items() if math.isfinite(each.lr)]
    places, points = [place for place, _ in trained], [each.lr for _, each in trained]
    ends = [[each.lr - each.low for _, each in trained], [each.high - each.lr for _, each in trained]]
    axes.errorbar(places, points, yerr=ends, fmt="o", color=COLORS[2], capsize=3, label="raced, with all as good")
    axes.set_yscale("log")


def _between(first: str, second: str, share: float) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple((1 - share) * a + share * b for a, b in zip(to_rgb(first), to_rgb(second), strict=True))


@renders("figure", Prediction)
def prediction_figure(prediction: Prediction) -> Figure:
    """What each layer adds to λ_max, as bars with their shares.

    Raises:
        OutputError: It is a prediction for a grid of networks.
    """
    if isinstance(prediction.lambda_max, Tensor):
        raise OutputError("a picture of layers shows one network, and this prediction is of a grid of them.")
    heights = [float(layer.term) for layer in prediction.layers]
    total = sum(heights)
    figure = new_figure(max(4.0, 1.6 + 0.7 * len(heights)), 3.8)
    axes = figure.subplots()
    bars = axes.bar(range(len(heights)), heights, color=COLORS[1], width=0.7)
    axes.bar_label(bars, [f"{100 * term / total:.0f} %" if total else "" for term in heights], fontsize=8, padding=2)
    bare_axes(axes, y="part of λmax")
    label_layers(axes, [layer.name for layer in prediction.layers])
    limits = f"λmax {number(prediction.lambda_max)}, largest rate {number(float(prediction.max_lr))}"
    axes.set_title(f"{prediction.network}\n{limits} ({prediction.variant})", loc="left", fontsize=10)
    axes.margins(y=0.12)
    return figure


def gamma_figure(
    gammas: Sequence[float], networks: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]
) -> Figure:
    """λ_max and the largest rate against γ, one row of panels per network and one line per way of predicting them.

    Args:
        gammas: Values of γ.
        networks: λ_max and the largest rate at each γ, by the network's title and the line's name.

    Returns:
        The figure.
    """
    figure = new_figure(9, 3.4 * len(networks))
    panels = figure.subplots(len(networks), 2, squeeze=False)
    for (title, lines), row in zip(networks.items(), panels, strict=True):
        for axes, quantity, place in zip(row, ("largest eigenvalue λmax", "largest rate η*"), (0, 1), strict=True):
            draw_curves(axes, {name: [(gammas, values[place])] for name, values in lines.items()})
            axes.set_yscale("log")
            axes.minorticks_off()  # laying them out would take most of the time
            bare_axes(axes, title=f"{title}: {quantity}", x="γ")
    legend_below(figure, panels[0][0], columns=3)
    return figure
