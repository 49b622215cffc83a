"""The one mini-batch loop of short trials and experiments."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from wellcond.errors import InvalidProblem, NonFinite
from wellcond.results import Progress, Row
from wellcond.training.run import Run

Batch = TypeVar("Batch")

NO_MORE_BATCHES = "there are no more batches, and they cannot be read again; pass a list, or a generator without end."


def train(
    optimizer: Optimizer,
    loss_at: Callable[[int, Batch], Tensor],
    batches: Iterable[Batch],
    steps: int,
    *,
    before_step: Callable[[int, Batch], None] | None = None,
    evaluate: Callable[[int], Iterable[Row]] | None = None,
    every: int = 1,
    progress: Progress | None = None,
) -> Run:
    """Take optimizer steps on the batches in turn, until the loss is no longer finite.

    The model is trained in the mode that it is in; modes, devices and random numbers are the caller's.

    Args:
        optimizer: It holds the parameters that are trained.
        loss_at: Called as (number of steps taken, batch); returns the mean loss of the batch with its graph. A
            `NonFinite` that it raises counts as divergence.
        batches: Read over and over in their order; or a generator without end.
        steps: How many steps to take.
        before_step: Called as (number of steps taken, next batch) before each step.
        evaluate: Called with the number of steps taken, before the first step and after every `every` of them;
            returns rows. One that is not finite counts as divergence.
        every: Steps from one evaluation to the next.
        progress: Called as (what is being done, share of all work done) after every step.

    Returns:
        The loss of every step, and where the run diverged if it did.

    Raises:
        InvalidProblem: There are no batches, or not enough and they cannot be read again.

    Example:
        The loss is w², from w = 1, and each step takes w to w − 2w/4.

        >>> import torch
        >>> w = torch.ones(1, requires_grad=True)
        >>> train(torch.optim.SGD([w], lr=0.25), lambda step, batch: (batch * w).square().mean(), [1.0], 3).losses
        [1.0, 0.25, 0.0625]
    """
    losses: list[float] = []
    evaluations: list[Row] = []

    def is_finite_now() -> bool:
        if evaluate is None or len(losses) % every:
            return True
        found = list(evaluate(len(losses)))
        if all(math.isfinite(row.value) for row in found):
            evaluations.extend(found)
            return True
        return False

    def ended(diverged_at: int | None = None, cause: str = "") -> Run:
        return Run(losses, diverged_at, cause, tuple(evaluations))

    if not is_finite_now():
        return ended(0)
    for step, batch in enumerate(islice(_cycled(batches), steps)):
        if before_step is not None:
            before_step(step, batch)
        try:
            value = _step(optimizer, functools.partial(loss_at, step, batch))
        except NonFinite as error:
            return ended(step + 1, str(error))
        if not math.isfinite(value):
            return ended(step + 1)
        losses.append(value)
        if progress is not None:
            progress("training", len(losses) / steps)
        if not is_finite_now():
            return ended(len(losses))
    return ended()


def _step(optimizer: Optimizer, loss_now: Callable[[], Tensor]) -> float:
    """One step, unless the loss is not finite; the loss before it."""

    def closure() -> Tensor:
        loss = loss_now()
        optimizer.zero_grad()
        if math.isfinite(float(loss.detach())):
            loss.backward()  # type: ignore[no-untyped-call]
        return loss

    takes = inspect.signature(optimizer.step).parameters.get("closure")
    if takes is not None and takes.default is takes.empty:
        # LBFGS, which evaluates the loss several times
        return float(torch.as_tensor(optimizer.step(closure)).detach())  # type: ignore[arg-type]
    value = float(closure().detach())
    if math.isfinite(value):
        optimizer.step()
    return value


def _cycled(batches: Iterable[Batch]) -> Generator[Batch, None, None]:
    is_empty = False
    while not is_empty:
        is_empty = True
        for batch in batches:
            is_empty = False
            yield batch
    raise InvalidProblem(NO_MORE_BATCHES)
