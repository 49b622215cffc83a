"""The rates that a schedule comes to, by stepping a copy of it."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

HORIZON = 10_000
"""Calls of `scheduler.step()` that are looked at: an ordinary run, if it is called after every batch."""
TOP = 0.999
"""Share of the highest rate, by rounding the same."""
END = 1e-9
"""Share of the highest rate: one that is larger and then exactly zero has come to its end as planned."""


@dataclass(frozen=True)
class Schedule:
    """The rates of a schedule from now on.

    Attributes:
        rates: The largest rate of all groups before each call of `scheduler.step()`, up to its end or the horizon.
        is_per_batch: Whether it has been stepped as often as the optimizer; None if neither has taken steps.
    """

    rates: tuple[float, ...]
    is_per_batch: bool | None

    @property
    def highest(self) -> float:
        """The highest rate; infinite if the rate still rises at the horizon."""
        highest = max(self.rates)
        is_reached = len(self.rates) <= HORIZON or self.rates[0] >= TOP * highest or self.rates[-1] < TOP * highest
        return highest if is_reached else math.inf

    @property
    def at_full_rate(self) -> float:
        """Steps at the highest rate that are as long as all together; infinite if the rate comes to an end at zero."""
        highest = max(self.rates)
        ends = len(self.rates) <= HORIZON or any(a > END * highest and b == 0 for a, b in pairwise(self.rates))
        return math.inf if ends or not highest else sum(self.rates) / highest


def schedule_of(scheduler: Any) -> Schedule | None:
    """Step a copy of a schedule, on a stand-in for its optimizer.

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
    return Schedule(tuple(rates), _is_per_batch(scheduler, optimizer))


def _stand_in(optimizer: Optimizer) -> Optimizer:
    """An optimizer with the same groups, of one number each."""
    stand_in = SGD([{"params": [torch.zeros(1)]} for _ in optimizer.param_groups], lr=0.0)
    for group, own in zip(stand_in.param_groups, optimizer.param_groups, strict=True):
        group.update({name: copy.deepcopy(value) for name, value in own.items() if name != "params"})
    return stand_in


def _largest(optimizer: Optimizer) -> float:
    return max(float(group["lr"]) for group in optimizer.param_groups)


def _is_per_batch(scheduler: LRScheduler, optimizer: Optimizer) -> bool | None:
    """By how often both have been stepped, where the optimizer counts its steps."""
    counts = [int(state["step"]) for state in optimizer.state.values() if "step" in state]
    taken = max(counts, default=0)
    return None if taken < 2 or scheduler.last_epoch < 1 else 2 * scheduler.last_epoch > taken
