"""Remedies of the data: inputs and targets in units of their own spread, targets in the shape of the outputs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.errors import Unsupported
from wellcond.nn.standardized import standardized
from wellcond.problem.loss.outputs import Loss
from wellcond.problem.problem import Problem
from wellcond.remedies.functions import first_batch, loss_at
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

FAR = 0.5
"""Data whose mean is within this many standard deviations of zero, and whose standard deviation is within a factor of
two of one, are standardized already: there is nothing to try. The race decides on all others."""


@remedy(
    "scale-inputs",
    "inputs",
    rules=("unscaled-input", "ill-conditioned-input", "constant-feature", "saturated-activation"),
)
def scale_inputs(setup: Setup) -> Setup | None:
    """Standardizes the inputs by the statistics of the batches.

    A weight's step is proportional to its input, and the curvature to its square: features of different scales want
    different rates, and one rate must suit all (LeCun et al. 1998, section 4.3).
    """
    try:
        with contextlib.closing(_batches(setup.problem)) as batches:
            probe = standardized(nn.Identity(), batches)
    except Unsupported:
        return None  # tokens
    means, stds = ([b for name, b in probe.named_buffers() if name.startswith(kind)] for kind in ("mean", "std"))
    if not any(map(_is_far, means, stds)):
        return None

    def change(model: nn.Module) -> nn.Module:
        with contextlib.closing(_batches(setup.problem)) as batches:
            return standardized(model, batches)

    return setup.with_model(change, "model = wc.nn.with_standardized_inputs(model, batches)")


@remedy("scale-targets", "targets", rules=("unscaled-target", "bad-initialisation"))
def scale_targets(setup: Setup) -> Setup | None:
    """Trains on standardized targets; the loss is told in the units of the old ones.

    A network at its initialization answers about ±1: targets far from that cost it thousands of steps of the last
    layer, and gradients as large as the targets. Losses of differences alone (squared, absolute, Huber) allow it.
    """
    targets = torch.cat([y.double().cpu() for y in _targets(setup.problem)] or [torch.zeros(0)])
    if not targets.numel() or not _depends_on_differences(setup):
        return None
    mean, std = targets.mean(0), targets.std(0, correction=0)
    std = torch.where(std > 1e-9 * (1 + mean.abs()), std, 1.0)
    if not _is_far(mean, std):
        return None
    if mean.numel() == 1:
        numbers = f"mean, std = {float(mean):.6g}, {float(std):.6g}  # of the targets"
    else:
        numbers = "mean, std = targets.mean(0), targets.std(0)  # of all training targets"
    return setup.with_loss(
        in_old_units(setup.problem.loss, mean, std),
        numbers,
        "loss = loss_function(model(inputs), (targets - mean) / std)  # predictions: model(inputs) * std + mean",
    )


@remedy("match-shapes", "shapes", rules=("output-loss-mismatch",))
def match_shapes(setup: Setup) -> Setup | None:
    """Gives the targets the shape of the outputs.

    (N,) against (N, 1) broadcasts to all N² pairs: every output then learns the mean of all targets.
    """
    outputs, targets = first_batch(setup)
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or not targets.is_floating_point():
        return None
    if outputs.shape == targets.shape or outputs.numel() != targets.numel():
        return None
    loss = setup.problem.loss
    return setup.with_loss(
        lambda h, y: loss(h, y.view_as(h)), "loss = loss_function(outputs, targets.view_as(outputs))"
    )


def in_old_units(loss: Loss, mean: Tensor, std: Tensor) -> Loss:
    """A loss whose gradient is that of standardized targets, and whose value is that of the old ones.

    Example:
        >>> scaled = in_old_units(nn.MSELoss(), torch.tensor(5.0), torch.tensor(10.0))
        >>> f = torch.tensor([1.0], requires_grad=True)
        >>> value = scaled(f, torch.tensor([25.0]))  # (10·1 + 5 − 25)² = 100, and (1 − 2)² has the gradient −2
        >>> value.backward()
        >>> value.item(), f.grad.item()
        (100.0, -2.0)
    """

    def scaled(outputs: Any, targets: Any) -> Tensor:
        m, s = mean.to(targets), std.to(targets)
        trained = loss(outputs, (targets - m) / s)
        with torch.no_grad():
            told = loss(outputs * s + m, targets)
        value: Tensor = trained + (told - trained).detach()
        return value

    return scaled


def _is_far(mean: Tensor, std: Tensor) -> bool:
    return bool(((mean.abs() > FAR * std) | (std.log().abs() > -math.log(FAR))).any())


def _batches(problem: Problem) -> Generator[Any, None, None]:
    """One pass over the data, in which nothing of the user's advances."""
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        for _, batch in data:
            yield batch


def _targets(problem: Problem) -> Iterator[Tensor]:
    with contextlib.closing(_batches(problem)) as batches:
        for _, y in batches:
            if isinstance(y, Tensor) and y.is_floating_point() and y.dim():
                yield y


def _depends_on_differences(setup: Setup) -> bool:
    """Whether the loss of outputs and targets stays the same if both are moved by the same number."""
    outputs, targets = first_batch(setup)
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or outputs.numel() != targets.numel():
        return False
    if not targets.is_floating_point():
        return False
    by = float(targets.detach().double().std(correction=0)) or 1.0
    loss, moved, other = (loss_at(setup, outputs + a, targets + b) for a, b in ((0.0, 0.0), (by, by), (by, 0.0)))
    return math.isclose(loss, moved, rel_tol=1e-3, abs_tol=1e-6) and not math.isclose(loss, other, rel_tol=1e-6)
