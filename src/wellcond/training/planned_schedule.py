"""A schedule of the planned run, followed by runs of other lengths and at other rates."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from wellcond.errors import InvalidProblem, Unsupported
from wellcond.training.optimizers import Group, current_lr, set_lr

MakeScheduler = Callable[[Optimizer], LRScheduler]
"""Makes the schedule of the planned run for an optimizer; it is stepped after every training step."""
FOLLOWED = ("momentum", "betas")
"""Settings besides the rate that a schedule changes, as a one-cycle does."""
NOT_A_FACTORY = """\
scheduler is {what}; pass a function that makes the schedule for an optimizer:
scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)."""
ENDS = "the schedule ends after {taken} steps, and the planned run has {steps}: pass steps={taken}."
METRIC = "{kind} follows a measured loss, which short runs do not have as the planned one does: race without it."
NO_RATE = "the schedule holds every learning rate at 0 for all {steps} steps, so there is nothing to scale."


@dataclass(frozen=True)
class PlannedSchedule:
    """The settings that a schedule gives to each group of an optimizer.

    Attributes:
        settings: Before each step of the planned run, the settings of each group.
        peak: The highest learning rate of all groups and steps.
    """

    settings: tuple[tuple[Group, ...], ...]
    peak: float

    def attach(self, optimizer: Optimizer, lr: float, steps: int) -> None:
        """Let an optimizer follow the schedule, stretched to a run of some steps, with `lr` as its highest rate."""
        taken = count()

        def before_step(*_: Any) -> None:
            place = min(next(taken) * len(self.settings) // steps, len(self.settings) - 1)
            for group, planned in zip(optimizer.param_groups, self.settings[place], strict=True):
                group.update({name: value for name, value in planned.items() if name != "lr"})
                set_lr(group, lr * planned["lr"] / self.peak)

        optimizer.register_step_pre_hook(before_step)


def planned_schedule(make: MakeScheduler, optimizer: Optimizer, steps: int) -> PlannedSchedule:
    """Step the schedule of a planned run once, without training.

    Args:
        make: Makes it.
        optimizer: A copy, which is changed.
        steps: The length of the planned run.

    Raises:
        InvalidProblem: `make` makes no schedule of torch's, or one that ends before the run.
        Unsupported: It follows a metric.

    Example:
        >>> import torch
        >>> sgd = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        >>> halves = planned_schedule(lambda o: torch.optim.lr_scheduler.StepLR(o, 5, gamma=0.5), sgd, steps=10)
        >>> halves.peak, halves.settings[4][0]["lr"], halves.settings[5][0]["lr"]
        (0.1, 0.1, 0.05)
    """
    scheduler = make(optimizer) if callable(make) else make
    if not callable(make) or not isinstance(scheduler, LRScheduler):
        raise InvalidProblem(NOT_A_FACTORY.format(what=f"a {type(scheduler).__name__}"))
    if "metrics" in inspect.signature(scheduler.step).parameters:
        raise Unsupported(METRIC.format(kind=type(scheduler).__name__))
    settings = [_settings(optimizer)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimizer takes no steps
        while len(settings) < steps:
            try:
                scheduler.step()
            except ValueError as error:  # a one-cycle is over
                raise InvalidProblem(ENDS.format(taken=len(settings) - 1, steps=steps)) from error
            settings.append(_settings(optimizer))
    peak = max(group["lr"] for groups in settings for group in groups)
    if not peak > 0:
        raise InvalidProblem(NO_RATE.format(steps=steps))
    return PlannedSchedule(tuple(settings), peak)


def _settings(optimizer: Optimizer) -> tuple[Group, ...]:
    return tuple(
        {"lr": current_lr(group), **{name: group[name] for name in FOLLOWED if name in group}}
        for group in optimizer.param_groups
    )
