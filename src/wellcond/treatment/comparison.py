"""`Comparison`: the arms of a treatment, screened by short races and trained with equal numbers of steps."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch.optim import Optimizer

from wellcond.diagnosis.finding import Finding
from wellcond.errors import NonFinite, Unsupported
from wellcond.learning_rate.race.race import BUDGET, LENGTHS
from wellcond.problem.problem import Problem
from wellcond.remedies.remedy import REMEDIES
from wellcond.remedies.setup import Setup
from wellcond.results import Cost, Progress
from wellcond.training.copies import Copies, inner, largest_lr
from wellcond.training.run import Run
from wellcond.treatment.arm import Arm
from wellcond.treatment.trainer import Trainer
from wellcond.treatment.treatment import RATE, UNTREATED, WORTHWHILE, Treatment

LEAST_RACE, MOST_SCREENING = 225, 900
"""Steps of all runs of a race together: no fewer, and in the screening no more. The longest run has 2/9 of them."""
RACE_BUDGET = 3
"""Of the race of an arm that is trained in full, in runs of full length."""
FINALISTS, PARTNERS, ROUNDS = 3, 3, 2
"""Arms that are trained in full; remedies that the best one is combined with, and how often more are added."""
TOGETHER = " + "
DATA = ("scale-inputs", "scale-targets")
"""Where both are unscaled neither may help alone: they are tried together, whatever each came to."""
NOTHING_TO_TREAT = "there is nothing to treat: the network has what this remedy gives, or lacks what it changes."
ONE_SEED = "the data are one batch and nothing is random, so every seed gives the same run; one was made."


class Comparison:
    """The arms of a treatment as they come to be.

    Attributes:
        notes: What else there is to know.
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
        self.notes: list[str] = []
        self._steps = steps
        self._screening_budget = min(max(steps, LEAST_RACE), MOST_SCREENING)
        self._race_budget = max(RACE_BUDGET * steps, LEAST_RACE)
        self._screening_steps = min(steps, round(LENGTHS[-1] * self._screening_budget / BUDGET))
        own = None if optimizer is None else inner(optimizer)
        self._patient = Setup(problem, own, momentum, _first_inputs(problem), steps)
        self._rates: dict[str, float] = {}
        """Those that the screening found."""
        self._proposals: dict[str, tuple[str, ...]] = {}
        self._advice = ""
        planned = (FINALISTS + 4 if named is None else named + 1) * (self._race_budget + len(seeds) * steps)
        if named is None:
            planned += (len(REMEDIES) + 1 + PARTNERS * ROUNDS) * self._screening_budget
        self._trainer = Trainer(steps, seeds, planned, progress)

    @property
    def arms(self) -> dict[str, Arm]:
        """So far, by name."""
        return self._trainer.arms

    # the stages

    def train_untreated(self) -> None:
        """The network as it is: at the rate of its optimizer, or at one that a race finds where there is none."""
        arm = Arm(UNTREATED, why="The network, its optimizer and its rate as they are.", code=self._patient.code)
        try:
            copies = self._trainer.copies(self._patient)
        except NonFinite as error:
            self.arms[UNTREATED] = replace(arm, runs={math.nan: {self._trainer.seeds[0]: Run([], 1, str(error))}})
            return
        if len(self._trainer.seeds) > 1 and not copies.depend_on_seed():
            self._trainer.seeds = self._trainer.seeds[:1]
            self.notes.append(ONE_SEED)
        self.arms[UNTREATED] = arm
        if copies.optimizer is not None:
            rate = largest_lr(copies.optimizer)
        else:
            raced, _ = self._trainer.race(copies, self._patient, UNTREATED, self._race_budget, None)
            rate = self._trainer.train_safely(UNTREATED, copies, self._patient, raced)
        for seed in self._trainer.seeds:
            if seed not in self.arms[UNTREATED].runs.get(rate, ()):
                self._trainer.train(UNTREATED, copies, self._patient, rate, seed)

    def screen(self, findings: Sequence[Finding]) -> None:
        """Every remedy that applies, by a short race of rates; then the best together with others."""
        self._propose(findings)
        for name in REMEDIES:
            self._screen(name)
        self._advice = self._advised(findings)
        for name in (TOGETHER.join(DATA), self._advice):
            if name and name not in self.arms and all(part in self.arms for part in name.split(TOGETHER)):
                self._screen(name)
        for _ in range(ROUNDS):
            ranked = self._ranked()
            if not ranked:
                return
            best = ranked[0]
            partners = [name for name in ranked[1:] if TOGETHER not in name and self._fit(best, name)][:PARTNERS]
            together = [f"{best}{TOGETHER}{name}" for name in partners]
            for name in together:
                if name not in self.arms:
                    self._screen(name)
            if not together or self._ranked()[0] == best:
                return

    def train_finalists(self) -> None:
        """A better rate alone, the best of the screening and a remedy drawn at random: all steps, every seed."""
        ranked = self._ranked()
        chosen = ranked[:FINALISTS]
        alone = next((name for name in ranked if TOGETHER not in name), None)
        if alone is not None and alone not in chosen:  # if it is as good as several together, it is to be preferred
            chosen[-1] = alone
        chosen += [name for name in (self._advice, RATE) if name not in chosen and self._is_screened(name)]
        drawn = self._drawn()
        if drawn is not None:
            self.arms[drawn] = replace(self.arms[drawn], is_random=True)
            chosen += [drawn] if drawn not in chosen else []
        self._train_all(chosen)

    def train_named(self, names: Sequence[str], findings: Sequence[Finding]) -> None:
        """These remedies, without screening."""
        self._propose(findings)
        for name in names:
            self.arms[name] = self._new(name)
        self._train_all(names)

    def treatment(self, *, is_complete: bool = True) -> Treatment:
        """What there is so far: the arms that were trained first, the best of them first."""

        def place(arm: Arm) -> tuple[bool, bool, float, float]:
            final = math.inf if arm.best_final is None else arm.best_final.median
            screened = math.inf if arm.screened is None else arm.screened
            return arm.name != UNTREATED, not arm.runs, final, screened

        arms = {arm.name: arm for arm in sorted(self.arms.values(), key=place)}
        steps, per_arm = self._steps, self._race_budget + len(self._trainer.seeds) * self._steps
        return Treatment(
            arms,
            self._trainer.seeds,
            steps,
            self._screening_steps if any(arm.screened is not None for arm in arms.values()) else 0,
            self._trainer.cost,
            per_arm,
            tuple(self.notes),
            is_complete,
        )

    def count_passes(self, cost: Cost) -> None:
        """Add the cost of a diagnosis."""
        self._trainer.cost += cost

    # one arm

    def _new(self, name: str) -> Arm:
        parts = name.split(TOGETHER)
        found_by = tuple(dict.fromkeys(rule for part in parts for rule in self._proposals.get(part, ())))
        return Arm(name, why="\n".join(REMEDIES[part].why for part in parts), found_by=found_by)

    def _screen(self, name: str) -> None:
        arm, end = self._new(name), self._trainer.done + self._screening_budget
        with self._trainer.refusing(arm):
            setup = self._treated(name, self._screening_steps)
            if setup is not None:
                copies = self._trainer.copies(setup)
                rate, loss = self._trainer.race(copies, setup, name, self._screening_budget, None)
                self._rates |= {} if math.isnan(rate) else {name: rate}
                self.arms[name] = replace(arm, screened=loss, code=setup.code)
        self._trainer.done = end

    def _train_all(self, names: Sequence[str]) -> None:
        """A race of rates for each; then all of them with one seed after the other, so that an interrupt is fair."""
        ready: dict[str, tuple[Setup, Copies, float]] = {}
        for name in names:
            with self._trainer.refusing(self.arms[name]):
                setup = self._treated(name, self._steps)
                if setup is None:
                    raise Unsupported(NOTHING_TO_TREAT)
                self.arms[name] = replace(self.arms[name], code=setup.code)
                copies = self._trainer.copies(setup)
                rate, _ = self._trainer.race(copies, setup, name, self._race_budget, self._rates.get(name))
                ready[name] = setup, copies, self._trainer.train_safely(name, copies, setup, rate)
        for seed in self._trainer.seeds[1:]:
            for name, (setup, copies, rate) in ready.items():
                if self.arms[name].refused is None:
                    with self._trainer.refusing(self.arms[name]):
                        self._trainer.train(name, copies, setup, rate, seed)

    def _treated(self, name: str, steps: int) -> Setup | None:
        """The patient with these remedies; None if one of them has nothing to treat."""
        setup: Setup | None = replace(self._patient, steps=steps)
        for part in name.split(TOGETHER):
            if setup is None:
                return None
            setup = REMEDIES[part].apply(setup)
        return setup

    # which arms

    def _propose(self, findings: Sequence[Finding]) -> None:
        rules = list(dict.fromkeys(finding.rule for finding in findings if finding.severity != "note"))
        for name, remedy in REMEDIES.items():
            if found := tuple(rule for rule in rules if rule in remedy.rules):
                self._proposals[name] = found

    def _advised(self, findings: Sequence[Finding]) -> str:
        """For each severe finding the remedy that did best in the screening, together; "" if there is none."""
        chosen: list[str] = []
        for finding in findings:
            remedies = [name for name in self._ranked() if finding.rule in self._proposals.get(name, ())]
            fitting = [name for name in remedies if not chosen or self._fit(TOGETHER.join(chosen), name)]
            if finding.severity == "severe" and fitting and not set(remedies) & set(chosen):
                chosen.append(fitting[0])
        return TOGETHER.join(chosen)

    def _is_screened(self, name: str) -> bool:
        return name in self.arms and self.arms[name].screened is not None

    def _ranked(self) -> list[str]:
        """What went through the screening, the lowest loss first; without the rate alone, which is always trained.

        Remedies together that are no better than some of them are left out.
        """
        losses = {name: arm.screened for name, arm in self.arms.items() if arm.screened is not None and name != RATE}
        finite = {name: loss for name, loss in losses.items() if math.isfinite(loss)}

        def is_needless(name: str) -> bool:
            parts = set(name.split(TOGETHER))
            fewer = [loss for other, loss in finite.items() if set(other.split(TOGETHER)) < parts]
            return any(finite[name] > loss - WORTHWHILE * abs(loss) for loss in fewer)

        return sorted((name for name in finite if not is_needless(name)), key=finite.__getitem__)

    def _fit(self, together: str, name: str) -> bool:
        """Whether a remedy can be added to others: not one that changes the same part of the training."""
        return REMEDIES[name].part not in {REMEDIES[part].part for part in together.split(TOGETHER)}

    def _drawn(self) -> str | None:
        """A remedy drawn at random, of those that no finding proposes if there are such."""
        applies = [name for name in REMEDIES if self._is_screened(name) and name != RATE]
        pool = [name for name in applies if name not in self._proposals] or applies
        draw = random.Random(f"{self._trainer.seeds[0]} {self._patient.problem.size}")  # not the same for all networks
        return draw.choice(pool) if pool else None


def _first_inputs(problem: Problem) -> Any:
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        return next(data)[1][0]
