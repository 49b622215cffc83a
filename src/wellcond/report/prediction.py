"""Pictures of what mean-field theory predicts (wei2019, figure 1)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from wellcond.errors import MissingExtra
from wellcond.meanfield.architecture import Architecture
from wellcond.meanfield.prediction import Prediction
from wellcond.meanfield.predictor import predict
from wellcond.meanfield.stages import Variant
from wellcond.report.style import COLOURS, bare_axes, draw_curves, save_figure
from wellcond.results import number
from wellcond.results.files import check_writable
from wellcond.results.text import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtra("matplotlib", "plots") from error

NETWORKS = {
    "fully connected": "fc 784-1000-1000-1000-10",
    "convolutional": "conv 1x28x28 30-60-90 k3 s2 10",
}
LINES: dict[str, tuple[Literal["batch", "none"], Variant]] = {
    "BatchNorm, as trained": ("batch", "batch"),
    "BatchNorm, statistics constant": ("batch", "detached"),
    "BatchNorm, as printed": ("batch", "source"),
    "without BatchNorm": ("none", "batch"),
    "without BatchNorm, as printed": ("none", "source"),
}
"""Norm and variant of each."""


def save_figure_1(
    path: str | Path, networks: dict[str, str] = NETWORKS, gammas: Tensor | None = None, momentum: float = 0.9
) -> Path:
    """λ_max and the largest rate against γ, one row of panels a network, with BatchNorm and without.

    networks: lines of architectures by their title. gammas: (n,), 0.1 to 4 unless given.
    """
    check_writable(path)
    gammas = torch.linspace(0.1, 4.0, 79, dtype=torch.float64) if gammas is None else gammas
    figure = Figure(figsize=(9, 3.4 * len(networks)), layout="constrained")
    panels = figure.subplots(len(networks), 2, squeeze=False)
    for (title, line), (left, right) in zip(networks.items(), panels, strict=True):
        _against_gamma(left, right, Architecture.parse(line), gammas, momentum)
        left.set_title(f"{title}: largest eigenvalue λmax", loc="left", fontsize=11)
        right.set_title(f"{title}: largest rate η*", loc="left", fontsize=11)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return save_figure(figure, path)


def _against_gamma(left: Axes, right: Axes, network: Architecture, gammas: Tensor, momentum: float) -> None:
    places = gammas.tolist()
    found = {}
    for name, (norm, variant) in LINES.items():
        found[name] = predict(replace(network, norm=norm), gammas, momentum, variant)
    for axes, quantity in ((left, "lambda_max"), (right, "max_lr")):
        draw_curves(axes, {name: [(places, getattr(p, quantity).tolist())] for name, p in found.items()})
        axes.set_yscale("log")
        axes.minorticks_off()  # laying them out would take most of the time
        axes.set_xlabel("γ")


def save_prediction(prediction: Prediction, path: str | Path) -> Path:
    """What each layer adds to λ_max, as bars; of one network."""
    check_writable(path)
    if isinstance(prediction.lambda_max, Tensor) or isinstance(prediction.max_lr, Tensor):
        raise ValueError("a picture of layers is of one network, and this prediction is of a grid of them.")
    layers = prediction.layers
    figure = Figure(figsize=(max(4.0, 1.6 + 0.7 * len(layers)), 3.8), layout="constrained")
    axes = figure.subplots()
    terms = [float(layer.term) for layer in layers]
    bars = axes.bar(range(len(layers)), terms, color=COLOURS[1], width=0.7)
    total = prediction.lambda_max
    axes.bar_label(bars, [f"{100 * term / total:.0f} %" if total else "" for term in terms], fontsize=8, padding=2)
    axes.set_xticks(range(len(layers)), [shortened(layer.name, 16) for layer in layers], rotation=90, fontsize=8)
    axes.set_ylabel("part of λmax")
    title = f"{prediction.network}\nλmax {number(total)}, largest rate {number(prediction.max_lr)}"
    axes.set_title(f"{title} ({prediction.variant})", loc="left", fontsize=10)
    bare_axes(axes)
    axes.grid(visible=False, axis="x")
    axes.margins(y=0.12)
    return save_figure(figure, path)
