"""Whether what a network has learned tells examples apart: the loss if each example had the outputs of another one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.network.calling import tensors_in
from wellcond.network.taps import bracketed
from wellcond.problem.batches import examples_in
from wellcond.problem.loss.outputs import with_tensors
from wellcond.problem.problem import Batch, Problem

Change = Callable[[Tensor], Tensor]
EQUAL = 1e-4
"""Relative change of the loss that may be rounding: a loss that changes less does not compare outputs with examples."""


@dataclass(frozen=True)
class Paired:
    """The loss of a batch.

    Attributes:
        loss: As it is.
        of_others: With the outputs given to other examples.
    """

    loss: float
    of_others: float

    @property
    def gain(self) -> float:
        """What the right outputs are worth: the difference of the two over the larger one."""
        return (self.of_others - self.loss) / max(abs(self.loss), abs(self.of_others), 1e-12)


def depends_on_pairs(problem: Problem, batch: Batch) -> bool:
    """Whether the loss depends on which example outputs belong to: a generator's, or that of a density, does not."""

    def varied(t: Tensor) -> Tensor:
        noise = torch.randn(t.shape, generator=torch.Generator().manual_seed(1)).to(t)
        return t + noise if t.is_floating_point() else t

    exchanged = _exchange(examples_in(batch))
    own, of_others = _losses(problem, batch, varied, lambda t: exchanged(varied(t)))
    return abs(own - of_others) > EQUAL * max(abs(own), abs(of_others))  # not so if one is NaN


def paired(problem: Problem, batch: Batch) -> Paired | None:
    """Exchange the outputs of a model between the examples of a batch, in two forward passes.

    If a step calls the model several times, the outputs of the first call are exchanged: pairs are torn apart.

    Returns:
        None if the model is not called as a whole.
    """
    own, of_others = _losses(problem, batch, lambda t: t, _exchange(examples_in(batch)))
    return Paired(own, of_others) if math.isfinite(own + of_others) else None


def loss_of_one_point(problem: Problem, batch: Batch) -> float:
    """The loss if all calls gave all examples the same outputs; NaN if the model is not called as a whole."""
    points: dict[torch.Size, Tensor] = {}

    def averaged(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        return points.setdefault(t.shape[1:], t.mean(0, keepdim=True)).expand_as(t).contiguous()

    with problem.measuring(), torch.no_grad():
        return _loss(problem, batch, averaged, every=True)


def _exchange(examples: int) -> Change:
    order = torch.randperm(examples, generator=torch.Generator().manual_seed(0))
    others = torch.empty_like(order)
    others[order] = order.roll(1)  # none keeps its own
    return lambda t: t[others.to(t.device)]


def _losses(problem: Problem, batch: Batch, *changes: Change) -> list[float]:
    with problem.measuring(), torch.enable_grad():  # one term of a loss is known by its graph
        return [_loss(problem, batch, change) for change in changes]


def _loss(problem: Problem, batch: Batch, change: Change, *, every: bool = False) -> float:
    """The loss if the outputs of the first call, or of all, are changed; NaN if there is no call."""
    examples = examples_in(batch)
    calls = 0

    def on_exit(_module: nn.Module, output: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1 and not every:
            return None
        return with_tensors(output, {id(t): change(t) for t in tensors_in(output) if t.dim() and len(t) == examples})

    with bracketed([problem.model], lambda *_: None, on_exit):
        value = float(problem.training_loss(0, batch).detach())
    return value if calls else math.nan
