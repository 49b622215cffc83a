"""A race of learning rates: all from the same weights on the same batches, most dropped early."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Sequence
from itertools import islice
from statistics import fmean
from typing import Any

import torch
from torch.optim import SGD, Adagrad, Optimizer

from wellcond.errors import Interrupted, NonFinite
from wellcond.learning_rate.race.horizon import (
    DRIFT,
    FLAT,
    PLAIN_DRIFT,
    SHOWN_FROM,
    TELLING,
    choose,
    falls,
    last_loss,
    last_losses,
)
from wellcond.learning_rate.race.in_step import RECENT, in_step
from wellcond.learning_rate.race.outcome import ABOVE_CONSTANT, ALL_UP, LIKE_CONSTANT, NO_FALL, Race, went_up
from wellcond.problem.problem import Problem
from wellcond.results import Cost, Progress, number
from wellcond.training.copy_run import CopyRun
from wellcond.training.copy_trainer import CopyTrainer
from wellcond.training.optimizers import peak_lr
from wellcond.training.planned_schedule import PlannedSchedule

RATIO = 2.4
"""Ratio of neighboring rates. The loss stays within 10 % of the best over a factor of 2 to 5 on most of
`benchmarks.rates`."""
MAX_STEPS = 470
"""Steps of all runs together, where nothing else is said."""
FIRST_LENGTH = 35
"""Steps after which runs are compared, where all together may take `MAX_STEPS`."""
FIRST_NEIGHBORS = 1
"""Rates below and above the first that begin; others join where the best is at an end."""
BELOW, ABOVE = 2, 1
"""Rates below and above the best that are raced to the end: as training goes on the best rate falls."""
FAR = 3
"""By how many ratios to go down where every rate so far has diverged."""
MOST_FIRST, MOST_RATES = 0.9, 14
"""Share of all steps that runs of the first length may take; and the largest number of rates to try, because one that
diverges at once takes hardly any."""
FALLBACK = 0.01
"""The first rate where neither the optimizer nor the curvature gives one."""
LEARNED = 0.005
"""Share of a constant's loss by which a run must be below it. The constant is the best for the very batches that the
run is compared on, so that chance does not put a run below it."""
FAR_ABOVE = 0.2
"""Share of a constant's loss by which all runs must stay above it to say that none trains, where outputs differ from
input to input: a network that is slow to start is nearer, or its loss still falls."""
ENOUGH = 45
"""Steps of the longest run, from which on a loss that does not fall says that no rate trains. Shorter races take the
best they saw: a discriminator whose rates train stood still for 33 steps at all of them."""
HELD_OUT = 8
"""The largest number of held-out batches on which those that finish are judged."""


def race(
    trainer: CopyTrainer,
    *,
    steps: int,
    max_steps: int = MAX_STEPS,
    center: float | None = None,
    schedule: PlannedSchedule | None = None,
    validation: Any = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Race:
    """Find a learning rate for a run of this many steps.

    The optimizer's own rate and three around the center take some 35 steps; others join below or above while the best
    is at an end. The best, two below it, one above it and the optimizer's own share the remaining steps: as training
    goes on the best rate falls. Under a schedule they begin anew, with the schedule stretched to their length.

    Args:
        trainer: It trains the copies.
        steps: The length of the run that the rate is for.
        max_steps: The steps of all runs together, about; with fewer, each run is shorter.
        center: The rate to begin with; None: the optimizer's own rate.
        schedule: The schedule of the planned run; rates are then its highest ones.
        validation: Held-out batches, on which those that finish are judged.
        seed: As in `CopyTrainer.start`.
        progress: Called as (what is being done, share of all work done).

    Returns:
        The rate and the runs.

    Raises:
        Interrupted: On Ctrl-C, with the race so far as `.result`.
    """
    return _Race(trainer, steps, max_steps, schedule, validation, seed, progress).run(center)


def drift_of(optimizer: Optimizer) -> float:
    """How the best rate falls with the length of a run: not where the optimizer's own steps shrink as t^−½."""
    if isinstance(optimizer, Adagrad):
        return 0.0
    is_plain = isinstance(optimizer, SGD) and not any(group["momentum"] for group in optimizer.param_groups)
    return PLAIN_DRIFT if is_plain else DRIFT


class _Race:
    """Rates are base · RATIO^k, and runs are known by k; the optimizer's own rate, where there is one, is the base."""

    def __init__(
        self,
        trainer: CopyTrainer,
        steps: int,
        max_steps: int,
        schedule: PlannedSchedule | None,
        validation: Any,
        seed: int,
        progress: Progress | None,
    ) -> None:
        self.trainer, self.steps, self.max_steps, self.seed = trainer, steps, max_steps, seed
        self.schedule, self.validation = schedule, validation
        self.first_length = max(1, min(round(FIRST_LENGTH * max_steps / MAX_STEPS), steps))
        self.report = progress or (lambda _what, _share: None)
        self.own: float | None = None
        self.base = FALLBACK
        self.runs: dict[int, CopyRun] = {}
        self.held_out: dict[float, Sequence[float]] = {}
        self.why_none = ""
        self.before = trainer.cost
        self.is_noisy = trainer.depends_on_seed()

    def run(self, center: float | None) -> Race:
        groups = [] if self.trainer.optimizer is None else self.trainer.optimizer.param_groups
        own = max((abs(peak_lr(group)) for group in groups), default=0.0)
        self.own = (own if self.schedule is None else self.schedule.peak) or None
        self.base = self.own or center or FALLBACK
        begin = 0 if center is None else round(math.log(center / self.base) / math.log(RATIO))
        try:
            with contextlib.ExitStack() as self.stack:
                self._race(begin)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(self._result("interrupted")) from interrupt
        return self._result()

    def _race(self, begin: int) -> None:
        length = self.first_length
        self._train(self._near(begin, FIRST_NEIGHBORS, FIRST_NEIGHBORS), length)
        if (best := self._bracket(length)) is None:
            return
        rates = self._near(best, BELOW, ABOVE)
        judging = RECENT + HELD_OUT * len(rates) * (self.validation is not None)
        left = self.max_steps - self._cost.u - Cost(forwards=judging).u
        if self.schedule is None:  # otherwise they begin anew
            left += length * len(rates & self.runs.keys())
        self._train(rates, min(max(length, int(left / len(rates))), self.steps))
        self.why_none = self._why_none(rates)
        if self.validation is not None:
            self.held_out = {self._lr(k): self._judged(self.runs[k]) for k in sorted(rates)}

    def _train(self, rates: Collection[int], length: int) -> None:
        """Runs of one length at these rates; those at other rates are dropped."""
        for k in self.runs.keys() - set(rates):
            self.runs[k].release()
        if self.schedule is not None or not self.runs:
            self.stack.close()
            self.field = self.stack.enter_context(in_step(self.trainer, self.seed))
            self.runs = {k: run for k, run in self.runs.items() if k not in rates}
        self._join(rates, length)
        runs = [self.runs[k] for k in rates]
        for _ in range(length - max(len(run.losses) for run in runs)):
            self.field.advance(runs)
            self._tell(f"{len(runs)} rates from {self._lr(min(rates)):.3g} to {self._lr(max(rates)):.3g}")

    def _join(self, rates: Collection[int], length: int) -> None:
        """Start runs of this length at rates that have none, on the batches that the others have seen."""
        for k in sorted(set(rates) - self.runs.keys()):
            self._tell(f"lr {self._lr(k):.3g}")
            self.runs[k] = self.trainer.start(self._lr(k), seed=self.seed)
            if self.schedule is not None:
                self.schedule.attach(self.runs[k].optimizer, self._lr(k), length)
            self.field.join(self.runs[k])

    def _bracket(self, length: int) -> int | None:
        """The best rate of this length, after others have joined until it has a neighbor on both sides."""
        while self._cost.u + length < MOST_FIRST * self.max_steps and len(self.runs) < MOST_RATES:
            best = self._best(length)
            neighbors = (min(self.runs) - FAR,) if best is None else (best - 1, best + 1)
            missing = [k for k in neighbors if k not in self.runs]
            if not missing:
                break
            self._join(missing[:1], length)
        return self._best(length)

    def _best(self, length: int) -> int | None:
        """Half way from the lowest loss to the largest rate that is equally good; None if every loss went up."""
        finished = {k: run.as_run for k, run in self.runs.items() if len(run.losses) == length}
        losses = {k: last_loss(run.losses) for k, run in finished.items() if not went_up(run)}
        if not losses:
            return None
        low = high = min(losses, key=losses.__getitem__)
        while losses.get(high + 1, math.inf) <= losses[low] + FLAT * abs(losses[low]):
            high += 1
        return (low + high + 1) // 2

    def _near(self, best: int, below: int, above: int) -> set[int]:
        """The optimizer's own rate and some around the best, but none from the first above it on whose loss went up."""
        bound = min((k for k, run in self.runs.items() if k > best and went_up(run.as_run)), default=math.inf)
        around = range(best - below, best + above + 1)
        return {k for k in (*around, *([] if self.own is None else [0])) if k < bound}

    def _why_none(self, finalists: Collection[int]) -> str:
        """Why no rate trains: no loss falls by more than chance, none below that of a constant, or all stay above it.

        "" if one does, or if the runs are too short to tell.
        """
        runs = {k: run for k, run in self.runs.items() if not went_up(run.as_run)}
        if max((len(run.losses) for run in runs.values()), default=0) < ENOUGH:
            return ""
        if not any(falls(run.losses) for run in runs.values()):
            return NO_FALL
        finished = [run for k, run in runs.items() if k in finalists]
        recent = list(self.field.recent)
        if not finished:
            return ""
        lowest = min(fmean(run.losses[-len(recent) :]) for run in finished)
        constant = finished[0].best_constant(recent)
        if constant is None:
            return ""
        loss = constant.loss_if_outputs_agree()
        if loss is not None and lowest >= loss - LEARNED * abs(loss):
            return LIKE_CONSTANT.format(constant=number(loss))
        if any(falls(run.losses[len(run.losses) // 3 :]) for run in finished):
            return ""
        loss = constant.loss_of_many()
        if loss is not None and lowest > loss + FAR_ABOVE * abs(loss):
            return ABOVE_CONSTANT.format(loss=number(lowest), constant=number(loss))
        return ""

    def _judged(self, run: CopyRun) -> list[float]:
        """The loss of a few held-out batches, in evaluation mode; infinity where it is not finite."""
        with run.problem.as_trained():
            held_out = Problem(run.model, self.trainer.problem.loss, self.validation, "running")
        losses = []
        with held_out.as_trained(), held_out.measuring(), torch.no_grad(), contextlib.closing(held_out.data()) as data:
            for index, batch in islice(data, HELD_OUT):
                self.trainer.cost += Cost(forwards=1)
                try:
                    losses.append(float(held_out.training_loss(index, batch)))
                except NonFinite:
                    losses.append(math.inf)
        return losses

    def _tell(self, what: str) -> None:
        self.report(f"racing {what}", min(0.99, self._cost.u / self.max_steps))

    @property
    def _cost(self) -> Cost:
        return self.trainer.cost - self.before

    def _lr(self, k: int) -> float:
        return float(self.base * RATIO**k)

    def _result(self, status: str = "") -> Race:
        runs = {self._lr(k): self.runs[k].as_run for k in sorted(self.runs)}
        finished = {lr: run for lr, run in runs.items() if not went_up(run)}
        why_none = self.why_none if finished else ALL_UP
        if why_none:
            return Race(runs, None, self.steps, self.own, round(self._cost.backwards), why_none=why_none, status=status)
        length = max(1, max(len(run.losses) for run in finished.values()) - bool(status))  # some may be a step short
        finalists = {lr: run.losses[:length] for lr, run in finished.items() if len(run.losses) >= length}
        is_constant = self.is_noisy and self.schedule is None  # otherwise there is no floor that the rate sets
        times = max(1.0, self.steps / length) if is_constant else 1.0
        compared = self.held_out or {lr: last_losses(losses) for lr, losses in finalists.items()}
        drift = drift_of(next(iter(self.runs.values())).optimizer)
        trust = min(1.0, length / min(TELLING, self.steps))
        choice = choose(compared, self.own, times=times, drift=drift, is_short=length < SHOWN_FROM, trust=trust)
        return Race(runs, choice, self.steps, self.own, round(self._cost.backwards), self.held_out, status=status)
