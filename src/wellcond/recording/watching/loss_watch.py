"""The loss of every step, and whether it is one that should be looked at now rather than later."""

from __future__ import annotations

import math

AVERAGED = 0.05
"""Weight of a new loss in the running mean and in the mean deviation from it."""
OUTSTANDING = 8.0
"""Mean deviations above the running mean from which on a loss is looked at at once."""
FIRST_LOSSES = 20
"""Losses until the mean deviation is known."""
ROUNDING = 1e-6
"""Share of the running mean that a loss must be above it, whatever the deviation: losses that stay the same round."""
CLIMBED = 0.3
"""Share of what has been learned by which the running mean is above its lowest, from which on a loss is looked at too:
one that rises little by little does not stand out."""
REST = 0.02
"""Share of the steps so far for which no second alarm is raised."""


class LossWatch:
    """Sees losses that are not finite, stand out, or have climbed, in constant time.

    Example:
        >>> watch = LossWatch()
        >>> any(watch.is_alarming(step, 1.0 + 0.1 * (step % 3)) for step in range(1, 50))
        False
        >>> watch.is_alarming(50, 9.0), watch.is_alarming(51, 9.0)
        (True, False)
    """

    def __init__(self) -> None:
        self._mean = self._deviation = 0.0
        self._seen = 0
        self._first = self._lowest = math.inf
        self._has_climbed = False
        self._quiet_until = 0

    def is_alarming(self, step: int, value: float) -> bool:
        """Whether the loss of a step stands out or has just climbed, and no alarm was raised just before."""
        if math.isfinite(value):
            seen, mean, deviation = self._seen, self._mean, self._deviation
            distance = value - mean
            stands_out = seen >= FIRST_LOSSES and distance > OUTSTANDING * deviation + ROUNDING * abs(mean)
            weight = AVERAGED if seen * AVERAGED >= 1 else 1 / (seen + 1)
            self._mean = mean + weight * distance
            self._deviation = deviation + weight * (abs(distance) - deviation) if seen else 0.0
            self._seen = seen + 1
            stands_out |= self._climbs()
        else:
            stands_out = True
        if not stands_out or step < self._quiet_until:
            return False
        self._quiet_until = step + 1 + int(REST * step)
        return True

    def _climbs(self) -> bool:
        """Whether the running mean has just left its lowest, by a share of its fall until then and beyond its noise."""
        if self._seen <= FIRST_LOSSES:
            self._first = self._lowest = self._mean
            return False
        self._lowest = min(self._lowest, self._mean)
        height, fall = self._mean - self._lowest, self._first - self._lowest
        is_up = height > CLIMBED * fall + 2 * self._deviation + ROUNDING * abs(self._mean)
        is_new = is_up and not self._has_climbed
        self._has_climbed = is_up or (self._has_climbed and height > CLIMBED * fall / 3)
        return is_new

    def state_dict(self) -> dict[str, float]:
        """All numbers that it depends on."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from saved numbers."""
        vars(self).update(state)
