"""Which learning rate to start with: predicted from the architecture, measured from the curvature, and tried."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from wellcond.errors import WellcondError
from wellcond.meanfield.prediction import Loss, Prediction
from wellcond.meanfield.predictor import predict
from wellcond.meanfield.stages import Variant
from wellcond.problem.likelihoods import CrossEntropy, Gaussian, Likelihood
from wellcond.problem.problem import Problem
from wellcond.results import Row, number
from wellcond.stability.lr_limits import MaxLearningRate
from wellcond.stability.max_lr import max_lr
from wellcond.verify.trial_steps import TrialSteps, trial_steps

Progress = Callable[[str, float], None]

SHARES = tuple(10 ** (k / 3) for k in range(-9, 4))
"""Of the measured limit, at which steps are tried: from a thousandth to ten times."""
SAFE = 0.5
"""On a quadratic the sharpest direction converges fastest at half of its limit."""


@dataclass(frozen=True)
class FirstRate:
    """Three answers to one question. predicted and trial are None where there is none, and `notes` say why."""

    measured: MaxLearningRate
    predicted: Prediction | None
    trial: TrialSteps | None
    notes: tuple[str, ...] = ()

    @property
    def start(self) -> float:
        """Half of the measured limit; the best rate that was tried if that is lower, or if half the limit diverged."""
        half = SAFE * self.measured.value
        if self.trial is None or math.isnan(self.trial.best):
            return half
        pairs = zip(self.trial.rates.tolist(), self.trial.diverged.tolist(), strict=True)
        has_diverged = any(bad for rate, bad in pairs if rate <= half)
        return self.trial.best if has_diverged else min(half, self.trial.best)

    def rows(self) -> list[Row]:
        rows = [*self.measured.rows(), Row(None, "", "start_lr", self.start, "lr")]
        rows += [] if self.trial is None else self.trial.rows()
        if self.predicted is None:
            return rows
        return [*rows, Row(None, "", "predicted_max_lr", float(self.predicted.max_lr), "lr")]

    def verdict(self) -> str:
        """Which rate, and why."""
        limit, start = self.measured.value, self.start
        if not math.isfinite(start):
            return "The curvature at these weights sets no limit: find the rate by trying."
        reason = f"half of {number(limit)}, above which the sharpest direction of the loss diverges"
        if self.trial is not None and start < SAFE * limit:
            reason = (
                f"the loss is lowest there after {self.trial.steps} steps; the curvature would allow {number(limit)}"
            )
        further = ""
        if self.trial is not None and self.trial.best > limit:
            further = (
                f" Of the rates tried the loss is lowest at {number(self.trial.best)}, beyond that limit: it curves "
                "less further out, and a larger rate may do."
            )
        return f"Start with lr = {number(start)}: {reason}.{further}"


def first_rate(
    problem: Problem,
    momentum: float = 0.0,
    *,
    optimizer: Optimizer | None = None,
    steps: int = 20,
    progress: Progress | None = None,
) -> FirstRate:
    """Predict the largest stable rate from the architecture, measure it, and try rates around it for a few steps.

    The trial is gradient descent with momentum on all batches; of an optimizer that is not SGD there is none. Nothing
    of the model or the optimizer is changed.
    """
    report = progress or (lambda _what, _share: None)
    report("largest stable rate", 0.0)
    chosen: dict[str, Any] = {"momentum": momentum} if optimizer is None else {"optimizer": optimizer}
    measured = max_lr(problem, **chosen)
    notes: list[str] = []
    predicted = trial = None
    mu = momentum if optimizer is None else _heavy_ball(optimizer)
    if mu is not None:
        try:
            predicted = _predicted(problem, mu)
        except (WellcondError, ValueError) as error:
            notes.append(f"no prediction from the architecture: {error}")
        if math.isfinite(measured.value):
            rates = [measured.value * share for share in SHARES]
            trial = trial_steps(problem, rates, mu, steps, progress=lambda what, share: report(what, 0.2 + 0.8 * share))
    else:
        notes.append(
            "the prediction and the trial steps are of gradient descent with one rate and heavy-ball momentum, not of "
            f"this {type(optimizer).__name__}: they are left out; give a momentum to have them"
        )
    return FirstRate(measured, predicted, trial, tuple(notes))


def _heavy_ball(optimizer: Optimizer) -> float | None:
    """The momentum of an optimizer that is gradient descent with one rate and nothing else, or None."""
    if type(optimizer) is not SGD or len({(group["lr"], group["momentum"]) for group in optimizer.param_groups}) > 1:
        return None
    does_more = ("weight_decay", "dampening", "nesterov", "maximize")
    if any(group[setting] for group in optimizer.param_groups for setting in does_more):
        return None
    return float(optimizer.param_groups[0]["momentum"])


def _predicted(problem: Problem, momentum: float) -> Prediction:
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        evaluation = problem.evaluate(index, batch)
    inputs = batch[0]
    if not isinstance(inputs, Tensor):
        raise WellcondError("the theory is for networks with one tensor as input.")
    loss = _loss(problem.likelihood, 1 if evaluation.outputs is None else evaluation.outputs.shape[-1])
    variant: Variant = "batch" if problem.batchnorm == "batch" else "detached"
    return predict(problem.model, None, momentum, variant, inputs=inputs.to(torch.float64).cpu(), loss=loss)


def _loss(likelihood: Likelihood | None, outputs: int) -> Loss:
    """The name of a loss that the theory knows."""
    if isinstance(likelihood, CrossEntropy):
        return "cross-entropy"
    if isinstance(likelihood, Gaussian):
        scales: dict[Loss, float] = {"half-squared": 0.5, "mse": 1 / outputs}
        for name, scale in scales.items():
            if math.isclose(likelihood.scale, scale, rel_tol=1e-3):
                return name
    raise WellcondError("the theory knows cross-entropy and squared error, and the loss is neither.")
