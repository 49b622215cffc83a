"""Where training diverges, over γ and the learning rate, beside the largest rate measured and predicted at the start.

In the style of figure 2 of wei2019, small: the fully connected network with BatchNorm (784-1000-1000-1000-10, σ_w² = 2,
σ_b² = ½, β = 0) on MNIST, full-batch gradient descent with momentum 0.9, squared error ½‖f − y‖² to one-hot targets and
cross-entropy. A run has diverged when its loss is not finite or ends above where it began.

    python -m wellcond.experiments.wei2019_boundary [--data DIR] [--device cuda] [--out docs/figures]
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD

from wellcond.data import mnist
from wellcond.experiments.output import output_files, parser, write
from wellcond.meanfield.predict import predict
from wellcond.meanfield.prediction import Loss
from wellcond.models import mlp
from wellcond.problem.problem import Problem
from wellcond.report.style import COLOURS, new_figure
from wellcond.stability.max_lr import max_lr
from wellcond.training.loop import train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (784, 1000, 1000, 1000, 10)
SIGMA_W2, SIGMA_B2, MOMENTUM = 2.0, 0.5, 0.9
GAMMAS = (0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0)
RATES = tuple(10 ** (k / 8) for k in range(-32, 17))
"""From 1e-4 to 100, each a third more than the one before."""


@dataclass(frozen=True)
class Line:
    """The largest stable rate at one γ, and the final loss at each of `rates`; None where it diverged."""

    loss: str
    gamma: float
    measured: float
    predicted: float
    rates: list[float]
    final: list[float | None]

    @property
    def boundary(self) -> float:
        """Between the first rate that diverged and the one before it; nan if there are no such two."""
        first = next((i for i, loss in enumerate(self.final) if loss is None), None)
        if first is None or first == 0:
            return math.nan
        return math.sqrt(self.rates[first - 1] * self.rates[first])


def half_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """½‖f − y‖² to one-hot targets, the mean over the examples."""
    return (outputs - nn.functional.one_hot(targets, outputs.shape[1])).square().sum(1).mean() / 2


LOSSES: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {
    "half-squared": half_squared,
    "cross-entropy": nn.functional.cross_entropy,
}


def network(gamma: float, seed: int) -> nn.Sequential:
    """Gaussian weights and biases of the theory's variances."""
    draw = torch.Generator().manual_seed(seed)
    model = mlp(SIZES, norm="batch", seed=seed)
    for module in model:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=math.sqrt(SIGMA_W2 / module.in_features), generator=draw)
            nn.init.normal_(module.bias, std=math.sqrt(SIGMA_B2), generator=draw)
        if isinstance(module, nn.BatchNorm1d):
            nn.init.constant_(module.weight, gamma)
    return model


def measure(loss: Loss, gamma: float, x: Tensor, y: Tensor, steps: int, seed: int) -> Line:
    """The limit measured and predicted at initialisation, and the loss after `steps` at every rate around it."""
    model = network(gamma, seed).to(x.device)
    measured = max_lr(Problem(model, LOSSES[loss], (x, y)), MOMENTUM).value
    predicted = predict(model, momentum=MOMENTUM, inputs=x[:500].cpu(), loss=loss).max_lr
    rates = [rate for rate in RATES if measured / 30 < rate < 30 * measured]
    final = [_final_loss(copy.deepcopy(model), LOSSES[loss], x, y, rate, steps) for rate in rates]
    return Line(loss, gamma, measured, float(predicted), rates, final)


def _final_loss(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, rate: float, steps: int
) -> float | None:
    """The loss after so many steps of full-batch gradient descent; None if it diverged."""
    optimizer = SGD(model.parameters(), rate, MOMENTUM)
    run = train(optimizer, lambda _step, batch: loss(model(batch[0]), batch[1]), [(x, y)], steps + 1)
    # the loss of a step is that before its update
    return None if run.diverged_at is not None or run.losses[-1] > run.losses[0] else run.losses[-1]


def draw(lines: list[Line]) -> Figure:
    """One panel per loss: the final loss over log₁₀ η and γ, white where it diverged, and both limits over it."""
    from matplotlib.colors import LogNorm

    figure = new_figure(10, 4.2)
    spot: dict[str, Any] = {"marker": "s", "s": 70}
    for axes, loss in zip(figure.subplots(1, len(LOSSES)), LOSSES, strict=True):
        chosen = [line for line in lines if line.loss == loss]
        places = range(len(chosen))
        cells = [(r, p, v) for p in places for r, v in zip(chosen[p].rates, chosen[p].final, strict=True)]
        rates, heights, values = zip(*((r, p, v) for r, p, v in cells if v is not None), strict=True)
        norm = LogNorm(max(min(values), 1e-4), max(values))
        drawn = axes.scatter(rates, heights, c=values, norm=norm, cmap="viridis", linewidths=0, **spot)
        diverged = zip(*((r, p) for r, p, v in cells if v is None), strict=True)
        axes.scatter(*diverged, facecolors="none", edgecolors="#c9ced6", linewidths=0.6, **spot)
        axes.plot([line.measured for line in chosen], places, "o-", color=COLOURS[0], label="max_lr, measured")
        axes.plot([line.predicted for line in chosen], places, "k--", label="mean field")
        axes.set_xscale("log")
        axes.set_yticks(places, [f"{line.gamma:g}" for line in chosen])
        axes.set_xlabel("learning rate η")
        axes.set_ylabel("γ")
        axes.set_title(f"{loss}: loss after training (empty: diverged)", loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower left")
        figure.colorbar(drawn, ax=axes)
    return figure


def main() -> None:
    """Measure every γ and loss and write the picture and the numbers."""
    command = parser(__doc__, data="MNIST")
    command.add_argument("--device", default="cpu")
    command.add_argument("--examples", type=int, default=1000)
    command.add_argument("--steps", type=int, default=100)
    command.add_argument("--seed", type=int, default=0)
    options = command.parse_args()
    files = output_files(options.out, "wei2019_figure_2")
    x, y = mnist(options.data).tensors(flatten=True, count=options.examples)
    x, y = ((x - x.mean()) / x.std()).to(options.device), y.to(options.device)
    lines, begin = [], time.perf_counter()
    for loss in LOSSES:
        for gamma in GAMMAS:
            lines.append(line := measure(loss, gamma, x, y, options.steps, options.seed))
            print(
                f"{loss}, γ = {gamma:g}: measured {line.measured:.4g}, predicted {line.predicted:.4g}, "
                f"boundary {line.boundary:.4g}, {line.boundary / line.measured:.2f} × measured "
                f"({time.perf_counter() - begin:.0f} s)",
                flush=True,
            )
    numbers = [asdict(line) | {"boundary": None if math.isnan(line.boundary) else line.boundary} for line in lines]
    write(files, draw(lines), numbers)


if __name__ == "__main__":
    main()
