"""Gradients with respect to some of the parameters, by passes that are counted."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from wellcond.errors import NonFinite
from wellcond.problem.points import forwards_of_failure, mean_loss_and_gradients_of
from wellcond.problem.problem import Problem

Gradients = dict[str, Tensor | None]
"""∇L of parameters by name; None where a parameter is unused, which an optimizer tells from a gradient of zero."""


class GradientPasses:
    """The mean loss and its gradients at the parameters' present values; call it inside `problem.measuring()`.

    `forwards` and `backwards` count passes over all the data.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.forwards = self.backwards = 0

    def __call__(self, params: Mapping[str, nn.Parameter]) -> tuple[Tensor, Gradients]:
        """Differentiate with respect to these alone."""
        try:
            loss, found = mean_loss_and_gradients_of(self.problem, list(params.values()))
        except NonFinite:
            self.forwards += forwards_of_failure(self.problem)
            raise
        self.forwards += 1
        self.backwards += 1
        return loss, dict(zip(params, found, strict=True))
