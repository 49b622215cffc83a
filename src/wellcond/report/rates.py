"""Pictures of learning rates: tried ones, what each layer adds to the predicted λ_max, and λ_max against γ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from wellcond.report.curves import label_layers
from wellcond.report.style import COLOURS, GREY, bare_axes, draw_curves, legend_below, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RateTrial(Protocol):
    """Short runs at several learning rates: the loss before them and after their last step, and which diverged."""

    @property
    def rates(self) -> Tensor: ...
    @property
    def final(self) -> Tensor: ...
    @property
    def diverged(self) -> Tensor: ...
    @property
    def loss(self) -> float: ...
    @property
    def steps(self) -> int: ...


def rates_figure(trial: RateTrial, limits: Mapping[str, float]) -> Figure:
    """The loss after a few steps against the learning rate, with rates as vertical lines.

    Runs that diverged are crosses at the upper edge.

    Args:
        trial: The runs.
        limits: Learning rates by what they are; one that is not finite is left out.

    Returns:
        The figure.
    """
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    rates, losses, diverged = trial.rates[~trial.diverged], trial.final[~trial.diverged], trial.rates[trial.diverged]
    axes.plot(rates.tolist(), losses.tolist(), "o-", color=COLOURS[1], linewidth=1.6)
    axes.axhline(trial.loss, color=GREY, linewidth=1, linestyle=(0, (1, 2)), label="before the first step")
    if len(diverged):
        upper_edge = axes.get_xaxis_transform()
        heights = [0.97] * len(diverged)
        axes.plot(diverged.tolist(), heights, "x", color=COLOURS[0], transform=upper_edge, label="diverged")
    for (name, rate), colour in zip(limits.items(), (COLOURS[0], COLOURS[2], COLOURS[3]), strict=False):
        if math.isfinite(rate):
            axes.axvline(rate, color=colour, linestyle="--", linewidth=1.4, label=f"{name}: {rate:.3g}")
    axes.set_xscale("log")
    if len(losses) and float(losses.min()) > 0 and trial.loss / float(losses.min()) > 10:
        axes.set_yscale("log")
    bare_axes(axes, x="learning rate", y=f"loss after {trial.steps} steps")
    legend_below(figure, axes, columns=2)
    return figure


def terms_figure(title: str, terms: Sequence[tuple[str, float]]) -> Figure:
    """What each layer adds to λ_max, as bars with their shares.

    Args:
        title: Of the figure.
        terms: The name of each layer and what it adds.

    Returns:
        The figure.
    """
    heights = [term for _, term in terms]
    total = sum(heights)
    figure = new_figure(max(4.0, 1.6 + 0.7 * len(terms)), 3.8)
    axes = figure.subplots()
    bars = axes.bar(range(len(terms)), heights, color=COLOURS[1], width=0.7)
    axes.bar_label(bars, [f"{100 * term / total:.0f} %" if total else "" for term in heights], fontsize=8, padding=2)
    bare_axes(axes, y="part of λmax")
    label_layers(axes, [name for name, _ in terms])
    axes.set_title(title, loc="left", fontsize=10)
    axes.margins(y=0.12)
    return figure


def gamma_figure(
    gammas: Sequence[float], networks: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]
) -> Figure:
    """λ_max and the largest rate against γ, one row of panels per network and one line per way of predicting them.

    Args:
        gammas: The values of γ.
        networks: By the network's title and the line's name, λ_max and the largest rate at each γ.

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
