"""`Comparison`: the arms of a treatment, screened by short races and trained with equal numbers of steps."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch.optim import Optimizer

from wellcond.diagnosis.finding import Finding
from wellcond.errors import NonFinite, Unsupported, WellcondError
from wellcond.learning_rate.race.horizon import last_loss
from wellcond.learning_rate.race.outcome import went_up
from wellcond.learning_rate.race.race import FIRST_LENGTH, MAX_STEPS, race
from wellcond.network.calling import one_line
from wellcond.problem.problem import Problem
from wellcond.remedies.remedy import REMEDIES
from wellcond.remedies.setup import Setup
from wellcond.results import Cost, Progress
from wellcond.training.copies import CopyTrainer
from wellcond.training.optimizers import largest_lr
from wellcond.training.run import Run
from wellcond.treatment.arm import Arm
from wellcond.treatment.ranking import (
    FINALISTS,
    advised,
    drawn,
    finalists,
    fits,
    in_order,
    not_chosen,
    parts_of,
    proposals_of,
    ranked,
)
from wellcond.treatment.treatment import TOGETHER, UNTREATED, Treatment

LEAST_RACE, MOST_SCREENING = 225, 900
"""Steps of all runs of a race together: no fewer, and in the screening no more. The longest run has 2/9 of them."""
RACE_RUNS = 3
"""Steps of the race of an arm that is trained in full, in runs of full length."""
PARTNERS, ROUNDS = 3, 2
"""Remedies that the best one is combined with, and how often more are added."""
TRIES, SAFER = 3, 4.0
"""A race is shorter than the run: a rate that then diverges is divided by `SAFER`, at most this often."""
DATA = ("scale-inputs", "scale-targets")
"""Where both are unscaled neither may help alone: they are tried together, however each does alone."""
PLAIN_ERRORS = (RuntimeError, NotImplementedError)
"""Errors of torch itself, as of an optimizer that takes no sparse gradients; subclasses are the user's own."""
NOTHING_TO_TREAT = "there is nothing to treat: the network has what this remedy gives, or lacks what it changes."
ONE_SEED = "the data are one batch and nothing is random, so every seed gives the same run; one was made."


class Comparison:
    """Makes the arms of a treatment, one after another.

    Args:
        problem: The user's problem.
        optimizer: The user's optimizer; None: SGD.
        momentum: Momentum of SGD where no optimizer is given.
        steps: The length of every run.
        seeds: Seeds of the runs; races have the first.
        named: The number of remedies that the user has named; None: all are screened.
        progress: Called as (what is being done, share of all work done).

    Attributes:
        arms: Arms so far, by name.
        seeds: Seeds of the runs; one if all give the same run.
        cost: Cost of everything so far. One u is a training step.
        notes: What else the user should know.
    """

    def __init__(
        self,
        problem: Problem,
        optimizer: Optimizer | None,
        momentum: float,
        steps: int,
        seeds: tuple[int, ...],
        named: int | None,
        progress: Progress,
    ) -> None:
        self.arms: dict[str, Arm] = {}
        self.seeds = seeds
        self.cost = Cost()
        self.notes: list[str] = []
        self._steps, self._progress = steps, progress
        self._screening_max = min(max(steps, LEAST_RACE), MOST_SCREENING)
        self._screening_steps = min(steps, round(FIRST_LENGTH * self._screening_max / MAX_STEPS))
        self._race_max = max(RACE_RUNS * steps, LEAST_RACE)
        self._problem, self._optimizer, self._momentum = problem, optimizer, momentum
        self._screened_rates: dict[str, float] = {}
        self._findings: Sequence[Finding] = ()
        self._proposals: dict[str, tuple[str, ...]] = {}
        self._advice = ""
        self._planned = (FINALISTS + 4 if named is None else named + 1) * (self._race_max + len(seeds) * steps)
        if named is None:
            self._planned += (len(REMEDIES) + 1 + PARTNERS * ROUNDS) * self._screening_max
        self._done = 0
        """Steps so far, as they were planned."""

    # the stages

    def train_untreated(self) -> None:
        """The network as it is: at the rate of its optimizer, or at one that a race finds if there is none."""
        arm = Arm(UNTREATED, why="The network, its optimizer and its rate as they are.")
        try:
            trainer = CopyTrainer(self._problem, self._optimizer, self._momentum)
        except NonFinite as error:
            self.arms[UNTREATED] = replace(arm, runs={math.nan: {self.seeds[0]: Run([], 1, str(error))}})
            return
        if len(self.seeds) > 1 and not trainer.depends_on_seed():
            self.seeds = self.seeds[:1]
            self.notes.append(ONE_SEED)
        self.cost += trainer.cost
        self.arms[UNTREATED] = arm
        if trainer.optimizer is not None:
            rate = largest_lr(trainer.optimizer)
        else:
            raced, _ = self._race(UNTREATED, trainer, self._race_max, None)
            rate = self._train_safely(UNTREATED, trainer, raced)
        for seed in self.seeds:
            if seed not in self.arms[UNTREATED].runs.get(rate, ()):
                self._train(UNTREATED, trainer, rate, seed)

    def screen(self, findings: Sequence[Finding]) -> None:
        """Every remedy that applies, by a short race of rates; then combinations of the best with others."""
        self._findings, self._proposals = findings, proposals_of(findings)
        for name in REMEDIES:
            self._screen(name)
        self._advice = advised(self.arms, findings, self._proposals)
        for name in (TOGETHER.join(DATA), self._advice):
            if name and name not in self.arms and all(part in self.arms for part in parts_of(name)):
                self._screen(name)
        for _ in range(ROUNDS):
            order = ranked(self.arms)
            if not order:
                return
            partners = [name for name in order[1:] if TOGETHER not in name and fits(order[0], name)][:PARTNERS]
            combinations = [f"{order[0]}{TOGETHER}{name}" for name in partners]
            for name in combinations:
                if name not in self.arms:
                    self._screen(name)
            if not combinations or ranked(self.arms)[0] == order[0]:
                return

    def train_finalists(self) -> None:
        """The best of the screening, the findings' advice, a better rate alone and a random remedy: all steps."""
        names = finalists(self.arms, self._advice)
        seed = f"{self.seeds[0]} {self._problem.size}"  # not the same draw for all networks
        if (control := drawn(self.arms, self._proposals, seed)) is not None:
            self.arms[control] = replace(self.arms[control], is_random=True)
            names += [control] if control not in names else []
        self._train_all(names)

    def train_named(self, names: Sequence[str], findings: Sequence[Finding]) -> None:
        """These remedies, without screening."""
        self._proposals = proposals_of(findings)
        for name in names:
            self.arms[name] = self._new(name)
        self._train_all(names)

    def treatment(self, *, is_complete: bool = True) -> Treatment:
        """The result so far: the arms that were trained first, the best of them first."""

        def place(arm: Arm) -> tuple[bool, bool, float, float]:
            final = math.inf if arm.best_final is None else arm.best_final.median
            screened = math.inf if arm.screened is None else arm.screened
            return arm.name != UNTREATED, not arm.runs, final, screened

        arms = {arm.name: arm for arm in sorted(self.arms.values(), key=place)}
        if self._optimizer is None:  # a race has found its rate; one that the user has chosen needs no line
            arms[UNTREATED] = replace(arms[UNTREATED], code=self._setup.code)
        has_screening = any(arm.screened is not None for arm in arms.values())
        treatment = Treatment(
            arms,
            self.seeds,
            self._steps,
            self._screening_steps if has_screening else 0,
            self.cost,
            self._race_max + len(self.seeds) * self._steps,
            tuple(self.notes),
            is_complete,
        )
        if not is_complete or treatment.best is None:
            return treatment
        return replace(treatment, notes=(*self.notes, *not_chosen(arms, self._findings, treatment.best)))

    # one arm

    @functools.cached_property
    def _setup(self) -> Setup:
        """The user's set-up, which remedies change."""
        return Setup.of(self._problem, self._optimizer, momentum=self._momentum, steps=self._steps)

    def _new(self, name: str) -> Arm:
        parts = parts_of(name)
        rules = tuple(dict.fromkeys(rule for part in parts for rule in self._proposals.get(part, ())))
        return Arm(name, why="\n".join(REMEDIES[part].why for part in parts), found_by=rules)

    def _screen(self, name: str) -> None:
        arm, end = self._new(name), self._done + self._screening_max
        with self._refusing(arm):
            setup = self._treated(name, self._screening_steps)
            if setup is not None:
                rate, loss = self._race(name, self._trainer(setup), self._screening_max, None)
                self._screened_rates |= {} if math.isnan(rate) else {name: rate}
                self.arms[name] = replace(arm, screened=loss, code=setup.code)
        self._done = end

    def _train_all(self, names: Sequence[str]) -> None:
        """A race of rates for each; then all of them with one seed after the other, so that an interrupt is fair."""
        ready: dict[str, tuple[CopyTrainer, float]] = {}
        for name in names:
            with self._refusing(self.arms[name]):
                setup = self._treated(name, self._steps)
                if setup is None:
                    raise Unsupported(NOTHING_TO_TREAT)
                self.arms[name] = replace(self.arms[name], code=setup.code)
                trainer = self._trainer(setup)
                rate, _ = self._race(name, trainer, self._race_max, self._screened_rates.get(name))
                ready[name] = trainer, self._train_safely(name, trainer, rate)
        for seed in self.seeds[1:]:
            for name, (trainer, rate) in ready.items():
                if self.arms[name].refused is None:
                    with self._refusing(self.arms[name]):
                        self._train(name, trainer, rate, seed)

    def _treated(self, name: str, steps: int) -> Setup | None:
        """The set-up with these remedies; None if one of them has nothing to treat."""
        setup: Setup | None = replace(self._setup, steps=steps)
        for part in in_order(parts_of(name)):
            if setup is None:
                return None
            setup = REMEDIES[part].apply(setup)
        return setup

    @contextlib.contextmanager
    def _refusing(self, arm: Arm) -> Iterator[None]:
        """An arm that the network does not allow, or that does not fit into memory, is refused; the others go on."""
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
                raise
            self.arms[arm.name] = replace(arm, runs={}, refused=one_line(error))

    # races and runs

    def _trainer(self, setup: Setup) -> CopyTrainer:
        trainer = CopyTrainer(setup.problem, setup.optimizer, setup.momentum, before_training=setup.before_training)
        self.cost += trainer.cost
        return trainer

    @contextlib.contextmanager
    def _counting(self, trainer: CopyTrainer) -> Iterator[None]:
        before = trainer.cost
        try:
            yield
        finally:
            self.cost += trainer.cost - before

    def _race(self, name: str, trainer: CopyTrainer, most: int, center: float | None) -> tuple[float, float]:
        """The rate that wins a race, and the loss of its best run; NaN and infinity if no rate trains."""
        if center is None and trainer.optimizer is not None:
            center = abs(largest_lr(trainer.optimizer)) or None  # a negative rate is a fault, not a place to begin
        progress = self._part(f"{name}: race of learning rates", most)
        with self._counting(trainer):
            outcome = race(
                trainer, steps=self._steps, max_steps=most, center=center, seed=self.seeds[0], progress=progress
            )
        self._done += most
        return outcome.lr, math.inf if math.isnan(outcome.lr) else last_loss(outcome.runs[outcome.best].losses)

    def _train_safely(self, name: str, trainer: CopyTrainer, rate: float) -> float:
        """The rate at which a run of full length does not diverge, tried with the first seed."""
        for _ in range(TRIES):
            self._train(name, trainer, rate, self.seeds[0])
            if math.isnan(rate) or not went_up(self.arms[name].runs[rate][self.seeds[0]]):
                return rate
            rate /= SAFER
        return rate * SAFER

    def _train(self, name: str, trainer: CopyTrainer, rate: float, seed: int) -> None:
        """Add a run to an arm."""
        arm = self.arms[name]
        if math.isnan(rate):  # the race has shown that no rate trains
            self.arms[name] = replace(arm, runs=arm.runs or {rate: {seed: Run([], 1, "no rate trains it")}})
            return
        # processor time leaves out other programs; of a GPU there is none
        clock = time.process_time if trainer.problem.device.type == "cpu" else time.perf_counter
        begin = clock()
        with self._counting(trainer):
            progress = self._part(f"{name} at lr {rate:.3g}, seed {seed}", self._steps)
            run = trainer.start(rate, seed=seed).run(self._steps, progress)
        self._done += self._steps
        runs = arm.runs | {rate: arm.runs.get(rate, {}) | {seed: run}}
        seconds = math.nan if run.final is None else (clock() - begin) / self._steps
        self.arms[name] = replace(arm, runs=runs, seconds=min(seconds, arm.seconds, key=lambda s: (math.isnan(s), s)))

    def _part(self, what: str, steps: int) -> Progress:
        begin = self._done
        return lambda _what, share: self._progress(what, min((begin + share * steps) / self._planned, 1.0))
