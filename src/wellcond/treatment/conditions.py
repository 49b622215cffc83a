"""`Conditions`: what all arms of a treatment have in common, and what is measured before them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from wellcond.errors import InvalidProblem, NonFinite
from wellcond.network.checks import not_finite_parameter
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.problem.arguments import check_unchanged
from wellcond.problem.held_out import HeldOut, held_out, not_held_out
from wellcond.problem.loss.constant import constant_loss
from wellcond.problem.not_finite import ADVICE
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep
from wellcond.remedies.remedy import REMEDIES
from wellcond.remedies.setup import Setup
from wellcond.results import Cost
from wellcond.training.copy_trainer import CopyTrainer
from wellcond.training.passed_optimizer import PassedOptimizer, optimizer_of
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
        uninformed: The held-out loss of the best constant outputs; None where it is not known.
        cost: What it took to see whether a part of the data can be held out, and for that loss.
    """

    problem: Problem
    held: HeldOut
    optimizer: Optimizer | None
    momentum: float
    steps: int
    race_seed: int
    uninformed: float | None = None
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
    optimizer: PassedOptimizer | None,
    momentum: float,
    steps: int,
    seeds: Collection[int],
    validation: Any = None,
) -> Conditions:
    """What all arms have in common, as `treat` takes it.

    Raises:
        NonFinite: A parameter is NaN or infinite.
        InvalidProblem: The problem is stale, or several optimizers hold parameters of the model.
    """
    check_unchanged(problem)
    with own_arithmetic(), problem.as_trained():  # so that what is made of the problem is trained like it
        if name := not_finite_parameter(problem.model):
            raise NonFinite(f"parameter {name!r} holds NaN or infinity, which no remedy undoes: {ADVICE['weight']}.")
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
        uninformed, cost_of_it = _uninformed_loss(trained, held)
        own = optimizer_of(problem, optimizer)
        return Conditions(trained, held, own, momentum, steps, max(seeds) + 1, uninformed, cost + cost_of_it)


class FirstSteps(NamedTuple):
    """What a few steps of the untreated network show.

    Attributes:
        depends_on_seed: Whether two seeds give two runs.
        loss: The loss before any step.
        seconds: Time of a step.
        per_step: u of a step.
        cost: What they took.
    """

    depends_on_seed: bool
    loss: float
    seconds: float
    per_step: float
    cost: Cost


def first_steps(shared: Conditions) -> FirstSteps | None:
    """Train the untreated network for a few steps; None if its loss is not finite before them.

    Raises:
        InvalidProblem: The plain network cannot be trained on the batches, or the loss reads the model's own weights.
        Unsupported: The model or the optimizer cannot be copied.
    """
    with own_arithmetic():
        try:
            trainer = CopyTrainer(shared.problem, shared.optimizer, shared.momentum)
            depends_on_seed = trainer.depends_on_seed()
            seconds, per_step = trainer.timed_step(shared.race_seed)
        except NonFinite:
            return None
    return FirstSteps(depends_on_seed, trainer.first_loss, seconds, per_step, trainer.cost)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Sums of several threads are rounded in another order, and training multiplies the difference."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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


def _uninformed_loss(trained: Problem, held: HeldOut) -> tuple[float | None, Cost]:
    """The held-out loss of the best constant outputs, and what it took; None where outputs or targets are not known."""
    problem = Problem(trained.model, trained.loss, held.judging or trained.source, "running")
    if isinstance(problem.loss, TrainingStep):
        return None, Cost()
    with problem.measuring(), torch.no_grad(), contextlib.closing(problem.data()) as data:
        known = list(data)
        try:
            problem.evaluate(*known[0])
        except InvalidProblem:  # of a sum over examples there is no likelihood
            pass
        except NonFinite:
            return None, problem.cost
        outputs = [problem.forward(index, inputs) for index, (inputs, _) in known]
        targets = [targets for _, (_, targets) in known]
        return constant_loss(problem.raw_loss, problem.likelihood, outputs, targets), problem.cost
