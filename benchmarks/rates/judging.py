"""How good a learning rate is, read off the sweep."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from benchmarks.rates.sweep import ALL, LENGTHS, SEEDS

FLOOR = 0.01
"""Share of the first loss: networks that fit all their data to below it count as equally good."""
MOST = 20
"""Multiple of the first loss that a diverged run counts in averages over neighboring rates."""


class Judge:
    """Final losses of every task over the rates, smoothed: the best of many noisy runs is not as good as it looks.

    Args:
        curves: What the sweep's file holds.
    """

    def __init__(self, curves: dict[str, Any]) -> None:
        self._curves = curves
        self.smoothed = cache(self._smoothed)

    def knows(self, name: str, seed: int, steps: int) -> bool:
        """Whether a task was trained for this many steps with this seed; the last length has one seed for both."""
        seeds = [seed, 0] if steps == LENGTHS[-1] else [seed]
        return f"{name}/{seed}" in self._curves and any(
            np.isfinite(self._curves[f"{name}/{s}"][:, LENGTHS.index(steps)]).any() for s in seeds
        )

    def ratio(self, name: str, steps: int, lr: float) -> float:
        """The loss at a rate over the lowest of all rates, both smoothed over neighboring rates; infinite for nan."""
        if math.isnan(lr):
            return math.inf
        smooth = self.smoothed(name, steps)[0]
        return float(np.exp(np.interp(math.log(lr), np.log(ALL[name].rates), smooth) - smooth.min()))

    def best(self, name: str, steps: int) -> float:
        """The rate with the lowest smoothed loss."""
        return ALL[name].rates[int(self.smoothed(name, steps)[0].argmin())]

    def first(self, name: str) -> float:
        """The logarithm of the size of the first loss."""
        return math.log(abs(float(self._curves[f"{name}/first"])))

    def noise(self, name: str, steps: int) -> float:
        """The root mean square, near the best rate, of what smoothing takes away: the noise of a log-loss."""
        smooth, log_losses = self.smoothed(name, steps)
        near = smooth < smooth.min() + 0.5
        return float(np.sqrt(np.mean((log_losses - smooth)[near] ** 2)))

    def _smoothed(self, name: str, steps: int) -> tuple[Any, Any]:
        """Log-losses averaged over neighbors with weights ¼, ½, ¼, the mean over seeds; and before that."""
        losses = np.mean([self._losses(name, s, steps) for s in SEEDS if self._is_trained(name, s, steps)], 0)
        first = abs(float(self._curves[f"{name}/first"]))
        log_losses = np.log(np.clip(losses, FLOOR * first, MOST * first))
        padded = np.pad(log_losses, 1, mode="edge")
        return 0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:], log_losses

    def _is_trained(self, name: str, seed: int, steps: int) -> bool:
        finals = self._curves.get(f"{name}/{seed}")
        return finals is not None and bool(np.isfinite(finals[:, LENGTHS.index(steps)]).any())

    def _losses(self, name: str, seed: int, steps: int) -> Any:
        """Final losses; a rate that was not trained as long, because it is far from the best, counts as before."""
        finals = self._curves[f"{name}/{seed}"]
        losses = finals[:, 0]
        for place in range(1, LENGTHS.index(steps) + 1):
            losses = np.where(np.isnan(finals[:, place]), losses, finals[:, place])
        return losses
