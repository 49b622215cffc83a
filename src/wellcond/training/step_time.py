"""What a training step takes, by timing a few of a copy."""

from __future__ import annotations

import time

from wellcond.training.copies import CopyTrainer

MEASURED_STEPS = 3
"""Steps that are timed; the first of them warms up, and is left out."""


def timed_step(trainer: CopyTrainer, seed: int) -> tuple[float, float]:
    """Seconds and u of a training step.

    Args:
        trainer: Counts the steps.
        seed: As in `CopyTrainer.start`.
    """
    seconds, before = [], trainer.cost.u
    run = trainer.start(seed=seed)
    with trainer.batches(seed) as batches, run.training():
        for _ in range(MEASURED_STEPS):
            begin = time.perf_counter()
            run.step(next(batches))
            seconds.append(time.perf_counter() - begin)
    return min(seconds[1:]), (trainer.cost.u - before) / max(len(run.losses), 1)
