"""A stand-in for `CopyTrainer` whose runs follow a law of the learning rate, so that many races cost nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch.optim import SGD, Optimizer

from wellcond.results import Cost
from wellcond.results.run import Run

Law = Callable[[float, int], float]
"""The loss at a rate after some steps; not finite if it has diverged."""


def optimizer(lr: float, momentum: float = 0.9) -> Optimizer:
    return SGD([torch.nn.Parameter(torch.zeros(1))], lr, momentum)


class Simulated:
    """Trains nothing: losses are those of a law, times the noise of each batch, the same at all rates."""

    def __init__(self, law: Law, own: Optimizer | None = None, noise: float = 0.0, seed: int = 0) -> None:
        self.law, self.optimizer = law, own
        self.noise = np.exp(noise * np.random.default_rng(seed).standard_normal(10_000))
        self.cost = Cost()

    def depends_on_seed(self) -> bool:
        return True

    @contextmanager
    def batches(self, _seed: int) -> Iterator[Iterator[None]]:
        yield repeat(None)

    def start(self, lr: float, seed: int) -> SimulatedRun:
        return SimulatedRun(self, lr)


class SimulatedRun:
    """In place of a `CopyRun`."""

    def __init__(self, trainer: Simulated, lr: float) -> None:
        self.trainer, self.lr, self.optimizer = trainer, lr, trainer.optimizer or optimizer(lr)
        self.losses: list[float] = []
        self.diverged_at: int | None = None

    @property
    def as_run(self) -> Run:
        return Run(tuple(self.losses), self.diverged_at)

    def training(self) -> AbstractContextManager[None]:
        return nullcontext()

    def step(self, _batch: None) -> None:
        if self.diverged_at is not None:
            return
        self.trainer.cost += Cost(1, 1)
        taken = len(self.losses)
        loss = self.trainer.law(self.lr, taken) * float(self.trainer.noise[taken])
        if math.isfinite(loss):
            self.losses.append(loss)
        else:
            self.diverged_at = taken + 1

    def best_constant(self, _batches: Sequence[Any]) -> None:
        return None

    def release(self) -> None:
        pass
