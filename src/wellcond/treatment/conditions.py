"""`Conditions`: what all arms of a treatment have in common, and what is measured before them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

from wellcond.errors import InvalidProblem, NonFinite
from wellcond.problem.held_out import HeldOut, held_out, not_held_out
from wellcond.problem.loss.constant import constant_loss
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep
from wellcond.remedies.remedy import REMEDIES
from wellcond.remedies.setup import Setup
from wellcond.results import Cost
from wellcond.training.optimizers import unwrapped
from wellcond.treatment.ranking import in_order, parts_of
from wellcond.treatment.treatment import UNTREATED

LEAST_RACE, MOST_SCREENING = 225, 900
"""Steps of all runs of a race together: no fewer, and in the screening no more."""
SCREENING_SHARE = 2 / 9
"""Steps of the run that an arm is screened by, as a share of its race: about those of the longest run in it."""
RACE_RUNS = 3
"""Steps of the race of an arm that is trained in full, in runs of full length."""
LONGER, LONG = 10, 2000
"""How many times longer the runs are that confirm a winner, up to this many steps: what is only faster at first does
not win there."""


@dataclass(frozen=True)
class Conditions:
    """What all arms have in common.

    Attributes:
        problem: The user's problem, with the batches that are trained on.
        held: The held-out batches.
        optimizer: The user's optimizer; None: SGD.
        momentum: Momentum of SGD where no optimizer is given.
        steps: The length of every run.
        race_seed: Seed of races and of the screening, none of those that arms are judged by.
        cost: What it took to see whether a part of the data can be held out.
    """

    problem: Problem
    held: HeldOut
    optimizer: Optimizer | None
    momentum: float
    steps: int
    race_seed: int
    cost: Cost = field(default_factory=Cost)

    @property
    def screening_race(self) -> int:
        """Steps of a race of the screening, all runs together."""
        return min(max(self.steps, LEAST_RACE), MOST_SCREENING)

    @property
    def screening_steps(self) -> int:
        """The length of a run of the screening."""
        return min(self.steps, round(SCREENING_SHARE * self.screening_race))

    @property
    def full_race(self) -> int:
        """Steps of the race of an arm that is trained in full."""
        return max(RACE_RUNS * self.steps, LEAST_RACE)

    @property
    def long_steps(self) -> int:
        """The length of the runs that confirm a winner; that of all others where these are long enough."""
        return max(self.steps, min(LONGER * self.steps, LONG))

    def treated(self, name: str, steps: int) -> Setup | None:
        """The set-up with these remedies; None if one of them has nothing to treat."""
        setup: Setup | None = Setup.of(self.problem, self.optimizer, momentum=self.momentum, steps=steps)
        for part in [] if name == UNTREATED else in_order(parts_of(name)):
            if setup is None:
                return None
            setup = REMEDIES[part].apply(setup)
        return setup


def conditions_of(
    problem: Problem,
    optimizer: Optimizer | None,
    momentum: float,
    steps: int,
    seeds: Collection[int],
    validation: Any = None,
) -> Conditions:
    """What all arms have in common, as `treat` takes it."""
    with problem.measuring():
        pass  # refuses a stale problem: those made from it here would not show that it is one
    held = held_out(problem.source, problem.device, validation)
    trained = Problem(problem.model, problem.loss, held.training, problem.batchnorm)
    cost = Cost()
    if validation is None:
        parts = [trained]
        if held.batches:
            parts.append(Problem(problem.model, problem.loss, list(held.batches[:1]), problem.batchnorm))
        if not all(map(_goes_through, parts)):
            held, trained = not_held_out(problem.source, "a part of a batch does not go through the model"), problem
        cost = sum((part.cost for part in parts), cost)
    own = None if optimizer is None else unwrapped(optimizer)
    return Conditions(trained, held, own, momentum, steps, max(seeds) + 1, cost)


def _goes_through(problem: Problem) -> bool:
    """Whether the model can be called with the first of the batches: a graph, say, cannot be cut."""
    try:
        with problem.measuring(), torch.no_grad(), contextlib.closing(problem.data()) as data:
            problem.training_loss(*next(data))
    except NonFinite:
        return True
    except InvalidProblem:
        return False
    return True


def uninformed_loss(shared: Conditions) -> tuple[float | None, Cost]:
    """The held-out loss of the best constant outputs, and what it took; None where outputs or targets are not known."""
    problem = Problem(
        shared.problem.model, shared.problem.loss, shared.held.judging or shared.problem.source, "running"
    )
    if isinstance(problem.loss, TrainingStep):
        return None, Cost()
    with problem.measuring(), torch.no_grad(), contextlib.closing(problem.data()) as data:
        known = list(data)
        with contextlib.suppress(InvalidProblem):  # of a sum over examples there is no likelihood
            problem.evaluate(*known[0])
        outputs = [problem.forward(index, inputs) for index, (inputs, _) in known]
        targets = [targets for _, (_, targets) in known]
        return constant_loss(problem.raw_loss, problem.likelihood, outputs, targets), problem.cost
