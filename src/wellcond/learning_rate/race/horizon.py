"""Which of the raced rates to take for a run that is longer than the race.

Short runs prefer larger rates: what is left to learn falls with the distance ηt that training can go, and the floor
that the noise of mini-batches leaves grows with η (Bottou, Curtis & Nocedal 2018, theorem 4.6). So the log-loss over
the log-rate keeps its shape and moves down as training goes on. How far it moves was measured on `benchmarks.rates`;
what single races show of it, the best rate at a third of their length and at their end, predicts less than the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LAST_SHARE = 0.35
"""Share of a run, at its end, over which its loss is averaged."""
SURE = 2.0
"""Standard errors of a difference of losses, beyond which it is no chance."""
ALIKE = 0.02
"""Log-losses that differ by less are equally good, however sure the difference."""
CLOSE = 0.3
"""Log-rates that differ by less are not worth a change."""
SPREAD = 0.1
"""A log-loss higher by this much counts 1/e: the mean of the log-rates with these weights is less noisy than the
lowest."""
FLAT = 0.15
"""Log-losses that differ by less do not show where the best rate is: on a plateau larger rates get away first. So the
middle between that mean and the largest rate that does not differ more from the lowest counts as the best."""
DRIFT, PLAIN_DRIFT = 0.45, 0.3
"""The best rate falls about as t^−0.45, and as t^−0.3 with plain SGD, from some 100 steps on."""
SHOWN_FROM = 60
"""Steps of a race from which on that law alone moves a rate below the script's own. Races of 200 u have some 35, and 43
of 642 replayed ones end worse than the script's own rate where they are moved, 35 where they are not."""
TELLING = 30
"""Steps from which on runs tell rates apart. Runs of two to twelve steps prefer rates up to 46 times too large, so that
shorter ones move the script's own rate by that share of the way only: of 324 races of 40 to 150 u on `benchmarks.rates`
one ends worse than the script's own rate, where 18 did."""
MOST_MOVED = math.log(6)
"""The farthest that a log-rate is moved: two of the rates below the best are raced to the end."""


@dataclass(frozen=True)
class Choice:
    """A learning rate, and the range around it that is equally good within the noise of the runs.

    Attributes:
        lr: The rate.
        low: The lower end of the range.
        high: Its upper end.
        is_too_high: Whether the longer run would get a lower rate, had one been raced.
    """

    lr: float
    low: float
    high: float
    is_too_high: bool = False


def last_losses(losses: Sequence[float]) -> Sequence[float]:
    """The last third of some losses, at least three."""
    return losses[-max(3, round(LAST_SHARE * len(losses))) :]


def last_loss(losses: Sequence[float]) -> float:
    """The mean of the last third; infinity if there are none."""
    return float(np.mean(last_losses(losses))) if losses else math.inf


def falls(losses: Sequence[float]) -> bool:
    """Whether a loss falls by more than chance: from its first third to its last, or from its first value.

    Example:
        >>> falls([3.0, 2.5, 2.0, 1.5, 1.0, 0.5]), falls([2.0, 2.1, 1.9, 2.1, 1.9, 2.0])
        (True, False)
    """
    third = max(1, len(losses) // 3)
    first, last = np.array(losses[:third]), np.array(losses[-third:])
    spread = float(last.std())
    fall, error = first.mean() - last.mean(), math.hypot(float(first.std()), spread) / math.sqrt(third)
    from_first = losses[0] - last.mean()
    return bool(fall > SURE * error or from_first > SURE * spread * math.sqrt(1 + 1 / third))


def choose(
    losses: Mapping[float, Sequence[float]],
    own: float | None = None,
    *,
    times: float = 1.0,
    drift: float = DRIFT,
    is_short: bool = False,
    trust: float = 1.0,
) -> Choice:
    """The best rate for a run that is longer than some runs.

    Args:
        losses: The last losses of finished runs by rate, all on the same batches.
        own: The rate of the script, which is kept unless another is better beyond noise.
        times: How many times longer the run is.
        drift: The best rate falls as times^−drift.
        is_short: Whether the runs are too short to go below the script's rate unless one of them did better there.
        trust: The share of the way from the script's rate, in log-rates, that runs of this length are trusted with.

    Returns:
        The rate, between the lowest and the highest of the runs, and the range that is equally good.

    Example:
        >>> losses = {0.1: [9.0, 9.0], 0.2: [1.0, 1.0], 0.4: [4.0, 4.0]}
        >>> round(choose(losses).lr, 3), round(choose(losses, times=2.0).lr, 3)
        (0.2, 0.146)
    """
    rates = sorted(losses)
    x, table = np.log(rates), np.array([losses[lr] for lr in rates])
    table = np.maximum(table + _lift(table), 1e-300)
    y, shares = np.log(table.mean(1)), table / table.mean(1, keepdims=True)
    lowest = int(y.argmin())
    errors = np.array([_error(shares[lowest] - other) for other in shares])  # of a difference of logarithms of means
    moved = min(drift * math.log(times), MOST_MOVED)
    middle = float(np.average(x, weights=np.exp((y[lowest] - y) / SPREAD)))
    largest = _neighbors(x, y <= y[lowest] + FLAT, lowest)[1]
    center = fmean((middle, max(middle, largest))) - moved
    best = max(center, float(x[0]))
    are_good = y <= y[lowest] + np.maximum(ALIKE, SURE * errors)
    low, high = _neighbors(x, are_good, lowest)
    low, high = max(min(low - moved, best), float(x[0])), max(high - moved, best)
    lr = math.exp(best)
    if own is not None and own in losses:
        place = math.log(own)
        lr = math.exp(place + trust * (best - place))
        if is_short and lr < own and not _is_beaten(y, shares, rates.index(own)):
            lr, low = own, place
        elif are_good.all() or low <= place <= high or is_close(lr, own):
            lr = own
    is_too_high = math.isclose(lr, rates[0]) and float(x[0]) - center > CLOSE
    return Choice(lr, min(math.exp(low), lr), max(math.exp(high), lr), is_too_high)


def is_close(lr: float, other: float) -> bool:
    """Whether it does not matter which of two rates is taken."""
    return abs(math.log(lr / other)) < CLOSE


def _is_beaten(y: Array, shares: Array, own: int) -> bool:
    """Whether a rate below the script's own did better than it, beyond noise."""
    return any(y[k] < y[own] - max(ALIKE, SURE * _error(shares[k] - shares[own])) for k in range(own))


def _lift(losses: Array) -> float:
    """What to add to all losses if some are not positive, so that a logarithm can be taken."""
    low, high = float(losses.min()), float(losses.max())
    return 0.0 if low > 0 else 0.1 * (high - low) - low


def _neighbors(x: Array, are_good: NDArray[np.bool_], lowest: int) -> tuple[float, float]:
    """The ends of the good ones around the lowest."""
    low = high = lowest
    while low and are_good[low - 1]:
        low -= 1
    while high + 1 < len(x) and are_good[high + 1]:
        high += 1
    return float(x[low]), float(x[high])


def _error(differences: Array) -> float:
    """The standard error of the mean of some differences, whose trend does not count."""
    changes = np.diff(differences)
    return float(np.std(changes)) / math.sqrt(2 * len(changes)) if len(changes) else 0.0
