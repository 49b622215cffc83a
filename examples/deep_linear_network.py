"""The 25-layer deep linear network of santurkar2018 (figure 9), with and without BatchNorm, and its loss landscape.

    python examples/deep_linear_network.py --out .

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

import argparse
import json
import math
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import wellcond as wc
from wellcond.models import mlp
from wellcond.report.landscape import draw_ribbons
from wellcond.report.style import COLOURS, bare_axes, save_figure
from wellcond.results import Row
from wellcond.results.files import write_atomically

LAYERS, WIDTH, EXAMPLES = 25, 10, 1000
SUMMED_LR = 1e-6
LR = SUMMED_LR * EXAMPLES
SPAN = (1 / 100, 30.0)
NETWORKS = {"standard": "none", "BatchNorm": "batch"}
QUANTITIES = ("loss", "loss_min", "loss_max", "gradient_norm", "gradient_change_min", "gradient_change_max", "beta")


@dataclass(frozen=True)
class Run:
    """One network's training: its losses, one every `stride` steps, and the rows of the walks on its way."""

    name: str
    stride: int
    losses: list[float]
    rows: list[Row]


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """‖W₁ … W_k x − A x‖², the mean over the examples."""
    return (outputs - targets).square().sum(1).mean()


def same_moments(x: Tensor) -> Tensor:
    """One example more than there are features, with the mean and the second moments of x.

    Linear layers and BatchNorm are affine in x, with coefficients that depend on these moments, and so does the mean
    squared error of what they give: descending on these examples is descending on x, at a hundredth of the arithmetic.
    """
    n = x.shape[1] + 1
    # rootᵀ root / n are the moments of (1, x); a reflection makes the ones of its first column
    root = torch.linalg.qr(torch.cat([torch.ones_like(x[:, :1]), x], 1)).R * math.sqrt(n / len(x))
    u = root[:, 0] - 1
    return (root - 2 * torch.outer(u, u @ root) / (u @ u))[:, 1:]


def train(name: str, steps: int, walks: int, seed: int) -> Run:
    torch.set_num_threads(1)  # the two networks have a core each
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(EXAMPLES, WIDTH, generator=draw, dtype=torch.float64)
    a = torch.randn(WIDTH, WIDTH, generator=draw, dtype=torch.float64)
    few = same_moments(x)
    sizes = [WIDTH] * (LAYERS + 1)
    model = mlp(sizes, norm=NETWORKS[name], activation=nn.Identity, init="glorot", bias=False, seed=seed).double()
    problem = wc.Problem(model, squared_error, (x, x @ a.T))
    descent = torch.optim.SGD(model.parameters(), lr=LR)
    every, stride = max(1, steps // walks), max(1, steps // 500)
    losses, rows = [], []
    for step in range(steps + 1):
        if step % every == 0:
            rows += (walk := wc.landscape(problem, LR, SPAN)).rows(step)
            if step % (10 * every) == 0:
                print(f"{name}: step {step:,}, loss {walk.loss:.4g}, β {walk.beta:.4g}", flush=True)
        loss = squared_error(model(few), few @ a.T)
        if step % stride == 0:
            losses.append(loss.item())
        descent.zero_grad()
        loss.backward()
        descent.step()
    return Run(name, stride, losses, rows)


def picture(runs: Sequence[Run]) -> Figure:
    figure = Figure(figsize=(10, 7), layout="constrained")
    panels = figure.subplots(2, 2).flat
    training = panels[0]
    for run, colour in zip(runs, COLOURS, strict=False):
        steps = range(0, len(run.losses) * run.stride, run.stride)
        training.plot(steps, run.losses, color=colour, linewidth=1.6)
    bare_axes(training)
    training.set_yscale("log")
    training.set_title("training loss", loc="left", fontsize=11)
    training.set_xlabel("training step")
    draw_ribbons(panels[1:], {run.name: run.rows for run in runs})
    panels[3].axhline(2 / LR, color="#8a929c", linewidth=1, linestyle=(0, (4, 3)), label="2 / lr")
    figure.legend(*panels[3].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def numbers(runs: Sequence[Run], seconds: float, seed: int) -> str:
    settings = {
        "layers": LAYERS, "width": WIDTH, "examples": EXAMPLES, "lr_of_summed_loss": SUMMED_LR, "lr_of_mean_loss": LR,
        "span": SPAN, "seed": seed, "dtype": "float64", "torch": torch.__version__, "seconds": round(seconds),
    }  # fmt: skip
    parts = [f'"settings": {json.dumps(settings)}']
    for run in runs:
        columns: dict[str, object] = {"step": [row.step for row in run.rows if row.quantity == "beta"]}
        columns |= {q: [_rounded(row.value) for row in run.rows if row.quantity == q] for q in QUANTITIES}
        columns |= {"training_loss_stride": run.stride, "training_loss": list(map(_rounded, run.losses))}
        lines = ",\n".join(f'"{name}": {json.dumps(column, allow_nan=False)}' for name, column in columns.items())
        parts.append(f'"{run.name}": {{\n{lines}\n}}')
    return "{" + ",\n".join(parts) + "}\n"


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture and the numbers")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--walks", type=int, default=40, help="walks over the landscape during training")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(len(NETWORKS), multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(train, name, options.steps, options.walks, options.seed) for name in NETWORKS]
        runs = [job.result() for job in jobs]
    seconds = time.perf_counter() - begin
    path = save_figure(picture(runs), options.out / "santurkar2018_deep_linear_network.png", dpi=120)
    write_atomically(path.with_suffix(".json"), numbers(runs, seconds, options.seed).encode())
    print(f"{path} and .json, after {seconds:.0f} s")


if __name__ == "__main__":
    main()
