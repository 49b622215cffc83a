"""What a trainer is about to do, in the form that measurements take."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from wellcond.diagnosis.diagnose import diagnose
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.learning_rate.race.suggest_lr import suggest_lr
from wellcond.learning_rate.race.suggested_rate import SuggestedRate
from wellcond.problem.problem import Problem
from wellcond.treatment.treat import treat
from wellcond.treatment.treatment import Treatment


@dataclass(frozen=True)
class Plan:
    """A training that has not begun.

    Attributes:
        problem: Model, training step and batches.
        optimizer: The optimizer, or several.
        scheduler: The schedule of its rates, if there is one.
        steps: Steps that the optimizer will take; None if that is not known.
        steps_between: Steps of the optimizer from one step of the schedule to the next.
        is_by_epoch: Whether the schedule is stepped once per epoch, and not after every step of the optimizer.
        forward: In place of the model's own `forward` while it is diagnosed, where its training step calls something
            else.
        configured: What the trainer's library has been given as optimizers and schedules, in its own form.
    """

    problem: Problem
    optimizer: Any
    scheduler: Any = None
    steps: int | None = None
    steps_between: int = 1
    is_by_epoch: bool = False
    forward: Any = None
    configured: Any = None

    def diagnose(self, **options: Any) -> Diagnosis:
        """`wellcond.diagnose` of this training."""
        interval = "epoch" if self.is_by_epoch else "step"
        scheduler = None if self.scheduler is None else {"scheduler": self.scheduler, "interval": interval}
        with self.as_called():
            return diagnose(self.problem, self.optimizer, **{"scheduler": scheduler, **options})

    def as_called(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the model's own call does what the training step does in its place."""
        return swapped(self.problem.model, **({} if self.forward is None else {"forward": self.forward}))

    def suggest_lr(self, **options: Any) -> SuggestedRate:
        """`wellcond.suggest_lr` for this training, of this length and with this schedule."""
        has_schedule = isinstance(self.scheduler, LRScheduler) and not isinstance(self.scheduler, ReduceLROnPlateau)
        schedule = self._schedule_of if has_schedule else None
        return suggest_lr(self.problem, self.optimizer, **{"steps": self.steps, "scheduler": schedule, **options})

    def treat(self, **options: Any) -> Treatment:
        """`wellcond.treat` of this training."""
        return treat(self.problem, self.optimizer, **options)

    def _schedule_of(self, optimizer: Optimizer) -> LRScheduler:
        """The schedule for a copy of the optimizer, to be stepped after every step."""
        twin = copy.deepcopy(self.scheduler, {id(self.scheduler.optimizer): optimizer})
        return Slowed(twin, self.steps_between)


class Slowed(LRScheduler):
    """A schedule that goes on at every n-th step only.

    Args:
        scheduler: The schedule.
        every: n.

    Example:
        >>> import torch
        >>> sgd = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        >>> slowed = Slowed(torch.optim.lr_scheduler.ExponentialLR(sgd, 0.5), 2)
        >>> rates = []
        >>> for _ in range(4):
        ...     sgd.step()
        ...     slowed.step()
        ...     rates.append(sgd.param_groups[0]["lr"])
        >>> rates
        [1.0, 0.5, 0.5, 0.25]
    """

    def __init__(self, scheduler: LRScheduler, every: int) -> None:
        self.optimizer = scheduler.optimizer
        self._scheduler, self._every, self._steps = scheduler, every, 0

    def step(self, epoch: int | None = None) -> None:
        self._steps += 1
        if self._steps % self._every == 0:
            self._scheduler.step(epoch)


@contextlib.contextmanager
def swapped(owner: Any, **attributes: Any) -> Iterator[None]:
    """Let an object have other attributes of its own for a while; methods of its class are covered by them.

    Example:
        >>> import types
        >>> owner = types.SimpleNamespace(log=1)
        >>> with swapped(owner, log=2, step=3):
        ...     print(owner)
        namespace(log=2, step=3)
        >>> owner
        namespace(log=1)
    """
    own = vars(owner)
    before = {name: own[name] for name in attributes if name in own}
    own.update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            own.pop(name, None)
        own.update(before)
