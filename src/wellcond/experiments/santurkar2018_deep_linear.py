"""The 25-layer deep linear network of santurkar2018 (figure 9), with and without BatchNorm, and its loss landscape.

    python -m wellcond.experiments.santurkar2018_deep_linear --out .

trains both networks for 10,000 steps on two cores, in less than two minutes, and writes a picture of four panels and a
JSON file with its numbers. Where the source is silent:

- The ℓ₂ loss is *summed* over the 1000 examples: then its learning rate of 1e-6 takes both networks to a plateau within
  the 10,000 steps, and at three times that rate the standard network diverges. Averaged, they would come from 86 to 81
  and from 103 to 55. Here the loss is the mean, as wellcond wants it, and the rate 1e-6 · 1000, which is the same
  descent. Losses and β are those of the mean.
- BatchNorm follows every layer but the last.

What it shows: BatchNorm reaches the lower loss, 5.3 against 10.0. While the standard network moves, in its first 2500
steps, walks of up to 30 times the learning rate take its loss to 13,000, with BatchNorm to 210; its β reaches 140,000,
with BatchNorm 2000. Two things do not agree with the source. At the very start β is greater with BatchNorm, 20,000
against 600. And on a plateau, where the product of the weights has lost rank and the gradient is nearly zero, there is
nothing left to change: the ribbons of either network close, so that from step 4500 on the standard network, which never
leaves its plateau, has the smaller β. Off the plateaus BatchNorm sits at β = 2 / lr, the edge of stability: there β
tells the learning rate rather than the network. Seeds 1 and 2 agree on the final losses (11.6 against 20.5, 2.7 against
6.8), on β at the start, and on the standard network while it moves.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from wellcond.experiments.output import output_files, parser, write
from wellcond.models import mlp
from wellcond.models.mlp import Norm
from wellcond.problem.problem import Problem
from wellcond.report.landscape import draw_ribbons
from wellcond.report.style import COLOURS, GREY, bare_axes, legend_below, new_figure
from wellcond.results import Row
from wellcond.results.quantities import (
    BETA,
    GRADIENT_CHANGE_GREATEST,
    GRADIENT_CHANGE_LEAST,
    GRADIENT_NORM,
    LOSS,
    LOSS_GREATEST,
    LOSS_LEAST,
)
from wellcond.surface.landscape import landscape
from wellcond.training.loop import train
from wellcond.training.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAYERS, WIDTH, EXAMPLES = 25, 10, 1000
SUMMED_LR = 1e-6
LR = SUMMED_LR * EXAMPLES
SPAN = (1 / 100, 30.0)
NETWORKS: dict[str, Norm] = {"standard": "none", "BatchNorm": "batch"}
QUANTITIES = (LOSS, LOSS_LEAST, LOSS_GREATEST, GRADIENT_NORM, GRADIENT_CHANGE_LEAST, GRADIENT_CHANGE_GREATEST, BETA)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """‖W₁ … W_k x − A x‖², the mean over the examples."""
    return (outputs - targets).square().sum(1).mean()


def same_moments(x: Tensor) -> Tensor:
    """One example more than there are features, with the mean and the second moments of x.

    Linear layers and BatchNorm are affine in x, with coefficients that depend on these moments, and so does the mean
    squared error of their outputs: descending on these examples is descending on x, at a hundredth of the arithmetic.
    """
    n = x.shape[1] + 1
    # rootᵀ root / n are the moments of (1, x); a reflection makes the ones of its first column
    root = torch.linalg.qr(torch.cat([torch.ones_like(x[:, :1]), x], 1)).R * math.sqrt(n / len(x))
    u = root[:, 0] - 1
    moments: Tensor = (root - 2 * torch.outer(u, u @ root) / (u @ u))[:, 1:]
    return moments


def walked_run(name: str, steps: int, walks: int, seed: int) -> Run:
    """Train one network; the rows of the walks over its loss landscape are the evaluations of the run."""
    torch.set_num_threads(1)  # the two networks have a core each
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(EXAMPLES, WIDTH, generator=draw, dtype=torch.float64)
    a = torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64)
    sizes = [WIDTH] * (LAYERS + 1)
    model = mlp(sizes, norm=NETWORKS[name], activation=nn.Identity, init="glorot", bias=False, seed=seed).double()
    problem = Problem(model, squared_error, (x, x @ a.T))
    every = max(1, steps // walks)

    def walk(step: int) -> list[Row]:
        found = landscape(problem, LR, SPAN)
        if step % (10 * every) == 0:
            print(f"{name}: step {step:,}, loss {found.loss:.4g}, β {found.beta:.4g}", flush=True)
        return found.rows(step)

    def loss_at(_step: int, inputs: Tensor) -> Tensor:
        return squared_error(model(inputs), inputs @ a.T)

    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    return train(optimizer, loss_at, [same_moments(x)], steps + 1, evaluate=walk, every=every)


def thinned(run: Run) -> tuple[int, list[float]]:
    """A stride, and the losses at every so many steps: about 500 of them."""
    stride = max(1, (len(run.losses) - 1) // 500)
    return stride, list(run.losses[::stride])


def draw(runs: Mapping[str, Run]) -> Figure:
    """The training loss, and the three ribbons over training."""
    figure = new_figure(10, 7)
    training, *ribbons = figure.subplots(2, 2).flat
    for run, colour in zip(runs.values(), COLOURS, strict=False):
        stride, losses = thinned(run)
        training.plot(range(0, len(losses) * stride, stride), losses, color=colour, linewidth=1.6)
    bare_axes(training, title="training loss", x="training step")
    training.set_yscale("log")
    draw_ribbons(ribbons, {name: run.evaluations for name, run in runs.items()})
    ribbons[2].axhline(2 / LR, color=GREY, linewidth=1, linestyle=(0, (4, 3)), label="2 / lr")
    legend_below(figure, ribbons[2], columns=3)
    return figure


def numbers_of(runs: Mapping[str, Run], seconds: float, seed: int) -> dict[str, Any]:
    """The settings, and every quantity of each network as a column."""
    numbers: dict[str, Any] = {
        "settings": {
            "layers": LAYERS, "width": WIDTH, "examples": EXAMPLES, "lr_of_summed_loss": SUMMED_LR,
            "lr_of_mean_loss": LR, "span": SPAN, "seed": seed, "dtype": "float64", "torch": torch.__version__,
            "seconds": round(seconds),
        }
    }  # fmt: skip
    for name, run in runs.items():
        stride, losses = thinned(run)
        columns = {quantity: run.evaluated(quantity) for quantity in QUANTITIES} | {"training_loss": losses}
        numbers[name] = {"step": [row.step for row in run.evaluations if row.quantity == BETA]}
        numbers[name] |= {title: [float(f"{value:.5g}") for value in column] for title, column in columns.items()}
        numbers[name]["training_loss_stride"] = stride
    return numbers


def main() -> None:
    """Train both networks and write the picture and the numbers."""
    command = parser(__doc__)
    command.add_argument("--steps", type=int, default=10_000)
    command.add_argument("--walks", type=int, default=40, help="walks over the landscape during training")
    command.add_argument("--seed", type=int, default=0)
    options = command.parse_args()
    files = output_files(options.out, "santurkar2018_deep_linear_network")
    begin = time.perf_counter()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(len(NETWORKS), multiprocessing.get_context("spawn")) as pool:
        jobs = {name: pool.submit(walked_run, name, options.steps, options.walks, options.seed) for name in NETWORKS}
        runs = {name: job.result() for name, job in jobs.items()}
    seconds = time.perf_counter() - begin
    write(files, draw(runs), numbers_of(runs, seconds, options.seed))
    print(f"{files[0]} and .json, after {seconds:.0f} s")


if __name__ == "__main__":
    main()
