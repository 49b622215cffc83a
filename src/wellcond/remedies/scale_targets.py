"""`scale-targets`: standardized targets."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from wellcond.errors import Unsupported
from wellcond.network.calling import tensors_in
from wellcond.problem.loss.outputs import Loss
from wellcond.problem.problem import Problem
from wellcond.remedies.batch_code import pairs_code
from wellcond.remedies.loss_code import wrapped_loss
from wellcond.remedies.loss_probe import first_batch, loss_at
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup
from wellcond.remedies.standardized_data import is_standardized

LINES = (
    wrapped_loss("unscaled_loss", "unscaled_loss(outputs, (targets - mean) / std)")
    + "\ndef predict(inputs):  # in the units of the targets\n    return model(inputs) * std + mean"
)
SEVERAL_TARGETS = (
    "the targets are several tensors, and the loss compares each with outputs of its own: standardize them where the "
    "data set is made."
)


@remedy("scale-targets", "targets", rules=("unscaled-target", "bad-initialisation"))
def scale_targets(setup: Setup) -> Setup | None:
    """Trains on standardized targets; `treat` reports the loss in the units of the original ones.

    A network at its initialization answers about ±1: targets far from that cost it thousands of steps of the last
    layer, and its gradients are as large as the targets. It takes a loss of differences (squared, absolute, Huber).
    """
    targets = torch.cat([y.double().cpu() for y in _targets(setup.problem)] or [torch.zeros(0)])
    if not targets.numel() or not _depends_on_differences(setup):
        _, first = first_batch(setup)
        if not isinstance(first, Tensor) and any(each.is_floating_point() for each in tensors_in(first)):
            raise Unsupported(SEVERAL_TARGETS)
        return None
    mean, std = targets.mean(0), targets.std(0, correction=0)
    std = torch.where(std > 1e-9 * (1 + mean.abs()), std, 1.0)
    if is_standardized(mean, std):
        return None
    if mean.numel() == 1:
        moments = f"mean, std = {float(mean):.8g}, {float(std):.8g}  # of the targets"
    else:
        moments = (
            f"all_targets = torch.cat([targets for _, targets in {pairs_code(setup)}])\n"
            "mean, std = all_targets.mean(0), all_targets.std(0, correction=0).clamp_min(1e-9)"
        )
    return setup.with_loss(in_original_units(setup.problem.loss, mean, std), moments, LINES)


def in_original_units(loss: Loss, mean: Tensor, std: Tensor) -> Loss:
    """A loss with the gradient of standardized targets, and with the value of the original ones.

    Example:
        >>> scaled = in_original_units(torch.nn.MSELoss(), torch.tensor(5.0), torch.tensor(10.0))
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
            original = loss(outputs * s + m, targets)
        value: Tensor = trained + (original - trained).detach()
        return value

    return scaled


def _targets(problem: Problem) -> Iterator[Tensor]:
    """Targets of all batches; nothing of the user's advances."""
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        for _, (_, y) in data:
            if isinstance(y, Tensor) and y.is_floating_point() and y.dim():
                yield y


def _depends_on_differences(setup: Setup) -> bool:
    """Whether the loss stays the same if outputs and targets are shifted by the same number."""
    outputs, targets = first_batch(setup)
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or outputs.numel() != targets.numel():
        return False
    if not targets.is_floating_point():
        return False
    by = float(targets.detach().double().std(correction=0)) or 1.0
    loss, shifted, other = (loss_at(setup, outputs + a, targets + b) for a, b in ((0.0, 0.0), (by, by), (by, 0.0)))
    return math.isclose(loss, shifted, rel_tol=1e-3, abs_tol=1e-6) and not math.isclose(loss, other, rel_tol=1e-6)
