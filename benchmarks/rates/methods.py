"""Ways to find a learning rate at one price; each returns the rate and what it took in training steps (u)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice

import numpy as np
import torch

import wellcond as wc
from benchmarks.rates.sweep import batches, trained
from benchmarks.rates.tasks import Task
from wellcond.learning_rate.race.suggest_lr import planned_steps

Method = Callable[[Task, int, int], tuple[float, float]]
OTHER_BATCHES = 100
"""Added to the seed: a method must not see the batches in the order in which its rate is judged."""


def suggest_lr(task: Task, seed: int, steps: int) -> tuple[float, float]:
    """`wc.suggest_lr` for a run of this many steps."""
    model = task.start(seed)
    optimizer = task.optimizer(model.parameters(), lr=task.own)
    torch.manual_seed(seed + OTHER_BATCHES)
    suggestion = wc.suggest_lr(wc.Problem(model, task.loss, task.loader()), optimizer, steps=steps)
    return suggestion.lr, suggestion.cost.u


def at_price(method: Method) -> Method:
    """A method that is given what it may take in training steps, which is the same for runs of up to 10,000 steps."""
    known = cache(method)
    return lambda task, seed, steps: known(task, seed, planned_steps(steps))


def own_rate(task: Task, _seed: int, _steps: int) -> tuple[float, float]:
    """The rate that the script has."""
    return task.own, 0.0


@at_price
def halving(task: Task, seed: int, price: int) -> tuple[float, float]:
    """Successive halving over 16 rates of the sweep's range: a quarter of the price for 16, for 8, for 4 and for 2."""
    alive = list(np.geomspace(task.rates[0], task.rates[-1], 16))
    length, cost = 0, 0
    while len(alive) > 1:
        more = price // (4 * len(alive))
        length += more
        cost += more * len(alive)
        curves = {lr: trained(task, lr, seed, length, OTHER_BATCHES) for lr in alive}
        last = {lr: float(np.mean(curve[-max(3, round(0.3 * length)) :])) for lr, curve in curves.items()}
        alive = sorted(alive, key=lambda lr: last[lr] if math.isfinite(last[lr]) else math.inf)[: len(alive) // 2]
    return float(alive[0]), float(cost)


@at_price
def torch_lr_finder(task: Task, seed: int, price: int) -> tuple[float, float]:
    """torch-lr-finder with its defaults: 1e-7 to 100, or until the smoothed loss is five times its lowest.

    Its smoothing weighs a new loss by 0.05, and the rate is where that loss falls most steeply.
    """
    rates, smooth = [], []
    for lr, loss in range_test(task, seed, 1e-7, 100.0, price):
        rates.append(lr)
        smooth.append(0.05 * loss + 0.95 * smooth[-1] if smooth else loss)
        if not math.isfinite(loss) or smooth[-1] > 5 * min(smooth):
            break
    middle = slice(10, max(len(rates) - 5, 12))
    return rates[middle][int(np.gradient(np.array(smooth[middle])).argmin())], float(len(rates))


@at_price
def lightning_finder(task: Task, seed: int, price: int) -> tuple[float, float]:
    """The finder of Lightning's `Tuner.lr_find` with its defaults: 1e-8 to 1, early stop at four times the lowest.

    Its smoothing weighs a new loss by 0.02 and corrects for the beginning; the first ten are left out, and the last.
    """
    rates, smooth, mean = [], [], 0.0
    for i, (lr, loss) in enumerate(range_test(task, seed, 1e-8, 1.0, price)):
        mean = 0.98 * mean + 0.02 * loss
        rates.append(lr)
        smooth.append(mean / (1 - 0.98 ** (i + 1)))
        if not math.isfinite(loss) or (i > 1 and smooth[-1] > 4 * min(smooth)):
            break
    losses = np.array(smooth[10:-1])
    losses = losses[np.isfinite(losses)]
    if len(losses) < 2:
        return math.nan, float(len(rates))
    return rates[10 + int(np.gradient(losses).argmin())], float(len(rates))


def range_test(task: Task, seed: int, low: float, high: float, count: int) -> Iterator[tuple[float, float]]:
    """Rates that grow with every step, and the loss of each."""
    model = task.start(seed)
    optimizer = task.optimizer(model.parameters(), lr=low)
    torch.manual_seed(seed + OTHER_BATCHES)
    for i, (inputs, targets) in enumerate(islice(batches(task), count)):
        lr = low * (high / low) ** (i / (count - 1))
        optimizer.param_groups[0]["lr"] = lr
        loss = task.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield lr, loss.item()


METHODS: dict[str, Method] = {
    "suggest_lr": suggest_lr,
    "the script's own rate": own_rate,
    "successive halving": halving,
    "torch-lr-finder": torch_lr_finder,
    "Lightning's finder": lightning_finder,
}
