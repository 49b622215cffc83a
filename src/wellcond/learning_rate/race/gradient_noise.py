"""How noisy the gradients of mini-batches are: the batch size from which on a larger rate no longer follows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from wellcond.problem.batches import Batch
from wellcond.results import Cost
from wellcond.training.copy_run import CopyRun
from wellcond.training.copy_trainer import CopyTrainer

BATCHES, POINTS = 8, 4
"""Gradients at one set of weights, and places along a run where they are measured."""


def noise_scale(trainer: CopyTrainer, lr: float, steps: int, seed: int = 0) -> float:
    """The gradient noise scale tr Σ / |G|² in mini-batches, the median over a short run.

    G is the gradient of the whole loss, and Σ/B the covariance of the gradients of mini-batches of B examples. At
    that batch size the noise is as large as the signal: below it the best rate of SGD grows with the batch size, far
    above it does not (McCandlish et al. 2018, section 2.2).

    Args:
        trainer: It trains the copy.
        lr: The rate of the run.
        steps: The length of the run.
        seed: As in `CopyTrainer.start`.

    Returns:
        How many mini-batches of the present size; infinite if no signal can be seen.
    """
    run, scales = trainer.start(lr, seed=seed), []
    for _ in range(POINTS):
        run.run(max(1, steps // POINTS))
        with trainer.batches(seed, len(run.losses)) as batches, run.training():
            scales.append(_scale([_gradient(trainer, run, next(batches)) for _ in range(BATCHES)]))
    return sorted(scales)[len(scales) // 2]


def _gradient(trainer: CopyTrainer, run: CopyRun, batch: Batch) -> Tensor:
    trainer.cost += Cost(1, 1)
    params = list(run.problem.params.values())
    gradients = torch.autograd.grad(run.problem.training_loss(0, batch), params, allow_unused=True)
    return torch.cat([each.double().flatten() for each in gradients if each is not None])


def _scale(gradients: Sequence[Tensor]) -> float:
    """Of k gradients with mean ḡ: E|ḡ|² = |G|² + tr Σ/kB and E|g|² = |G|² + tr Σ/B, so that both are known."""
    count, mean = len(gradients), torch.stack(list(gradients)).mean(0)
    single = float(torch.stack([each.square().sum() for each in gradients]).mean())
    noise = (single - float(mean.square().sum())) * count / (count - 1)
    signal = single - noise
    return noise / signal if signal > 0 else math.inf
