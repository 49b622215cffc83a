"""Which learning rate is best after many steps, from runs of a few.

Short runs prefer larger rates. Of gradient descent with noise, the loss after t steps at a rate η is about

    L(η, t) = A (ηt)^−β + C η + L∞

What is left to learn falls with the distance ηt that training can go; the floor that the noise of mini-batches leaves
grows with η (Bottou, Curtis & Nocedal 2018, theorem 4.6). So the best rate falls as t grows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LAST_SHARE = 0.35
"""Share of a run, at its end, over which its loss is averaged."""
DRIFT = 0.3
"""The best rate falls about as t^−0.3 from 100 steps on: measured on `benchmarks.rates`."""
TRUST, MOST_DRIFT = 0.7, 0.6
"""Weight of the fitted law against the average drift; the law's fall is capped at t^−0.6. Either alone does worse on
`benchmarks.rates`."""
FLAT = 0.06
"""Log-losses that differ by less do not show where the best rate is. Then the law is not fitted: on a plateau the runs
show neither how fast the loss falls nor its floor."""
EXPONENTS, FLOORS = (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5), (0.0, 0.25, 0.5, 0.7, 0.85, 0.95)
"""Values of β to try, and of L∞ as a share of the lowest loss; A and C follow by least squares."""
TIMES = (0.25, 0.4, 0.6, 0.8, 1.0)
"""Shares of a run's length at which the law is fitted to its loss."""
CAP = 0.7
"""Log-losses further above the lowest count as this far above: how badly a rate fails says nothing about the best."""
LEAST_NOISE = 0.01
"""Smallest standard error assumed for a difference of log-losses."""


@dataclass(frozen=True)
class Choice:
    """A learning rate, and the range around it that is equally good within the noise of the runs."""

    lr: float
    low: float
    high: float


def raised(losses: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
    """The losses, all raised by one constant if some are not positive, so that a logarithm can be taken."""
    finite = [loss for each in losses for loss in each if math.isfinite(loss)]
    low, high = min(finite, default=1.0), max(finite, default=1.0)
    if low > 0:
        return losses
    lift = 0.1 * (high - low) - low + 1e-12
    return [[loss + lift for loss in each] for each in losses]


def last_loss(losses: Sequence[float], steps: int | None = None) -> float:
    """The mean over the last third of the first `steps` losses; infinity if there are fewer: the run has diverged."""
    steps = len(losses) if steps is None else steps
    if len(losses) < steps or not losses:
        return math.inf
    return float(np.mean(losses[steps - min(steps, max(3, round(LAST_SHARE * steps))) : steps]))


def choose(rates: Sequence[float], losses: Sequence[Sequence[float]], steps: int, *, slows: float = 0.0) -> Choice:
    """The best rate for a run of this many steps.

    Args:
        rates: Rates of the short runs, ascending, in a constant ratio.
        losses: Losses of these runs, on the same batches; runs that are shorter than others have diverged.
        steps: The length of the planned run. Without noise there is no floor to avoid: then pass the length of the
            short runs.
        slows: The optimizer's own steps shrink as t^−slows: ½ for Adagrad.

    Returns:
        The rate, between the rates of the runs or a little outside, and the range that is equally good.
    """
    losses = raised(losses)
    taken = max(map(len, losses))
    x = np.log(rates)
    y = np.array([math.log(last_loss(each, taken)) for each in losses])
    y = np.minimum(y, y.min() + CAP)
    gap = float(x[1] - x[0]) if len(x) > 1 else math.log(2)
    best, curvature = _vertex(x, y, gap)
    lowest, largest = x[y.argmin()], x[y <= y.min() + FLAT].max()
    is_flat = largest > lowest or np.ptp(y) < FLAT
    if is_flat:  # as in the race: between the lowest loss and the largest rate that is equally good
        best = max(best, float(lowest + largest) / 2)
    if steps > taken:
        time = math.log(steps / taken)
        law = drifted = best - (DRIFT - slows) * time
        if not is_flat and not slows:
            law = min(max(_by_law(x, losses, taken, steps, gap), best - MOST_DRIFT * time), best)
        best = TRUST * law + (1 - TRUST) * drifted
    width = gap / 2
    if curvature > 0:
        width = min(max(width, math.sqrt(_noise(y, losses) / curvature)), gap)
    return Choice(math.exp(best), math.exp(best - width), math.exp(best + width))


def _vertex(x: Array, y: Array, gap: float) -> tuple[float, float]:
    """The minimum of the parabola through the log-losses, at most half a gap outside; and its curvature, or 0."""
    if len(x) >= 3:
        a, b, _ = np.polyfit(x, y, 2)
        if a > 1e-9:
            return float(np.clip(-b / (2 * a), x[0] - gap / 2, x[-1] + gap / 4)), float(a)
    return float(x[y.argmin()]), 0.0


def _noise(y: Array, losses: Sequence[Sequence[float]]) -> float:
    """The standard error of the difference of the two best runs' log-losses, whose batches are the same."""
    first, second = (np.array(losses[i]) for i in np.argsort(y)[:2])
    if len(first) != len(second):
        return LEAST_NOISE
    last = max(3, round(LAST_SHARE * len(first)))
    changes = np.diff((first - second)[-last:])  # differences remove a trend
    mean = max(float(np.mean(first[-last:])), 1e-300)
    return (
        max(LEAST_NOISE, float(np.std(changes)) / math.sqrt(2 * len(changes)) / mean) if len(changes) else LEAST_NOISE
    )


def _by_law(x: Array, losses: Sequence[Sequence[float]], taken: int, steps: int, gap: float) -> float:
    """The best log-rate after this many steps by the law above, averaged over all fits that are nearly as good."""
    times = sorted({min(taken, max(3, round(share * taken))) for share in TIMES})
    pairs = [(rate, each) for rate, each in zip(x, losses, strict=True) if len(each) == taken]
    rate, time, loss = np.array([(r, t, last_loss(each, t)) for r, each in pairs for t in times if t <= taken]).T
    middle, lowest = float(x.mean()), float(loss.min())
    eta, weight = np.exp(rate - middle), 1 / loss
    fits = []
    for exponent, floor in product(EXPONENTS, FLOORS):
        terms = np.stack([(eta * time / taken) ** -exponent, eta], 1) * weight[:, None]
        target = (loss - floor * lowest) * weight
        coefficients = _nonnegative_fit(terms, target)
        fits.append((float(np.mean((terms @ coefficients - target) ** 2)), exponent, floor, coefficients))
    least = max(min(error for error, *_ in fits), 1e-12)
    grid = np.linspace(x[0] - 2.5 * gap, x[-1] + 0.9 * gap, 81)
    total = np.zeros_like(grid)
    for error, exponent, floor, (learned, noise) in fits:
        share = math.exp(-(error / least - 1) * len(loss) / 2) if error < 2 * least else 0.0
        expected = learned * (np.exp(grid - middle) * steps / taken) ** -exponent + noise * np.exp(grid - middle)
        total += share * np.log(np.maximum(expected + floor * lowest, 1e-300))
    return float(grid[total.argmin()])


def _nonnegative_fit(terms: Array, target: Array) -> Array:
    """The two coefficients ≥ 0 of least squares.

    If one of the unconstrained coefficients is negative, it is 0 at the minimum, because the error is convex; the other
    one is then a fit with one term.
    """
    coefficients: Array = np.asarray(np.linalg.lstsq(terms, target, rcond=None)[0], dtype=np.float64)
    for i in (0, 1):
        if coefficients[i] < 0:
            other = terms[:, 1 - i]
            coefficients = np.zeros(2)
            coefficients[1 - i] = max(0.0, float(other @ target / (other @ other)))
            return coefficients
    return coefficients
