"""The best constant prediction, next to which a run shows whether it has learned anything of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from wellcond.network.calling import tensors_in
from wellcond.problem.evaluation import Evaluation
from wellcond.problem.loss.constant import constant_loss
from wellcond.problem.problem import Problem

MANY = 10
"""Examples for every entry of a constant, from which on its loss is about that on other examples."""
SAME = 0.02
"""Variation of outputs, over their size, below which they are the same for all inputs. It is 1e-5 for six layers of
sigmoids that no rate trains, and 0.2 and more where transformers wait on their first plateau."""


class BestConstant:
    """The best constant prediction of some batches.

    Args:
        problem: Its loss.
        evaluations: The batches at the present weights.
    """

    def __init__(self, problem: Problem, evaluations: Sequence[Evaluation]) -> None:
        self._problem, self._evaluations = problem, evaluations
        self._outputs = [each.outputs.detach() for each in evaluations if each.outputs is not None]

    def loss_if_outputs_agree(self) -> float | None:
        """Its loss, where the outputs hardly depend on the inputs; None if they do, or if that loss is not known.

        A network that is slow to start is at the same loss for a while, but its outputs differ from input to input.
        """
        return self._loss() if self._has_all() and _hardly_vary(self._outputs) else None

    def loss_of_many(self) -> float | None:
        """Its loss, whatever the outputs depend on; None if it is not known.

        So too if the examples are too few to say what it is on others: a constant with an output for each of them would
        fit them.
        """
        return self._loss() if self._has_all() and _are_many(self._outputs) else None

    def _has_all(self) -> bool:
        return len(self._outputs) == len(self._evaluations)

    def _loss(self) -> float | None:
        """None where targets are all the same, as a GAN's: a constant gets them right, so that it is no yardstick."""
        problem, targets = self._problem, [each.targets for each in self._evaluations]
        least = constant_loss(problem.loss_of_outputs, problem.likelihood, self._outputs, targets)
        if least is None or abs(least) < 1e-4 * min(abs(float(self._evaluations[0].loss.detach())), 1.0):
            return None
        return least


def _hardly_vary(outputs: Sequence[Tensor]) -> bool:
    """Whether outputs hardly differ from example to example, compared with their size."""
    if any(not each.dim() or each.shape[1:] != outputs[0].shape[1:] for each in outputs):
        return False
    every = torch.cat([each.double() for each in outputs])
    return bool((every - every.mean(0)).square().mean() <= SAME**2 * every.square().mean())


def _are_many(outputs: Sequence[Tensor]) -> bool:
    """Whether there are many examples for every output of one."""
    return all(each.dim() for each in outputs) and sum(map(len, outputs)) >= MANY * max(1, outputs[0][0].numel())


def are_all_the_same(inputs: Sequence[Any]) -> bool:
    """Whether no example differs from another, so that a constant is the best prediction."""
    columns = zip(*(tensors_in(each) for each in inputs), strict=False)
    return all(each.dim() and bool((each == column[0][:1]).all()) for column in columns for each in column)
