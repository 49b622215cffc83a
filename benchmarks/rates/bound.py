"""What could be reached at best: a rate chosen by somebody who knows the whole sweep of shorter runs without noise.

python -m benchmarks.rates.bound        # seconds: reads the final losses of the sweep

The best rate of all 22 after fewer steps, both seeds, smoothed over neighbors, is multiplied by (steps / fewer)^−drift,
with the one drift for all tasks that turns out best, so no race of that length that moves its best rate by a common
law can be expected to do better.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.rates.judging import Judge
from benchmarks.rates.sweep import ALL, LENGTHS

FINALS = Path(__file__).parents[1] / "results" / "rates_finals.npz"
DRIFTS = np.linspace(0, 0.6, 25)


def ratios(judge: Judge, fewer: int, steps: int, drift: float) -> np.ndarray:
    """Loss after `steps` at the rate that is best after `fewer`, moved by a drift, over the lowest: one per task."""
    names = [name for name in ALL if judge.knows(name, 0, steps)]
    move = (steps / fewer) ** -drift
    return np.array([judge.ratio(name, steps, judge.best(name, fewer) * move) for name in names])


def main() -> None:
    judge = Judge(dict(np.load(FINALS)))
    print("known exactly after  judged after  cost of knowing  drift  within 10 %  within 20 %  above 1.5")
    for place, fewer in enumerate(LENGTHS):
        for steps in LENGTHS[place + 1 :]:
            drift = max(DRIFTS, key=lambda d: float(np.mean(ratios(judge, fewer, steps, d) <= 1.1)))
            reached = ratios(judge, fewer, steps, drift)
            shares = [f"{100 * np.mean(reached <= limit):9.0f} %" for limit in (1.1, 1.2)]
            print(
                f"{fewer:19,d}  {steps:12,d}  {22 * fewer:15,d}  {drift:5.2f}", *shares, f"{np.sum(reached > 1.5):10d}"
            )


if __name__ == "__main__":
    main()
