"""The rates that a schedule comes to, by stepping a copy of it; and how often training steps it."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

HORIZON = 10_000
"""Calls of `scheduler.step()` that are looked at: an ordinary run, if it is called after every batch."""
TOP = 0.999
"""Share of the highest rate, by rounding the same."""
END = 1e-9
"""Share of the highest rate: one that is larger and then exactly zero has come to its end as planned."""
SHORT_RUN = 1000
"""Steps of an ordinary short run: what a decay comes to is summed over this many after its highest rate."""
INTERVALS = ("step", "epoch")


class Stepped(NamedTuple):
    """A schedule, whether training steps it once per epoch instead of after every step, and whether that was said."""

    scheduler: Any
    is_by_epoch: bool
    is_said: bool


@dataclass(frozen=True)
class Schedule:
    """The rates of a schedule from now on.

    Attributes:
        rates: The largest rate of all groups before each call of `scheduler.step()`, up to its end or the horizon.
        is_per_batch: Whether it is stepped as often as the optimizer: by how often both have been, or as it was passed.
        is_known: Whether that was said, or is seen from their steps, and is not only taken for granted.
    """

    rates: tuple[float, ...]
    is_per_batch: bool = True
    is_known: bool = False

    @property
    def highest(self) -> float:
        """The highest rate; infinite if the rate still rises at the horizon."""
        highest = max(self.rates)
        is_reached = len(self.rates) <= HORIZON or self.rates[0] >= TOP * highest or self.rates[-1] < TOP * highest
        return highest if is_reached else math.inf

    @property
    def ends(self) -> int | None:
        """Steps after which it ends, or is at zero; None if it never is."""
        highest = max(self.rates)
        zero = (k for k, (a, b) in enumerate(pairwise(self.rates), start=1) if a > END * highest and b == 0)
        return next(zero, len(self.rates) if len(self.rates) <= HORIZON else None)

    @property
    def worth(self) -> float:
        """Steps at the highest rate that are as long as those of a short run together, from that rate on."""
        highest = max(self.rates)
        top = self.rates.index(highest)
        return sum(self.rates[top : top + SHORT_RUN]) / highest if highest else math.inf

    @property
    def at_full_rate(self) -> float:
        """The same; infinite if the rate comes to an end at zero, which is as it was planned."""
        return self.worth if self.ends is None else math.inf


def schedule_of(scheduler: Any, *, is_by_epoch: bool = False, is_said: bool = False) -> Schedule | None:
    """Step a copy of a schedule, on a stand-in for its optimizer.

    Args:
        scheduler: The schedule.
        is_by_epoch: Whether training steps it once per epoch, and not after every step of the optimizer.
        is_said: Whether the user has said so.

    Returns:
        None if it is no schedule of torch's, or follows a metric.

    Example:
        >>> sgd = SGD([torch.zeros(1)], lr=0.1)
        >>> [round(lr, 3) for lr in schedule_of(torch.optim.lr_scheduler.ExponentialLR(sgd, 0.5)).rates[:4]]
        [0.1, 0.05, 0.025, 0.013]
    """
    if not isinstance(scheduler, LRScheduler) or scheduler.optimizer is None:
        return None
    optimizer = scheduler.optimizer
    stand_in = _stand_in(optimizer)
    rates = [_largest(stand_in)]
    try:
        twin = copy.deepcopy(scheduler, {id(optimizer): stand_in})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the stand-in takes no steps
            while len(rates) <= HORIZON:
                twin.step()
                rates.append(_largest(stand_in))
    except ValueError:  # a one-cycle is over
        pass
    except Exception:  # a schedule may follow a metric, and a function of the user's may raise anything
        return None
    seen = _is_per_batch(scheduler, optimizer)
    return Schedule(tuple(rates), not is_by_epoch and seen is not False, is_said or seen is not None)


def stepped(passed: Any, optimizer: Optimizer | None = None) -> Stepped | None:
    """The schedule in what was passed, and how often it is stepped.

    Args:
        passed: A schedule, which is stepped after every step of the optimizer; Lightning's form `{"scheduler":
            schedule, "interval": "epoch"}` (or `"step"`); or what `configure_optimizers` returns.
        optimizer: Of several schedules, that of this optimizer; None: the first.

    Returns:
        None if there is none.

    Raises:
        ValueError: There is no such interval.

    Example:
        >>> schedule = torch.optim.lr_scheduler.StepLR(SGD([torch.zeros(1)], lr=0.1), 10)
        >>> forms = schedule, {"scheduler": schedule, "interval": "step"}, {"scheduler": schedule}, ([], [schedule])
        >>> [stepped(form).is_by_epoch for form in forms]
        [False, False, True, True]
    """
    if passed is None or isinstance(passed, Optimizer) or hasattr(passed, "param_groups"):
        return None
    if not isinstance(passed, (Mapping, Sequence)):
        return Stepped(passed, is_by_epoch=False, is_said=False)
    every = list(schedules_in(passed))
    own = [each for each in every if optimizer is None or getattr(each.scheduler, "optimizer", None) is optimizer]
    return next(iter(own or (every if len(every) < 2 else [])), None)


def schedules_in(configured: Any) -> Iterator[Stepped]:
    """Every schedule in what `configure_optimizers` returns; Lightning steps them once per epoch if nothing is said.

    Raises:
        ValueError: There is no such interval.

    Example:
        >>> sgd = SGD([torch.zeros(1)], lr=0.1)
        >>> schedule = torch.optim.lr_scheduler.StepLR(sgd, 10)
        >>> by_step = {"optimizer": sgd, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
        >>> [is_by_epoch for form in (([sgd], [schedule]), by_step) for _, is_by_epoch, _ in schedules_in(form)]
        [True, False]
    """
    if isinstance(configured, Mapping) and "scheduler" in configured:
        interval = configured.get("interval", "epoch")
        if interval not in INTERVALS:
            raise ValueError(f'the interval of a scheduler is {interval!r}; write "step" or "epoch".')
        yield Stepped(configured["scheduler"], interval == "epoch", is_said=True)
    elif isinstance(configured, Mapping):
        yield from schedules_in(configured.get("lr_scheduler"))
    elif isinstance(configured, Sequence) and not isinstance(configured, str):
        for part in configured:
            yield from schedules_in(part)
    elif isinstance(configured, LRScheduler):
        yield Stepped(configured, is_by_epoch=True, is_said=True)


def _stand_in(optimizer: Optimizer) -> Optimizer:
    """An optimizer with the same groups, of one number each."""
    stand_in = SGD([{"params": [torch.zeros(1)]} for _ in optimizer.param_groups], lr=0.0)
    for group, own in zip(stand_in.param_groups, optimizer.param_groups, strict=True):
        group.update({name: copy.deepcopy(value) for name, value in own.items() if name != "params"})
    return stand_in


def _largest(optimizer: Optimizer) -> float:
    return max(float(group["lr"]) for group in optimizer.param_groups)


def _is_per_batch(scheduler: LRScheduler, optimizer: Optimizer) -> bool | None:
    """By how often both have been stepped; None if the optimizer counts no steps, or has taken none."""
    counts = [int(state["step"]) for state in optimizer.state.values() if "step" in state]
    taken = max(counts, default=0)
    return None if taken < 2 or scheduler.last_epoch < 1 else 2 * scheduler.last_epoch > taken
