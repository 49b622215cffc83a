"""`ArmJob`: a race or a run of one arm, here or in another process."""

from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, field, fields, replace
from statistics import fmean
from typing import Any, Literal

import torch

from wellcond.errors import NonFinite, Unsupported, WellcondError
from wellcond.learning_rate.race.outcome import went_up
from wellcond.learning_rate.race.race import race
from wellcond.network.calling import one_line
from wellcond.remedies.optimizer_code import making_sgd
from wellcond.results import Cost, Progress
from wellcond.training.copy_trainer import CopyTrainer
from wellcond.training.optimizers import largest_lr
from wellcond.treatment.arm import Arm
from wellcond.treatment.conditions import Conditions, one_thread
from wellcond.treatment.judged_run import CHECKS, JudgedRun, judged_run
from wellcond.treatment.launching.launcher import Job
from wellcond.treatment.treatment import UNTREATED

TRIES, SAFER = 3, 4.0
"""A race is shorter than the run: a rate that then diverges is divided by `SAFER`, at most this often."""
PLAIN_ERRORS = (RuntimeError, NotImplementedError)
"""Errors of torch itself, as of an optimizer that takes no sparse gradients; subclasses are the user's own."""
RACE_SLACK = 1.25
"""A race may take somewhat more than its steps, to bracket the best rate."""
NOTHING_TO_TREAT = "there is nothing to treat: the network has what this remedy gives, or lacks what it changes."


Task = Literal["screen", "begin", "repeat", "confirm"]


@dataclass(frozen=True)
class ArmEnded:
    """How a job ended.

    Attributes:
        arm: The arm with what the job adds to it; None if there is nothing to treat.
        lr: The learning rate that was found or used; NaN if none trains.
        cost: What it took.
        error: Why it could not be run, where no other process has raised it.
    """

    arm: Arm | None
    lr: float = math.nan
    cost: Cost = field(default_factory=Cost)
    error: str = ""


@dataclass(frozen=True)
class ArmJob(Job[ArmEnded]):
    """A race or a run of one arm.

    Attributes:
        conditions: What all arms have in common.
        arm: The arm so far.
        task: "screen": a short race, and a run at the rate that wins it. "begin": a long race, and a run of full
            length, at a lower rate if it diverges. "repeat": a run of full length at a known rate. "confirm": a longer
            one.
        seed: Seed of the run.
        lr: The rate to race around, or to repeat; None: the optimizer's own.
    """

    conditions: Conditions
    arm: Arm
    task: Task
    seed: int
    lr: float | None = None

    @property
    def name(self) -> str:
        return f"{self.arm.name} ({self.task}, seed {self.seed})"

    @property
    def planned(self) -> float:
        """Most steps that it takes; three forward passes of an evaluation count as one."""
        shared = self.conditions
        if self.task == "screen":
            return RACE_SLACK * shared.screening_race + shared.screening_steps + CHECKS * len(shared.held.choosing) / 3
        steps = shared.long_steps if self.task == "confirm" else shared.steps
        run = 1 + steps + CHECKS * len(shared.held.batches) / 3
        return RACE_SLACK * shared.full_race + TRIES * run if self.task == "begin" else run

    def run(self, progress: Progress) -> ArmEnded:
        """Run it; what the network does not allow, or what does not fit into memory, refuses the arm."""
        trainers: list[CopyTrainer] = []
        arm: Arm | None = self.arm
        lr = math.nan
        refused = ""
        try:
            with one_thread(), self.conditions.problem.as_trained():
                arm, lr = self._ended(trainers, progress)
        except NonFinite as error:  # it diverges before its first step
            runs = self.arm.runs | {math.nan: {self.seed: JudgedRun([], 1, str(error))}}
            arm = replace(self.arm, screened=math.inf) if self.task == "screen" else replace(self.arm, runs=runs)
        except WellcondError as error:
            if self.arm.name == UNTREATED:
                raise
            refused = str(error)
        except (MemoryError, torch.OutOfMemoryError) as error:
            refused = f"it does not fit into memory: {error}"
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        except RuntimeError as error:
            if type(error) not in PLAIN_ERRORS or self.arm.name == UNTREATED:
                raise
            refused = one_line(error)
        if refused:
            arm = replace(self.arm, runs={}, refused=refused)
        return ArmEnded(arm, lr, sum((trainer.cost for trainer in trainers), Cost()))

    def failed(self, error: str) -> ArmEnded:
        """The end of a job whose process was killed, or whose code raised there."""
        return ArmEnded(self.arm, error=f"{self.name}: {error}")

    def __reduce__(self) -> Any:
        """As bytes: torch would else move the user's own tensors into shared memory to send them."""
        return _unpacked, (pickle.dumps({each.name: getattr(self, each.name) for each in fields(self)}),)

    def _ended(self, trainers: list[CopyTrainer], progress: Progress) -> tuple[Arm | None, float]:
        shared, is_screening = self.conditions, self.task == "screen"
        if self.arm.name == UNTREATED:  # a rate that the user has chosen needs no line
            code = making_sgd(shared.momentum) if shared.optimizer is None else ""
            trainer = CopyTrainer(shared.problem, shared.optimizer, shared.momentum)
        else:
            setup = shared.treated(self.arm.name, shared.screening_steps if is_screening else shared.steps)
            if setup is None:
                if is_screening:
                    return None, math.nan
                raise Unsupported(NOTHING_TO_TREAT)
            code = setup.code
            trainer = CopyTrainer(setup.problem, setup.optimizer, setup.momentum, before_training=setup.before_training)
        arm = replace(self.arm, code=code)
        trainers.append(trainer)
        if self.task in ("repeat", "confirm"):
            assert self.lr is not None
            trained = self._trained if self.task == "repeat" else self._confirmed
            return trained(arm, trainer, self.lr, progress), self.lr
        most = shared.screening_race if is_screening else shared.full_race
        racing = most / (most + shared.steps)
        center = None if self.lr is None or math.isnan(self.lr) else self.lr  # in the screening none may have trained
        if center is None and trainer.optimizer is not None:
            center = abs(largest_lr(trainer.optimizer)) or None  # a negative rate is a fault, not a place to begin
        outcome = race(
            trainer,
            steps=shared.steps,
            max_steps=most,
            center=center,
            seed=shared.race_seed,
            progress=lambda _what, share: progress("race of learning rates", racing * share),
        )
        raced = outcome.best if math.isnan(outcome.lr) else outcome.lr  # a longer run may leave a plateau
        later: Progress = lambda what, share: progress(what, racing + (1 - racing) * share)  # noqa: E731
        if is_screening:
            return replace(arm, screened=self._screened(trainer, raced, later)), raced
        return self._trained_safely(arm, trainer, raced, later)

    def _screened(self, trainer: CopyTrainer, lr: float, progress: Progress) -> float:
        """The loss by which arms go on, on the held-out batches that nothing is judged by."""
        if math.isnan(lr):
            return math.inf
        shared = self.conditions
        run = judged_run(
            trainer, shared.held, lr=lr, seed=self.seed, steps=shared.screening_steps, only_choosing=True,
            progress=progress,
        )  # fmt: skip
        return fmean(run.judged) if run.judged else math.inf

    def _trained(self, arm: Arm, trainer: CopyTrainer, lr: float, progress: Progress) -> Arm:
        """The arm with one more run."""
        if math.isnan(lr):  # the race has shown that no rate trains
            return replace(arm, runs=arm.runs or {lr: {self.seed: JudgedRun([], 1, "no rate trains it")}})
        what: Progress = lambda _what, share: progress(f"at lr {lr:.3g}, seed {self.seed}", share)  # noqa: E731
        run = judged_run(
            trainer, self.conditions.held, lr=lr, seed=self.seed, steps=self.conditions.steps, progress=what
        )
        return replace(arm, runs=arm.runs | {lr: arm.runs.get(lr, {}) | {self.seed: run}})

    def _confirmed(self, arm: Arm, trainer: CopyTrainer, lr: float, progress: Progress) -> Arm:
        """The arm with a longer run."""
        shared = self.conditions
        what: Progress = lambda _what, share: progress(f"{shared.long_steps} steps at lr {lr:.3g}", share)  # noqa: E731
        run = judged_run(trainer, shared.held, lr=lr, seed=self.seed, steps=shared.long_steps, progress=what)
        return replace(arm, longer={self.seed: run})

    def _trained_safely(self, arm: Arm, trainer: CopyTrainer, lr: float, progress: Progress) -> tuple[Arm, float]:
        """A run at the rate, or at a lower one if it diverges there."""
        for _ in range(TRIES):
            arm = self._trained(arm, trainer, lr, progress)
            if math.isnan(lr) or not went_up(arm.runs[lr][self.seed]):
                return arm, lr
            lr /= SAFER
        return arm, lr * SAFER


def _unpacked(packed: bytes) -> ArmJob:
    return ArmJob(**pickle.loads(packed))
