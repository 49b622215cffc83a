"""Learning rates over training: each schedule gives the factor of the first rate at a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Schedule = Callable[[int], float]
"""The factor of the optimizer's own learning rates at a step, counted from 0."""


def constant(step: int) -> float:
    """Always 1."""
    return 1.0


def steps(at: Sequence[int], factor: float = 0.1) -> Schedule:
    """Multiply by `factor` from each of these steps on.

    Example:
        >>> schedule = steps([10, 20])
        >>> [round(schedule(step), 4) for step in (9, 10, 20)]
        [1.0, 0.1, 0.01]
    """
    return lambda step: factor ** sum(step >= begin for begin in at)
