"""Figure 1 of wei2019, with its formulas as printed beside the corrected ones.

As printed, BatchNorm divides the gradient by q instead of the variance q − q_xy, which makes λ_max too low; and a
convolution counts the positions of its output twice (eq. 45), which makes it far too high.

    python -m wellcond.experiments.wei2019_as_printed [--out docs/figures]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from wellcond.experiments.output import parser
from wellcond.meanfield import Architecture, predict
from wellcond.meanfield.feature_maps import Convolution
from wellcond.meanfield.moments import Kernel, Moments, Number, float64
from wellcond.meanfield.prediction import LayerContribution, contributions
from wellcond.meanfield.stages import Nonlinearity, Stage, Variant, mapped
from wellcond.report.rates import gamma_figure
from wellcond.results.files import write_atomically
from wellcond.results.result import picture
from wellcond.stability.limits import DEFAULT_MOMENTUM, heavy_ball_limit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NETWORKS = {
    "fully connected": "fc 784-1000-1000-1000-10",
    "convolutional": "conv 1x28x28 30-60-90 k3 s2 10",
}
LINES: dict[str, tuple[Literal["batch", "none"], Variant | None]] = {
    "BatchNorm, as trained": ("batch", "batch"),
    "BatchNorm, statistics constant": ("batch", "detached"),
    "BatchNorm, as printed": ("batch", None),
    "without BatchNorm": ("none", "batch"),
    "without BatchNorm, as printed": ("none", None),
}
"""Norm and variant of each; None for the printed formulas."""


class PrintedNorm(Nonlinearity):
    """BatchNorm with constant statistics, which divides the gradient by s² = q (eq. 25)."""

    def backward(self, h: Kernel, g: Kernel, variant: Variant) -> Kernel:
        """γ²/q times the gradient at the activation."""
        a = self.pre_activation(h)
        return (g * a.expected(self.activation.slopes)).scaled(self.gamma2 / h.mean_square())


class PrintedConvolution(Convolution):
    """A convolution whose term has |K| once for h and once for δ, of which sums are carried back already (eq. 45)."""

    def terms(self, h: Kernel, g: Kernel) -> Iterator[Kernel]:
        """The right terms times the squared number of output positions."""
        return (term.scaled(float64(math.prod(self.window.outputs) ** 2)) for term in super().terms(h, g))


def printed_contributions(
    network: Architecture | str, gamma: Number | None = None
) -> tuple[Tensor, list[LayerContribution]]:
    """λ_max by the printed formulas, of the weights and for very many independent normalised inputs.

    Args:
        network: A line such as "fc 784-1000-10", or an `Architecture`.
        gamma: γ of all norms; a tensor for a grid.

    Returns:
        λ_max, and what each layer adds to it.

    Example:
        >>> lambda_max, layers = printed_contributions("fc 784-1000-1000-1000-10")
        >>> round(float(lambda_max)), round(predict("fc 784-1000-1000-1000-10", variant="detached").lambda_max)
        (230, 362)
    """
    architecture = Architecture.parse(network) if isinstance(network, str) else network
    if gamma is not None:
        architecture = replace(architecture, gamma=gamma)
    return contributions(mapped(architecture.stages(), _as_printed), Moments.independent(), "detached")


def _as_printed(stage: Stage) -> Stage:
    if isinstance(stage, Nonlinearity) and stage.norm == "batch":
        return PrintedNorm(**{f.name: getattr(stage, f.name) for f in fields(stage)})
    if isinstance(stage, Convolution):
        return PrintedConvolution(**{f.name: getattr(stage, f.name) for f in fields(stage)})
    return stage


def figure_1(gammas: Tensor) -> Figure:
    """λ_max and the largest rate at each γ, one row of panels per network and one line per formula."""
    curves = {title: _curves(Architecture.parse(line), gammas) for title, line in NETWORKS.items()}
    return gamma_figure(gammas.tolist(), curves)


def _curves(network: Architecture, gammas: Tensor) -> dict[str, tuple[list[float], list[float]]]:
    """λ_max and the largest rate at each γ, by the name of the line."""
    found = {}
    for name, (norm, variant) in LINES.items():
        network = replace(network, norm=norm)
        if variant is None:
            lambda_max, _ = printed_contributions(network, gammas)
        else:
            lambda_max = torch.as_tensor(predict(network, gammas, variant=variant).lambda_max)
        lambda_max = lambda_max.expand(gammas.shape)
        found[name] = lambda_max.tolist(), heavy_ball_limit(lambda_max, DEFAULT_MOMENTUM).tolist()
    return found


def main() -> None:
    """Draw the figure."""
    options = parser(__doc__).parse_args()
    figure = figure_1(torch.linspace(0.1, 4.0, 79, dtype=torch.float64))
    print(write_atomically(options.out / "wei2019_figure_1.png", picture(figure)))


if __name__ == "__main__":
    main()
