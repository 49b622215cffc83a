"""Heat maps of wei2019: test loss over the learning rate and γ or σ_w, with the predicted and measured largest rate.

One cell is one map: the networks of all its squares are trained at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from wellcond.learning_rate.limits.limits import heavy_ball_limit
from wellcond.learning_rate.limits.max_lr import max_lr
from wellcond.learning_rate.meanfield import Architecture, predict
from wellcond.problem.problem import Problem
from wellcond.report.figures.style import legend_below
from wellcond.results import Row
from wellcond.results.quantities import MAX_LR, PREDICTED_MAX_LR, TEST_LOSS
from wellcond.results.run import averaged_steps
from wellcond_papers.data.batches import Batches
from wellcond_papers.experiments.experiment import Job, Settings
from wellcond_papers.experiments.pictures import draw_heat_map, panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.wei2019.networks import LOSSES, MOMENTUM, images, network
from wellcond_papers.papers.wei2019.printed import printed_contributions
from wellcond_papers.papers.wei2019.stack import Stack, train_stack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PREDICTED_FROM = 100
"""Images for a prediction; more change it by a few hundredths and take much longer."""
SQUARED = ", squared error"
"""The ending of the name of an arm with that loss."""
LOSS_NAMES = {"cross-entropy": "cross-entropy", "half-squared": "squared error"}
LINES = ("as printed", "mean field", "measured")
"""Where the largest rate comes from: the formulas of the source, the corrected ones, and λ_max of the Hessian."""


def height(settings: Settings, value: float) -> str:
    """The name of a row of a map, which is the `layer` of its numbers."""
    return f"{settings['vary']} {value:g}"


def square(settings: Settings, value: float, rate: float) -> str:
    """The name of a square of a map, likewise."""
    return f"{height(settings, value)}, lr {rate:g}"


def varied(job: Job, value: float) -> Architecture:
    """The network of a row of the map."""
    architecture = Architecture.parse(job["network"])
    return replace(architecture, gamma=value) if job["vary"] == "gamma" else replace(architecture, sigma_w2=value**2)


def measure(job: Job) -> Iterator[Row]:
    """The largest rates at the start, then the test loss after training, of every network that did not diverge.

    A network has diverged if its loss is not finite, or is at the end above where it was at the start.
    """
    first = varied(job, job["values"][0])
    flat = not first.is_convolutional
    dataset = images(job, first, train=True)
    networks = {value: network(varied(job, value), job["seed"]) for value in job["values"]}
    x, y = dataset.tensors(flatten=flat, count=job["limit_images"])
    for place, value in enumerate(networks):
        job.progress("measuring the largest rate", 0.3 * place / len(networks))
        limits = largest_rates(job, value, networks[value], x, y)
        for line, rate in zip(LINES, limits, strict=True):
            quantity = MAX_LR if line == "measured" else PREDICTED_MAX_LR
            yield Row(0, f"{height(job.settings, value)}, {line}", quantity, rate, "lr")

    squares = [(value, rate) for value in networks for rate in job["lrs"]]
    stack = Stack([networks[v] for v, _ in squares], [r for _, r in squares], LOSSES[job["loss"]], MOMENTUM)
    options = {"count": job["count"], "flatten": flat, "device": job.device}
    batches = Batches(dataset, job["batch"] or job["count"], seed=job["seed"], **options)
    steps = max(1, round(job["epochs"] * batches.per_epoch))
    losses = train_stack(stack, batches, steps, lambda what, share: job.progress(what, 0.3 + 0.7 * share))
    test = images(job, first, train=False).tensors(flatten=flat, count=job["test_images"])
    final = stack.tested(test[0].to(job.device), test[1].to(job.device)).tolist()
    ends = losses[-averaged_steps(steps) :].mean(0)
    stable = (ends <= losses[0]).tolist()
    for (value, rate), loss, is_stable in zip(squares, final, stable, strict=True):
        if is_stable and math.isfinite(loss):
            yield Row(steps, square(job.settings, value, rate), TEST_LOSS, loss, "")


def largest_rates(
    job: Job, value: float, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor
) -> tuple[float, float, float]:
    """The largest rate by each of `LINES`; the network is moved to the device."""
    lambda_max, _ = printed_contributions(varied(job, value))
    predicted = predict(model, momentum=MOMENTUM, inputs=x[:PREDICTED_FROM], loss=job["loss"]).max_lr
    model.to(job.device)
    problem = Problem(model, LOSSES[job["loss"]], (x.to(job.device), y.to(job.device)))
    measured = max_lr(problem, momentum=MOMENTUM, tol=0.05).value
    return float(heavy_ball_limit(lambda_max, MOMENTUM)), float(predicted), measured


@dataclass(frozen=True)
class HeatMap:
    """The map of one arm, from all its seeds."""

    table: Table

    @property
    def settings(self) -> Settings:
        """The settings of the first seed; the others differ only in the seed."""
        return self.table[0].settings

    @property
    def values(self) -> list[float]:
        """γ or σ_w, in increasing order."""
        return sorted(self.settings["values"])

    @cached_property
    def losses(self) -> dict[tuple[float, float], float | None]:
        """The mean test loss at (rate, value); None if a run diverged there."""
        means = {}
        for value in self.values:
            for rate in sorted(self.settings["lrs"]):
                losses = self.table.lasts(TEST_LOSS, square(self.settings, value, rate))
                means[rate, value] = fmean(losses) if len(losses) == len(self.table) else None
        return means

    def limit(self, line: str, value: float) -> float:
        """The largest rate by one of `LINES`, the mean of the seeds."""
        quantity = MAX_LR if line == "measured" else PREDICTED_MAX_LR
        return fmean(self.table.lasts(quantity, f"{height(self.settings, value)}, {line}"))

    def boundary(self, value: float) -> tuple[float, float]:
        """The last rate before the first that diverged, and that one; 0 or ∞ where there is none."""
        before = 0.0
        for (rate, other), loss in self.losses.items():
            if other == value:
                if loss is None:
                    return before, rate
                before = rate
        return before, math.inf

    def best(self, value: float) -> tuple[float, float]:
        """The least test loss of a row of the map and its rate; both ∞ if all diverged."""
        row = [(loss, rate) for (rate, other), loss in self.losses.items() if other == value and loss is not None]
        return min(row, default=(math.inf, math.inf))

    def best_losses(self, value: float) -> list[float]:
        """The test losses of all seeds at the best rate of a row of the map; ∞ if all diverged."""
        rate = self.best(value)[1]
        return self.table.lasts(TEST_LOSS, square(self.settings, value, rate)) or [math.inf]

    def separates(self, line: str, value: float, factor: float = 2.0) -> bool | None:
        """Whether training diverges at this limit, up to a factor.

        None if no rate far enough above it was tried, or none below it: then nothing contradicts it, and nothing more.
        """
        stable, diverged = self.boundary(value)
        limit = self.limit(line, value)
        is_right = stable <= factor * limit and diverged >= limit / factor
        return None if is_right and (math.isinf(diverged) or not stable) else is_right

    def is_parted(self, value: float) -> bool:
        """Whether some rate diverges, and so does every higher one."""
        losses = [loss for (_, other), loss in self.losses.items() if other == value]
        return losses[-1] is None and all(loss is None for loss in losses[losses.index(None) :])

    def ratios(self, line: str) -> list[float]:
        """Where training begins to diverge over this limit, at each value where both sides were tried."""
        pairs = [(self.boundary(value), self.limit(line, value)) for value in self.values]
        return [math.sqrt(low * high) / limit for (low, high), limit in pairs if low > 0 and math.isfinite(high)]


def heat_maps(table: Table, arms: Sequence[str] = ()) -> dict[str, HeatMap]:
    """The map of every arm that was run; only of these arms, if any are named."""
    return {arm: HeatMap(table.arm(arm)) for arm in table.arms if not arms or arm in arms}


def draw(table: Table, y: str) -> Figure:
    """One map per arm, white where a run diverged, with the three largest rates over it; one row of maps per loss."""
    maps = heat_maps(table)
    losses = [heat_map.settings["loss"] for heat_map in maps.values()]
    figure, axes = panels(list(maps), columns=losses.count(losses[0]))
    for arm, heat_map in maps.items():
        lines = {line: [(heat_map.limit(line, value), value) for value in heat_map.values] for line in LINES}
        axes[arm].set_title(
            f"{arm.removesuffix(SQUARED)}\n{LOSS_NAMES[heat_map.settings['loss']]}", loc="left", fontsize=10
        )
        draw_heat_map(axes[arm], heat_map.losses, x="learning rate η", y=y, lines=lines, color="test loss")
    legend_below(figure, next(iter(axes.values())))
    for legend in figure.legends:
        legend.set_title("dark: low test loss; white: training diverged. Largest rate η*:")
    return figure
