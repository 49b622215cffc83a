"""Gradients with respect to some of the parameters, by passes that are counted."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from wellcond.problem import Problem

Gradients = dict[str, Tensor | None]
"""∇L of parameters by name; None where a parameter is unused, which an optimizer tells from a gradient of zero."""


class GradientPasses:
    """The mean loss and its gradients at the parameters' present values; call it inside `problem.measuring()`.

    Batches count by their terms. `forwards` and `backwards` count passes over all the data.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.forwards = self.backwards = 0

    def __call__(self, params: Mapping[str, nn.Parameter]) -> tuple[Tensor, Gradients]:
        """Differentiate with respect to these alone: autograd leaves out what lies before them.

        Freezing all others for the time of the pass would not make it any faster.
        """
        loss = torch.zeros((), dtype=self.problem.dtype, device=self.problem.device)
        gradients: Gradients = dict.fromkeys(params)
        weight = 0.0
        self.forwards += 1
        with contextlib.closing(self.problem.data()) as data:
            for index, batch in data:
                evaluation = self.problem.evaluate(index, batch)
                found = torch.autograd.grad(evaluation.loss, list(params.values()), allow_unused=True)
                weight += evaluation.terms
                share = evaluation.terms / weight
                loss = loss.lerp(evaluation.loss.detach().to(loss), share)
                for name, new in zip(params, found, strict=True):
                    gradients[name] = _mean(gradients[name], new, share)
        self.backwards += 1
        return loss, gradients


def _mean(before: Tensor | None, new: Tensor | None, share: float) -> Tensor | None:
    """The mean so far with a batch of this share of the terms. None counts as zero; one batch is not rounded."""
    if new is None:
        return None if before is None else before * (1 - share)
    return new * share if before is None else before.lerp(new, share)
