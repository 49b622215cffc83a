"""The gradient noise scale, from norms of gradients of a small and of a large batch that are measured anyway."""

from __future__ import annotations

import math

from wellcond.results import Row
from wellcond.results import quantities as q

AVERAGED_OVER = 5.0
"""Measurements that the estimate is an average of: each of its two terms is noisy by itself."""


class NoiseScale:
    """tr Σ / |G|² in examples, as in McCandlish et al. (2018), appendix A.1.

    With m examples of a probe and B of the next training step, both at the same weights, E|g|² = |G|² + tr Σ/(m or B)
    gives |G|² and tr Σ. Both are averaged over several measurements before they are divided.

    Example:
        >>> noise = NoiseScale()
        >>> noise.expect(step=8, squared=3.0, examples=2, batch=8)   # |G|² = 1, tr Σ = 4
        >>> [row.value for row in noise.rows({8: 1.5})]
        [4.0]
    """

    def __init__(self) -> None:
        self._small: dict[int, tuple[float, int, int]] = {}
        self._noise = self._signal = 0.0
        self._seen = 0

    def expect(self, step: int, squared: float, examples: int, batch: int) -> None:
        """Remember |g|² of a probe, until that of the step after it is known.

        Args:
            step: The step after the probe.
            squared: |g|² of the probe.
            examples: Examples of the probe.
            batch: Examples of a training step.
        """
        if batch > examples:
            self._small[step] = squared, examples, batch

    def rows(self, squared: dict[int, float]) -> list[Row]:
        """The noise scale at each expected step whose |g|² is among these."""
        rows = []
        for step in [step for step in self._small if step in squared]:
            small, m, batch = self._small.pop(step)
            large = squared[step]
            noise = (small - large) / (1 / m - 1 / batch)
            signal = (batch * large - m * small) / (batch - m)
            if not (math.isfinite(noise) and math.isfinite(signal)):
                continue
            self._seen += 1
            weight = 1 / min(self._seen, AVERAGED_OVER)
            self._noise += weight * (noise - self._noise)
            self._signal += weight * (signal - self._signal)
            scale = max(0.0, self._noise) / self._signal if self._signal > 0 else math.inf  # no signal can be seen
            rows.append(Row(step, "", q.GRADIENT_NOISE_SCALE, scale, "examples"))
        last = max(squared, default=0)
        self._small = {step: small for step, small in self._small.items() if step > last}
        return rows

    def state_dict(self) -> dict[str, object]:
        """All numbers that it depends on."""
        return vars(self) | {"_small": dict(self._small)}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from saved numbers."""
        vars(self).update(state)
