"""What the loss and its gradient would be if the inputs were standardized."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from wellcond.diagnosis.inspection.data import TensorFacts, facts_of, is_badly_scaled, is_described
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep

SAME = 0.01
"""Relative difference of two losses, or gradient norms, below which standardized inputs change nothing. Inputs that
matter change the first layer's gradient by the factor of their scale, four or more."""


@dataclass(frozen=True)
class Standardized:
    """A batch whose input features are shifted and scaled to mean 0 and standard deviation 1.

    Attributes:
        loss: Loss of the standardized batch.
        gradient: ‖∇L‖ of the standardized batch.
        gradient_as_is: ‖∇L‖ of the batch as it is.
        loss_as_is: Loss of the batch as it is.
    """

    loss: float
    gradient: float
    gradient_as_is: float
    loss_as_is: float

    @property
    def changes_nothing(self) -> bool:
        """Whether loss and gradient are as before: whatever the inputs' scale, it does not reach the outputs."""
        is_loss_same = math.isclose(self.loss, self.loss_as_is, rel_tol=SAME)
        return is_loss_same and math.isclose(self.gradient, self.gradient_as_is, rel_tol=SAME)


def standardized(
    problem: Problem, batch: Any, loss_as_is: float, gradients: Sequence[Tensor | None], *, channels_first: bool
) -> Standardized | None:
    """Pass a batch with standardized inputs, forward and backward.

    Args:
        problem: What is inspected, inside `measuring()`.
        batch: Its first batch.
        loss_as_is: Loss of the batch as it is.
        gradients: Those of the batch as it is, by parameter; empty where there are none.
        channels_first: Whether (N, a, b) inputs are (examples, channels, positions).

    Returns:
        None where the inputs are not badly scaled, there is no gradient to compare with, or a training step makes the
        inputs from the batch itself.
    """
    if isinstance(problem.loss, TrainingStep):
        return None
    facts = facts_of([batch[0]], "inputs", channels_first)
    if not any(map(is_badly_scaled, facts)) or not gradients:
        return None
    waiting = iter(facts)

    def scaled(t: Any) -> Any:
        return _scaled(t, next(waiting)) if isinstance(t, Tensor) and is_described(t) else t

    loss = problem.raw_loss(problem.forward(0, tree_map(scaled, batch[0])), batch[1])
    scaled_gradients = problem.gradient(loss, list(problem.params.values()), allow_unused=True)
    return Standardized(float(loss.detach()), _norm(scaled_gradients), _norm(gradients), loss_as_is)


def _scaled(t: Tensor, fact: TensorFacts) -> Tensor:
    if not t.is_floating_point() or not fact.features:
        return t
    shape = [1] * t.dim()
    if t.dim() > 1:  # a column by itself is one feature
        shape[fact.feature_dim] = fact.features
    std = torch.where(fact.feature_std > 0, fact.feature_std, 1.0)
    mean, std = (of.to(t).view(shape) for of in (fact.feature_mean, std))
    return (t - mean) / std


def _norm(gradients: Sequence[Tensor | None]) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients if g is not None))
