"""What santurkar2018 measures during training: covariate shift, moments, distributions, the loss landscape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD

from wellcond.measurements.landscape.landscape import landscape
from wellcond.measurements.layers.activations import Activations, activations
from wellcond.measurements.layers.covariate_shift import covariate_shift
from wellcond.measurements.layers.unit_statistics import Histogram
from wellcond.problem.problem import Problem
from wellcond.results import Row
from wellcond.results.quantities import (
    ACTIVATION_MEAN,
    ACTIVATION_VARIANCE,
    BETA,
    GRADIENT_CHANGE_GREATEST,
    GRADIENT_CHANGE_LEAST,
    GRADIENT_NORM,
    LOSS,
    LOSS_GREATEST,
    LOSS_LEAST,
    MEAN_CHANGE,
    SHIFT_COSINE,
    SHIFT_DIFFERENCE,
    VARIANCE_CHANGE,
)
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.papers.santurkar2018.networks import activations_of, spread
from wellcond_papers.papers.santurkar2018.training import Probe

WALKED = (LOSS, LOSS_LEAST, LOSS_GREATEST, GRADIENT_CHANGE_LEAST, GRADIENT_CHANGE_GREATEST, BETA)
FARTHER = "farther"
"""The setting for a second walk, beyond the source's longest step, and the `layer` of its rows."""
SHIFTED = (SHIFT_DIFFERENCE, SHIFT_COSINE, GRADIENT_NORM)
MOMENTS = (MEAN_CHANGE, VARIANCE_CHANGE)
GRADIENT_CHANGE = "gradient_change"
"""‖∇L(θ) − ∇L(θ_a)‖ at one step length; the row's `layer` holds the step length, in units of the learning rate."""
QUANTILES = {f"quantile_{level:02d}": level / 100 for level in (1, 5, 15, 30, 50, 70, 85, 95, 99)}
"""Levels by the names of their rows: a distribution in nine numbers."""
GAIN, SHIFT = "gain", "shift"
"""What a norm multiplies a unit by, and adds to it."""
BINS = 400
"""Bins of the histograms that quantiles are read from."""


def walks(job: Job) -> Probe:
    """The loss and its gradient along the gradient: ranges and the effective β-smoothness; also farther, if set."""
    spans = {"": job["span"], **({FARTHER: job[FARTHER]} if FARTHER in job.settings else {})}

    def probe(problem: Problem, optimizer: SGD, step: int) -> Iterable[Row]:
        for place, span in spans.items():
            walk = landscape(problem, optimizer.param_groups[0]["lr"], span, job["lengths"])
            yield from (row._replace(layer=place) for row in walk.rows(step) if row.quantity in WALKED)

    return probe


def predictiveness(job: Job) -> Probe:
    """The change of the gradient at every length of the walk, and its norm at the start."""

    def probe(problem: Problem, optimizer: SGD, step: int) -> Iterable[Row]:
        lr = optimizer.param_groups[0]["lr"]
        walk = landscape(problem, lr, job["span"], job["lengths"])
        yield Row(step, "", GRADIENT_NORM, walk.gradient_norm, "")
        for length, change in zip(walk.step_lengths.tolist(), walk.gradient_changes.tolist(), strict=True):
            yield Row(step, f"{length / lr:.3g}", GRADIENT_CHANGE, change, "")

    return probe


def shifts(job: Job) -> Probe:
    """Internal covariate shift of some layers after the first, which has none."""

    def probe(problem: Problem, optimizer: SGD, step: int) -> Iterable[Row]:
        layers = spread(list(activations_of(problem.model))[1:], job["shown"])
        shifts = covariate_shift(problem, optimizer, layers=layers)
        return [row for row in shifts.rows(step) if row.quantity in SHIFTED]

    return probe


def moment_changes(job: Job) -> Probe:
    """The change of both moments of some layers from one step to the next, on one batch."""
    keep_batch = _first_batch()
    earlier: dict[int, Activations] = {}

    def probe(problem: Problem, _optimizer: SGD, step: int) -> Iterable[Row]:
        keep_batch(problem)
        names = _shown(job, problem)
        now = activations(problem, layers=list(names.values()))
        if step - 1 in earlier:
            layers = {inner: layer for layer, inner in names.items()}
            changes = now.change_from(earlier.pop(step - 1)).rows(step)
            yield from (row._replace(layer=layers[row.layer]) for row in changes if row.quantity in MOMENTS)
        earlier[step] = now

    return probe


def distributions(job: Job) -> Probe:
    """The distribution of one unit of some layers, drawn once, over one batch: quantiles, mean and variance.

    After a norm also its gain and its shift, which set the variance and the mean.
    """
    keep_batch = _first_batch()
    draw = torch.Generator().manual_seed(job["seed"])
    place = float(torch.rand(1, generator=draw))

    def probe(problem: Problem, _optimizer: SGD, step: int) -> Iterable[Row]:
        keep_batch(problem)
        names = _shown(job, problem)
        measured = activations(problem, layers=list(names.values()), bins=BINS)
        for layer, inner in names.items():
            seen = measured[inner]
            unit = int(place * seen.units)
            yield Row(step, layer, ACTIVATION_MEAN, float(seen.mean[unit]), "")
            yield Row(step, layer, ACTIVATION_VARIANCE, float(seen.variance[unit]), "")
            norm = problem.model.get_submodule(inner)
            if isinstance(norm, _BatchNorm):
                yield Row(step, layer, GAIN, norm.weight[unit].item(), "")
                yield Row(step, layer, SHIFT, norm.bias[unit].item(), "")
            values = quantiles(seen.unit_histogram(unit), list(QUANTILES.values()))
            for name, value in zip(QUANTILES, values, strict=True):
                yield Row(step, layer, name, value, "")

    return probe


def quantiles(histogram: Histogram, levels: Sequence[float]) -> list[float]:
    """Where the share of values reaches each level, spread evenly inside a bin.

    Example:
        >>> counts, edges = torch.tensor([1, 3]), torch.tensor([0.0, 1.0, 2.0])
        >>> quantiles(Histogram(counts, edges, 0, 0), [0.25, 0.5])[0]
        1.0
    """
    shares = np.concatenate([[0.0], np.cumsum(histogram.counts.numpy())]) / max(int(histogram.counts.sum()), 1)
    return [float(value) for value in np.interp(levels, shares, histogram.edges.numpy())]


def _shown(job: Job, problem: Problem) -> dict[str, str]:
    """Some hidden layers, each with the module whose output is measured."""
    names = activations_of(problem.model)
    return {layer: names[layer] for layer in spread(list(names), job["shown"])}


def _first_batch() -> Callable[[Problem], None]:
    """Makes every evaluation use the batch of the first one, so that only the network changes between them."""
    batches: list[Any] = []

    def keep(problem: Problem) -> None:
        batches[:] = batches or [problem.batches]
        problem.batches = batches[0]

    return keep
