"""`Trainer`: races and runs of the arms of a treatment, what they cost, and those that are refused."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import nn
from torch.optim import Optimizer

from wellcond.errors import NonFinite, WellcondError
from wellcond.learning_rate.race.horizon import last_loss
from wellcond.learning_rate.race.race import race, went_up
from wellcond.network.calling import one_line
from wellcond.remedies.setup import Setup
from wellcond.results import Cost, Progress
from wellcond.training.copies import Copies, largest_lr
from wellcond.training.run import Run
from wellcond.treatment.arm import Arm

TRIES, SAFER = 3, 4.0
"""A race is shorter than the run: a rate that then diverges is lowered by this factor, so often at most."""
PLAIN_ERRORS = (RuntimeError, NotImplementedError)
"""Torch's own, as of an optimizer that takes no sparse gradients."""


class Trainer:
    """Trains arms.

    Args:
        steps: The length of every run.
        seeds: Of the runs; races have the first.
        planned: All steps that there are to be.
        progress: Called as (what is being done, share of all work done).

    Attributes:
        arms: So far, by name.
        cost: Of everything so far. One u is a training step.
        done: Steps so far, as they were planned.
    """

    def __init__(self, steps: int, seeds: tuple[int, ...], planned: int, progress: Progress) -> None:
        self.steps, self.seeds = steps, seeds
        self.arms: dict[str, Arm] = {}
        self.cost = Cost()
        self.done = 0
        self._planned, self._progress = planned, progress

    def copies(self, setup: Setup) -> Copies:
        """Those of a patient, which its first batch has gone through."""
        copies = Copies(setup.problem, setup.optimizer, setup.momentum)
        self.cost += copies.cost
        return copies

    @contextlib.contextmanager
    def refusing(self, arm: Arm) -> Iterator[None]:
        """What the network does not allow, or does not fit into memory, refuses the arm; the others go on."""
        try:
            yield
        except NonFinite:  # it diverges before its first step
            self.arms[arm.name] = replace(arm, screened=math.inf)
        except WellcondError as error:
            self.arms[arm.name] = replace(arm, runs={}, refused=str(error))
        except (MemoryError, torch.OutOfMemoryError) as error:
            self.arms[arm.name] = replace(arm, runs={}, refused=f"it does not fit into memory: {error}")
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        except RuntimeError as error:
            if type(error) not in PLAIN_ERRORS:
                raise  # the user's own
            self.arms[arm.name] = replace(arm, runs={}, refused=one_line(error))

    def train_safely(self, name: str, copies: Copies, setup: Setup, rate: float) -> float:
        """The rate at which a run of full length does not diverge, tried with the first seed; that run is kept."""
        for _ in range(TRIES):
            self.train(name, copies, setup, rate, self.seeds[0])
            run = self.arms[name].runs[rate][self.seeds[0]]
            if math.isnan(rate) or not went_up(run):
                return rate
            rate /= SAFER
        return rate * SAFER

    def train(self, name: str, copies: Copies, setup: Setup, rate: float, seed: int) -> None:
        """One run more."""
        arm = self.arms[name]
        if math.isnan(rate):  # no rate trains, and the race has shown it
            self.arms[name] = replace(arm, runs=arm.runs or {rate: {seed: Run([], 1, "no rate trains it")}})
            return
        # other work on the machine does not count where it can be told apart
        clock = time.process_time if setup.problem.device.type == "cpu" else time.perf_counter
        begun, before = clock(), copies.cost
        progress = self._part(f"{name} at lr {rate:.3g}, seed {seed}", self.steps)
        model, optimizer = started(copies, setup, seed)(rate)
        run = copies.run(model, optimizer, self.steps, seed, progress)
        self.cost += copies.cost - before
        self.done += self.steps
        runs = arm.runs | {rate: arm.runs.get(rate, {}) | {seed: run}}
        seconds = math.nan if run.final is None else (clock() - begun) / self.steps
        self.arms[name] = replace(arm, runs=runs, seconds=min(seconds, arm.seconds, key=lambda s: (math.isnan(s), s)))

    def race(self, copies: Copies, setup: Setup, name: str, budget: int, center: float | None) -> tuple[float, float]:
        """The rate that wins a race, and the loss that the best run reached; NaN and infinity if no rate trains."""
        before, progress = copies.cost, self._part(f"{name}: race of learning rates", budget)
        if center is None and copies.optimizer is not None:
            center = abs(largest_lr(copies.optimizer)) or None  # a negative rate is a fault, not a place to begin
        start = started(copies, setup, self.seeds[0])
        found = race(copies, start, steps=self.steps, budget=budget, center=center, progress=progress)
        self.cost += copies.cost - before
        self.done += budget
        return found.lr, math.inf if math.isnan(found.lr) else last_loss(found.runs[found.best].losses)

    def _part(self, what: str, steps: int) -> Progress:
        begin = self.done
        return lambda _what, share: self._progress(what, min((begin + share * steps) / self._planned, 1.0))


def started(copies: Copies, setup: Setup, seed: int) -> Callable[[float], tuple[nn.Module, Optimizer]]:
    """Rate → a copy of the model and its optimizer, ready to train."""

    def start(lr: float) -> tuple[nn.Module, Optimizer]:
        model, optimizer = copies.start(lr)
        for prepare in setup.before_training:
            prepare(model, optimizer, seed)
        return model, optimizer

    return start
