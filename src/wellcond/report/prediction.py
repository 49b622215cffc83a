"""Pictures of predicted learning rates: what each layer adds to λ_max, and λ_max against γ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, SupportsFloat

from wellcond.report.curves import label_layers
from wellcond.report.style import COLOURS, bare_axes, draw_curves, legend_below, new_figure
from wellcond.results import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class LayerTerm(Protocol):
    """What one layer adds to λ_max."""

    @property
    def name(self) -> str: ...
    @property
    def term(self) -> SupportsFloat: ...


class PredictedRate(Protocol):
    """A prediction for one network. A `wellcond.meanfield.Prediction` is one."""

    @property
    def network(self) -> str: ...
    @property
    def lambda_max(self) -> SupportsFloat: ...
    @property
    def max_lr(self) -> SupportsFloat: ...
    @property
    def layers(self) -> Sequence[LayerTerm]: ...
    @property
    def variant(self) -> str: ...


def prediction_figure(prediction: PredictedRate) -> Figure:
    """What each layer adds to λ_max, as bars with their shares.

    Args:
        prediction: Of one network.

    Returns:
        The figure.
    """
    layers, total = prediction.layers, float(prediction.lambda_max)
    terms = [float(layer.term) for layer in layers]
    figure = new_figure(max(4.0, 1.6 + 0.7 * len(layers)), 3.8)
    axes = figure.subplots()
    bars = axes.bar(range(len(layers)), terms, color=COLOURS[1], width=0.7)
    axes.bar_label(bars, [f"{100 * term / total:.0f} %" if total else "" for term in terms], fontsize=8, padding=2)
    label_layers(axes, [layer.name for layer in layers])
    axes.set_ylabel("part of λmax")
    title = f"{prediction.network}\nλmax {number(total)}, largest rate {number(float(prediction.max_lr))}"
    axes.set_title(f"{title} ({prediction.variant})", loc="left", fontsize=10)
    bare_axes(axes)
    axes.grid(visible=False, axis="x")
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
            axes.set_title(f"{title}: {quantity}", loc="left", fontsize=11)
            axes.set_yscale("log")
            axes.minorticks_off()  # laying them out would take most of the time
            axes.set_xlabel("γ")
    legend_below(figure, panels[0][0], columns=3)
    return figure
