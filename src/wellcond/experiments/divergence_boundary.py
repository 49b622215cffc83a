"""Where training diverges, over γ and the learning rate, beside the largest rate measured and predicted at the start.

In the style of figure 2 of wei2019, small: the fully connected network with BatchNorm (784-1000-1000-1000-10, σ_w² = 2,
σ_b² = ½, β = 0) on MNIST, full-batch gradient descent with momentum 0.9, squared error ½‖f − y‖² to one-hot targets and
cross-entropy. A run has diverged when its loss is not finite or ends above where it began.

    python -m wellcond.experiments.divergence_boundary [--data DIR] [--device cuda] [--out docs/figures]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from wellcond.data import mnist
from wellcond.meanfield.prediction import Loss
from wellcond.meanfield.predictor import predict
from wellcond.models import mlp
from wellcond.problem.problem import Problem
from wellcond.stability.max_lr import max_lr
from wellcond.verify.trial_steps import trial_steps

SIZES = (784, 1000, 1000, 1000, 10)
SIGMA_W2, SIGMA_B2, MOMENTUM = 2.0, 0.5, 0.9
GAMMAS = (0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0)
RATES = tuple(10 ** (k / 8) for k in range(-32, 17))
"""From 1e-4 to 100, a third more at each."""


@dataclass(frozen=True)
class Line:
    """All rates at one γ. boundary: between the largest rate below which nothing diverged and the next."""

    loss: str
    gamma: float
    measured: float
    predicted: float
    rates: list[float]
    final: list[float | None]

    @property
    def boundary(self) -> float:
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
    problem = Problem(model, LOSSES[loss], (x, y))
    measured = max_lr(problem, MOMENTUM).value
    predicted = predict(model, momentum=MOMENTUM, inputs=x[:500].cpu(), loss=loss).max_lr
    near = [rate for rate in RATES if measured / 30 < rate < 30 * measured]
    trial = trial_steps(problem, near, MOMENTUM, steps)
    final = [None if bad else value for bad, value in zip(trial.diverged.tolist(), trial.final.tolist(), strict=True)]
    return Line(loss, gamma, measured, float(predicted), near, final)


def draw(lines: list[Line], path: Path) -> None:
    """One panel a loss: the final loss over log₁₀ η and γ, white where it diverged, and both limits over it."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    from wellcond.report.style import save_figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, loss in zip(figure.subplots(1, len(LOSSES)), LOSSES, strict=True):
        chosen = [line for line in lines if line.loss == loss]
        cells = [(rate, place, value) for place, line in enumerate(chosen)
                 for rate, value in zip(line.rates, line.final, strict=True) if value is not None]  # fmt: skip
        rates, places, values = zip(*cells, strict=True)
        norm = LogNorm(max(min(values), 1e-4), max(values))
        spots = axes.scatter(rates, places, c=values, norm=norm, cmap="viridis", marker="s", s=70, linewidths=0)
        gone = [(r, place) for place, line in enumerate(chosen)
                for r, v in zip(line.rates, line.final, strict=True) if v is None]  # fmt: skip
        axes.scatter(
            *zip(*gone, strict=True), facecolors="none", edgecolors="#c9ced6", marker="s", s=70, linewidths=0.6
        )
        axes.plot(
            [line.measured for line in chosen],
            range(len(chosen)),
            color="#d55e00",
            marker="o",
            label="max_lr, measured",
        )
        axes.plot(
            [line.predicted for line in chosen], range(len(chosen)), color="black", linestyle="--", label="mean field"
        )
        axes.set_xscale("log")
        axes.set_yticks(range(len(chosen)), [f"{line.gamma:g}" for line in chosen])
        axes.set_xlabel("learning rate η")
        axes.set_ylabel("γ")
        axes.set_title(f"{loss}: loss after training (empty: diverged)", loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower left")
        figure.colorbar(spots, ax=axes)
    save_figure(figure, path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder that holds MNIST/raw (default: $WELLCOND_DATA or ./data)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
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
    path = options.out / "wei2019_figure_2.png"
    content = [asdict(line) | {"boundary": line.boundary if math.isfinite(line.boundary) else None} for line in lines]
    path.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    draw(lines, path)


if __name__ == "__main__":
    main()
