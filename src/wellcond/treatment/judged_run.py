"""`JudgedRun`: a training run with what it does on held-out batches."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch

from wellcond.errors import NonFinite
from wellcond.problem.held_out import HeldOut
from wellcond.problem.problem import Problem
from wellcond.results import Cost, Progress
from wellcond.results.run import Run
from wellcond.training.copy_run import CopyRun
from wellcond.training.copy_trainer import CopyTrainer
from wellcond.treatment.memory import memory_of_step

CHECKS, CLOSER = 6, 0.6
"""How often a run is evaluated: after its last step, and each time before after this share of the steps. A network that
overfits soon is stopped soon."""


@dataclass(frozen=True)
class Check:
    """The loss of every held-out batch after some steps, in evaluation mode; infinite where it is not finite.

    Attributes:
        step: Steps taken.
        choosing: Losses of the batches by which to choose after how many steps to stop.
        judging: Losses of the others.
    """

    step: int
    choosing: tuple[float, ...]
    judging: tuple[float, ...] = ()


@dataclass(frozen=True)
class JudgedRun(Run):
    """A training run with what it does on held-out batches.

    A network that learns fast overfits sooner: it is judged where one would stop it, at the check with the lowest loss
    on some held-out batches, by its loss on the others.

    Attributes:
        checks: The held-out losses over the run; none if nothing could be held out.
        seconds: Time of a step.
        memory: Bytes of weights, gradients, optimizer state, and of what the backward pass needs; 0 if not measured.
    """

    checks: tuple[Check, ...] = ()
    seconds: float = math.nan
    memory: int = 0

    @property
    def stop(self) -> Check | None:
        """Where one would stop; None if nothing was held out, or the run diverged."""
        if self.diverged_at is not None:
            return None
        return min(self.checks, key=lambda check: fmean(check.choosing), default=None)

    @property
    def judged(self) -> tuple[float, ...]:
        """The held-out losses, or the mean of the last training losses alone; () if the run diverged."""
        if self.stop is None:
            return () if self.checks or self.final is None else (self.final,)
        judged = self.stop.judging or self.stop.choosing
        return judged if all(map(math.isfinite, judged)) else ()


def judged_run(
    trainer: CopyTrainer,
    held: HeldOut,
    *,
    lr: float,
    seed: int,
    steps: int,
    only_choosing: bool = False,
    progress: Progress = lambda _what, _share: None,
) -> JudgedRun:
    """Train a copy, and evaluate it on held-out batches as it goes.

    Args:
        trainer: It makes the copy.
        held: The held-out batches.
        lr: The learning rate.
        seed: As in `CopyTrainer.start`.
        steps: The number of steps.
        only_choosing: Leave out the batches by which arms are judged in the end.
        progress: Called as (what is being done, share of all work done).
    """
    run = trainer.start(lr, seed=seed)
    evaluated = [held.choosing] if only_choosing else [held.choosing, held.judging]
    checks: list[Check] = []
    at = {round(steps * CLOSER**k) for k in range(CHECKS)} if held.batches else set()
    # processor time leaves out other programs; of a GPU there is none
    clock = time.process_time if run.problem.device.type == "cpu" else time.perf_counter
    seconds: list[float] = []
    memory = 0
    with trainer.batches(seed) as batches, run.training():
        for taken in range(1, steps + 1):
            batch, begin = next(batches), clock()
            run.step(batch)
            seconds.append(clock() - begin)
            if run.diverged_at is not None:
                break
            if taken in at:
                losses = [tuple(_losses(trainer, run, part)) for part in evaluated]
                checks.append(Check(taken, *losses))
            progress("training", taken / steps)
        if run.diverged_at is None and not only_choosing:
            memory = memory_of_step(run, batch)
            trainer.cost += Cost(forwards=1)
    as_run = run.as_run
    per_step = median(seconds) if run.diverged_at is None else math.nan
    return JudgedRun(as_run.losses, as_run.diverged_at, as_run.cause, (), tuple(checks), per_step, memory)


def _losses(trainer: CopyTrainer, run: CopyRun, batches: Sequence[Any]) -> list[float]:
    """The loss of each batch in evaluation mode at the present weights."""
    problem = Problem(run.model, run.problem.loss, list(batches), "running")
    losses = []
    with problem.measuring(), torch.no_grad(), contextlib.closing(problem.data()) as data:
        for index, batch in data:
            trainer.cost += Cost(forwards=1)
            try:
                loss = float(problem.training_loss(index, batch))
            except NonFinite:
                loss = math.inf
            losses.append(loss if math.isfinite(loss) else math.inf)
    return losses
