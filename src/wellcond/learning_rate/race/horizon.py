"""Which of the raced rates to take for a run that is longer than the race."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LAST_SHARE = 0.35
"""Share of a run, at its end, over which its loss is averaged."""
SURE = 2.0
"""Standard errors of a difference of losses, beyond which it is no chance."""
ALIKE = 0.03
"""Log-losses that differ by less are equally good, however sure the difference: the next race would differ by more."""
TRUST = 0.5
MOST_TIME = 3.0


@dataclass(frozen=True)
class Choice:
    """A learning rate, and the range around it that is equally good within the noise of the runs."""

    lr: float
    low: float
    high: float


def last_loss(losses: Sequence[float] | Array, steps: int | None = None) -> float:
    """The mean over the last third of the first `steps` losses; infinity if there are fewer: the run has diverged."""
    steps = len(losses) if steps is None else steps
    if len(losses) < max(steps, 1):
        return math.inf
    return float(np.mean(losses[steps - min(steps, max(3, round(LAST_SHARE * steps))) : steps]))


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
    runs: Mapping[float, Sequence[float]],
    steps: int,
    own: float | None,
    held_out: Mapping[float, Sequence[float]] | None = None,
) -> Choice:
    """The best of some rates for a run of this many steps.

    Args:
        runs: The losses of finished runs by rate, all of one length and on the same batches.
        steps: The length of the planned run.
        own: The rate of the script.
    """
    rates = sorted(runs)
    losses = np.array([runs[lr] for lr in rates])
    losses = losses + lift(losses)
    score = expected(losses, steps)
    best = int(score.argmin())
    noise = np.array([_noise(losses[best], other) for other in losses])
    good = score <= score[best] + np.maximum(ALIKE, SURE * noise)
    low = high = best
    while low and good[low - 1]:
        low -= 1
    while high + 1 < len(rates) and good[high + 1]:
        high += 1
    lr = rates[best]
    if own in rates and good[rates.index(own)]:
        lr = own
    elif low < high:
        lr = math.sqrt(rates[low] * rates[high])
    return Choice(lr, min(lr, rates[low]), max(lr, rates[high]))


def lift(losses: Array) -> float:
    """What to add to all losses if some are not positive, so that a logarithm can be taken."""
    low, high = float(losses.min()), float(losses.max())
    return 0.0 if low > 0 else 0.1 * (high - low) - low + 1e-12


def expected(losses: Array, steps: int) -> Array:
    """The log-loss of each run after this many steps."""
    taken = losses.shape[1]
    last = np.log([last_loss(each) for each in losses])
    if steps <= taken:
        return last
    half = np.log([last_loss(each[: (taken + 1) // 2]) for each in losses])
    slope = (last - half) / math.log(2)
    return last + TRUST * slope * min(math.log(steps / taken), MOST_TIME)


def _noise(first: Array, second: Array) -> float:
    """The standard error of the difference of two runs' log-losses, whose batches are the same."""
    last = max(3, round(LAST_SHARE * len(first)))
    changes = np.diff((np.log(first) - np.log(second))[-last:])  # differences remove a trend
    return float(np.std(changes)) / math.sqrt(2 * len(changes)) if len(changes) else 0.0
