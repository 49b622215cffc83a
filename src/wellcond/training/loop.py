"""The plain mini-batch loop: an optimizer, a loss and batches in; the loss of every step out."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from wellcond.errors import InvalidProblem, NonFinite
from wellcond.training.run import Run

Batch = TypeVar("Batch")

NO_MORE_BATCHES = "there are no more batches, and they cannot be read again; pass a list, or a generator without end."


def train(optimizer: Optimizer, loss_at: Callable[[int, Batch], Tensor], batches: Iterable[Batch], steps: int) -> Run:
    """Take optimizer steps on the batches in turn, until the loss is no longer finite.

    The model is trained in the mode that it is in; modes, devices and random numbers are up to the caller.

    Args:
        optimizer: It holds the parameters that are trained.
        loss_at: Called as (number of steps taken, batch); returns the mean loss of the batch with its graph. If it
            raises `NonFinite`, the run has diverged.
        batches: Read again from the start when they end; or a generator without end.
        steps: The number of steps to take.

    Returns:
        The loss of every step, and where the run diverged if it did.

    Raises:
        InvalidProblem: There are no batches, or too few of them and they cannot be read again.

    Example:
        The loss is w², from w = 1, and each step takes w to w − 2w/4.

        >>> import torch
        >>> w = torch.ones(1, requires_grad=True)
        >>> train(torch.optim.SGD([w], lr=0.25), lambda step, batch: (batch * w).square().mean(), [1.0], 3).losses
        [1.0, 0.25, 0.0625]
    """
    losses: list[float] = []
    for step, batch in zip(range(steps), cycled(batches), strict=False):
        try:
            loss = take_step(optimizer, partial(loss_at, step, batch))
        except NonFinite as error:
            return Run(losses, step + 1, str(error))
        if not math.isfinite(loss):
            return Run(losses, step + 1)
        losses.append(loss)
    return Run(losses)


def take_step(
    optimizer: Optimizer, loss_now: Callable[[], Tensor], measured: Callable[[Tensor], Tensor] = Tensor.detach
) -> float:
    """Take one step, unless the loss is not finite.

    Args:
        optimizer: Any; one that needs a closure, such as LBFGS, gets it.
        loss_now: Computes the loss with its graph.
        measured: The loss to report, from the one to differentiate.

    Returns:
        The loss before the step.
    """

    def closure() -> Tensor:
        loss = loss_now()
        value = measured(loss)
        optimizer.zero_grad()
        if math.isfinite(float(value)):
            loss.backward()  # type: ignore[no-untyped-call]
        return value

    if needs_closure(optimizer):  # LBFGS, which evaluates the loss several times
        return float(torch.as_tensor(optimizer.step(closure)))  # type: ignore[arg-type]
    value = float(closure())
    if math.isfinite(value):
        optimizer.step()
    return value


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether an optimizer evaluates the loss itself, as LBFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def cycled(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches over and over, in their order.

    Raises:
        InvalidProblem: They have ended and cannot be read again.
    """
    is_empty = False
    while not is_empty:
        is_empty = True
        for batch in batches:
            is_empty = False
            yield batch
    raise InvalidProblem(NO_MORE_BATCHES)
