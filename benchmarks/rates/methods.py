"""Four ways to find a learning rate; each returns the rate and its cost in training steps (u of one mini-batch)."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import torch

import wellcond as wc
from benchmarks.rates.sweep import batches, trained
from benchmarks.rates.tasks import Task

OTHER_BATCHES = 100
"""Added to the seed: a method must not see the batches in the order in which its rate is judged."""
GUESS = 1e-3
"""The rate that an optimizer is made with; no method may depend on it where curvature can be had."""


def suggest_lr(task: Task, seed: int, steps: int) -> tuple[float, float]:
    """`wc.suggest_lr` for a run of so many steps."""
    model = task.start(seed)
    optimizer = task.optimizer(model.parameters(), lr=GUESS)
    torch.manual_seed(seed + OTHER_BATCHES)
    found = wc.suggest_lr(wc.Problem(model, task.loss, task.loader()), optimizer, steps=steps)
    return found.lr, found.cost.u


def half_of_limit(task: Task, seed: int, steps: int) -> tuple[float, float]:
    """Half of the limit that the curvature of one mini-batch sets."""
    model = task.start(seed)
    optimizer = task.optimizer(model.parameters(), lr=GUESS)
    torch.manual_seed(seed + OTHER_BATCHES)
    try:
        limit = wc.max_lr(wc.Problem(model, task.loss, [next(iter(task.loader()))]), optimizer=optimizer)
    except wc.errors.WellcondError:
        return math.nan, 0.0
    return limit.value / 2, limit.cost.u


def range_test(task: Task, seed: int, steps: int) -> tuple[float, float]:
    """torch-lr-finder with its defaults, and twice its usual length.

    The rate grows from 1e-7 to 100 in 200 steps, or until the smoothed loss is five times its lowest; the rate is where
    that loss falls most steeply.
    """
    count, low, high, share = 200, 1e-7, 100.0, 0.05
    model = task.start(seed)
    optimizer = task.optimizer(model.parameters(), lr=low)
    torch.manual_seed(seed + OTHER_BATCHES)
    rates, smooth = [], []
    for i, (inputs, targets) in enumerate(islice(batches(task), count)):
        lr = low * (high / low) ** (i / (count - 1))
        optimizer.param_groups[0]["lr"] = lr
        loss = task.loss(model(inputs), targets)
        value = loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.append(lr)
        smooth.append(share * value + (1 - share) * smooth[-1] if smooth else value)
        if not math.isfinite(value) or smooth[-1] > 5 * min(smooth):
            break
    kept = slice(10, max(len(rates) - 5, 12))
    return rates[kept][int(np.gradient(np.array(smooth[kept])).argmin())], float(len(rates))


def halving(task: Task, seed: int, steps: int) -> tuple[float, float]:
    """Successive halving over 20 rates of the sweep's range: 10 steps, 20 more, 40 more, 100 more; 800 in all."""
    alive = list(np.geomspace(task.rates[0], task.rates[-1], 20))
    length, cost = 0, 0
    for more, kept in ((10, 10), (20, 5), (40, 2), (100, 1)):
        length += more
        cost += more * len(alive)
        curves = {lr: trained(task, lr, seed, length, OTHER_BATCHES) for lr in alive}
        last = {lr: float(np.mean(curve[-max(3, round(0.3 * length)) :])) for lr, curve in curves.items()}
        alive = sorted(alive, key=lambda lr: last[lr] if math.isfinite(last[lr]) else math.inf)[:kept]
    return float(alive[0]), float(cost)


METHODS = {
    "suggest_lr": suggest_lr,
    "successive halving": halving,
    "range test": range_test,
    "half of the limit": half_of_limit,
}
