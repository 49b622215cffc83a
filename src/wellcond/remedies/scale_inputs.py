"""`scale-inputs`: standardized inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from torch import nn
from torch.optim import SGD, Optimizer

from wellcond.errors import Unsupported
from wellcond.nn.standardized import standardized
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep
from wellcond.remedies.batch_code import pairs_code
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup
from wellcond.remedies.standardized_data import is_standardized

LARGE = 10.0
"""RMS of inputs from which their limit on the rate is a hundredth of what standardized ones allow."""


@remedy(
    "scale-inputs",
    "inputs",
    rules=("unscaled-input", "ill-conditioned-input", "constant-feature", "saturated-activation"),
)
def scale_inputs(setup: Setup) -> Setup | None:
    """Standardizes the inputs by the statistics of the batches.

    A weight's step is proportional to its input, and the curvature to its square: features of different scales need
    different rates, but one rate must suit all (LeCun et al. 1998, section 4.3).
    """
    line = f"model = wc.nn.with_standardized_inputs(model, {pairs_code(setup)})"
    try:
        treated = setup.with_model(lambda model: _standardized(model, setup.problem), line)
    except Unsupported:
        if isinstance(setup.problem.loss, TrainingStep):
            raise  # the step does not call the model itself
        return None  # tokens
    buffers = dict(treated.problem.model.named_buffers())
    means, stds = ([b for name, b in buffers.items() if name.startswith(kind)] for kind in ("mean_", "std_"))
    if all(map(is_standardized, means, stds)):
        return None
    rms = max(float((mean.square() + std.square()).max()) for mean, std in zip(means, stds, strict=True)) ** 0.5
    return replace(treated, needs_other_rate=_is_for_inputs_of(rms, setup.optimizer))


def _is_for_inputs_of(rms: float, optimizer: Optimizer | None) -> bool:
    """Whether a rate is one that only inputs of such a size need: it is within their limit, 2(1 + μ)/rms².

    Steps of SGD are proportional to the gradient. A rate that was lowered until they did not diverge is too low for
    standardized inputs, by rms².
    """
    if not isinstance(optimizer, SGD) or rms < LARGE:
        return False
    return all(group["lr"] * rms**2 <= 2 * (1 + group["momentum"]) for group in optimizer.param_groups)


def _standardized(model: nn.Module, problem: Problem) -> nn.Module:
    with contextlib.closing(_pairs(problem)) as pairs:
        return standardized(model, pairs)


def _pairs(problem: Problem) -> Generator[Any, None, None]:
    """The inputs of the model in one pass; nothing of the user's advances."""
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        for index, pair in data:
            yield problem.model_inputs(index, pair), None
