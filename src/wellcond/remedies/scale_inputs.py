"""`scale-inputs`: standardized inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from torch import nn

from wellcond.errors import Unsupported
from wellcond.nn.standardized import standardized
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep
from wellcond.remedies.batch_code import pairs_code
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup
from wellcond.remedies.standardized_data import is_standardized


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
    return None if all(map(is_standardized, means, stds)) else treated


def _standardized(model: nn.Module, problem: Problem) -> nn.Module:
    with contextlib.closing(_pairs(problem)) as pairs:
        return standardized(model, pairs)


def _pairs(problem: Problem) -> Generator[Any, None, None]:
    """The inputs of the model in one pass; nothing of the user's advances."""
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        for index, pair in data:
            yield problem.model_inputs(index, pair), None
