"""Whether the loss of a training step pulls every output beyond what the last operation of the model can give."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.graph import tail_of
from wellcond.network.taps import bracketed
from wellcond.problem.training_step import TrainingStep

BOUNDS = {
    "Relu": (0.0, math.inf), "Softplus": (0.0, math.inf), "Exp": (0.0, math.inf), "Sigmoid": (0.0, 1.0),
    "HardSigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0),
}  # fmt: skip
"""What the results of an operation lie between."""
BEYOND_BY = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""How far beyond the bound the loss is asked for: targets have any size."""
FEWEST_PULLED = 8
"""Outputs that count, at least: of a few, all may be pulled to one side by chance."""


class Beyond(NamedTuple):
    """Outputs that are all pulled beyond a bound.

    Attributes:
        operation: The last operation of the model.
        bound: What its results are never below, or never above.
        is_low: Whether it is a lower bound.
        pulled: Outputs that the loss pulls there, of the first batch: all that it depends on.
        at_bound: Loss with all of these at the bound.
        least: Lowest loss with all of these beyond it.
    """

    operation: str
    bound: float
    is_low: bool
    pulled: int
    at_bound: float
    least: float


def beyond(subject: Subject) -> Beyond | None:
    """Ask for the gradient of the loss with all outputs at a bound, and for the loss with outputs beyond.

    Outputs of calls under `no_grad`, as of the next states of a Q-network, stay as they are.

    Returns:
        None for other losses than a training step, if the model as a whole is not called or has no bound, or if the
        loss falls without one: a model may return its own loss, which is never below zero.
    """
    if not isinstance(subject.problem.loss, TrainingStep):
        return None
    operations: set[str] = set()

    def noted(t: Tensor) -> Tensor:
        operations.update(tail_of(t.grad_fn)[0][:1] or ("",))
        return t

    _loss(subject, noted)
    if len(operations) != 1 or (operation := operations.pop()) not in BOUNDS:
        return None
    for bound, sign in zip(BOUNDS[operation], (-1, 1), strict=True):
        count, at_bound = _pulled(subject, bound, sign) if math.isfinite(bound) else (0, math.nan)
        if count < FEWEST_PULLED or not at_bound > 0:
            continue
        others = [_loss(subject, partial(_moved, to=bound + sign * distance)) for distance in BEYOND_BY]
        least = min((float(each.detach()) for each in others if each is not None), default=math.nan)
        return Beyond(operation, bound, sign < 0, count, at_bound, least) if least >= 0 else None
    return None


def _pulled(subject: Subject, bound: float, sign: int) -> tuple[int, float]:
    """How many outputs the loss pulls beyond a bound where all are there, and this loss; 0 if one is pulled back."""
    leaves: list[Tensor] = []

    def leaf(t: Tensor) -> Tensor:
        leaves.append(torch.full_like(t, bound).detach().requires_grad_())
        return leaves[-1].clone()

    loss = _loss(subject, leaf)
    if loss is None or not leaves or not loss.requires_grad:
        return 0, math.nan
    known = [g for g in torch.autograd.grad(loss, leaves, allow_unused=True) if g is not None]
    pulls = torch.cat([-sign * g.flatten() for g in known]) if known else torch.zeros(1)
    is_pulled = bool(pulls.isfinite().all()) and bool((pulls >= 0).all())
    return (int((pulls > 0).sum()) if is_pulled else 0), float(loss.detach())


def _moved(outputs: Tensor, to: float) -> Tensor:
    """One number in place of all outputs, with their graph: a step without one is refused."""
    return 0 * outputs + to


def _loss(subject: Subject, change: Callable[[Tensor], Tensor]) -> Tensor | None:
    """The loss of the first batch with other outputs; None if the step refuses them."""

    def on_exit(_module: nn.Module, output: Any) -> Any:
        is_trained = isinstance(output, Tensor) and output.grad_fn is not None and output.is_floating_point()
        return change(output) if is_trained else None

    # the user's step may refuse such outputs in any way
    with (
        contextlib.suppress(Exception),
        torch.enable_grad(),
        bracketed([subject.problem.model], lambda *_: None, on_exit),
    ):
        return subject.problem.training_loss(0, (subject.inputs, subject.targets))
    return None
