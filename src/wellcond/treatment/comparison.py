"""`Comparison`: the arms of a treatment, screened by short races and trained with equal numbers of steps."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

from wellcond.diagnosis.finding import Finding
from wellcond.errors import WellcondError
from wellcond.remedies.remedy import REMEDIES
from wellcond.results import Progress
from wellcond.training.optimizers import largest_lr
from wellcond.treatment.arm import Arm
from wellcond.treatment.arm_job import ArmJob, Task
from wellcond.treatment.conditions import Conditions, FirstSteps
from wellcond.treatment.launching.launcher import InProcess, Launcher
from wellcond.treatment.ranking import (
    FINALISTS,
    advised,
    drawn,
    finalists,
    fits,
    not_chosen,
    parts_of,
    proposals_of,
    ranked,
)
from wellcond.treatment.treatment import TOGETHER, UNTREATED, Treatment

CANDIDATES = 2
"""Winners that are trained longer, if the first one does not hold."""
LONG_SEEDS = 2
"""Seeds of longer runs that tell whether a gain within noise is real."""
PARTNERS, ROUNDS = 3, 2
"""Remedies that the best one is combined with, and how often more are added."""
DATA = ("scale-inputs", "scale-targets")
"""Where both are unscaled neither may help alone: they are tried together, however each does alone."""
ONE_SEED = "the data are one batch and nothing is random, so every seed gives the same run; one was made."

FEW_SEEDS = "with one seed it is not known how far another would differ: intervals are of the held-out batches alone."


class Comparison:
    """Makes the arms of a treatment.

    Args:
        conditions: What all arms have in common.
        seeds: Seeds of the runs.
        named: The number of remedies that the user has named; None: all are screened.
        launcher: Runs the races and runs; None: one after the other, in this process.
        progress: Called as (what is being done, share of all work done).

    Attributes:
        arms: Arms so far, by name.
        seeds: Seeds of the runs; one if all give the same run.
        cost: Cost of everything so far. One u is a training step.
        notes: What else the user should know.
        planned: Most u that the comparison will take; infinite before `plan()`.
    """

    def __init__(
        self,
        conditions: Conditions,
        seeds: tuple[int, ...],
        named: int | None = None,
        launcher: Launcher | None = None,
        progress: Progress = lambda _what, _share: None,
    ) -> None:
        self.arms: dict[str, Arm] = {}
        self.seeds = seeds
        self.cost = conditions.cost
        self.notes: list[str] = []
        self.planned = math.inf
        self._conditions, self._named = conditions, named
        self._launcher, self._progress = launcher or InProcess(), progress
        self._rates: dict[str, float] = {}
        self._findings: Sequence[Finding] = ()
        self._proposals: dict[str, tuple[str, ...]] = {}
        self._advice = ""
        self._uninformed = 0.0
        self._long_steps = 0
        self._planned = 1.0
        self._done = 0.0
        """Steps so far, as they were planned."""

    # the stages

    def plan(self, first: FirstSteps | None) -> float:
        """How long all will take, by the first steps, which also show whether seeds matter; None: none can be taken.

        Returns:
            Seconds in one process; NaN if no step can be taken. `planned` is what it will take in u.
        """
        shared = self._conditions
        seconds, per_step = math.nan, 1.0
        if first is not None:
            seconds, per_step = first.seconds, first.per_step
            if len(self.seeds) == 1 and first.depends_on_seed:
                self.notes.append(FEW_SEEDS)
            if len(self.seeds) > 1 and not first.depends_on_seed:
                self.seeds = self.seeds[:1]
                self.notes.append(ONE_SEED)
            self._uninformed = shared.uninformed or first.loss
            self.cost += first.cost
        tasks: tuple[Task, ...] = ("begin", "repeat", "screen", "confirm")
        begun, repeated, screened, longer = (self._job(UNTREATED, task, self.seeds[0]).planned for task in tasks)
        trained = FINALISTS + 4 if self._named is None else self._named + 1
        tried = 0 if self._named is not None else len(REMEDIES) + 2 + PARTNERS * ROUNDS
        self._planned = trained * (begun + (len(self.seeds) - 1) * repeated) + tried * screened
        self._planned += max(1 + CANDIDATES, 2 * LONG_SEEDS) * longer if shared.long_steps > shared.steps else 0
        self.planned = self.cost.u + per_step * self._planned
        return self._planned * seconds

    def train_untreated(self) -> None:
        """The network as it is: at the rate of its optimizer, or at one that a race finds if there is none."""
        self.arms[UNTREATED] = self._new(UNTREATED)
        optimizer, seeds = self._conditions.optimizer, self.seeds
        if optimizer is None:
            self._run([self._job(UNTREATED, "begin", seeds[0])])
            seeds = seeds[1:]
        else:
            self._rates[UNTREATED] = largest_lr(optimizer)
        self._run([self._job(UNTREATED, "repeat", seed) for seed in seeds])

    def screen(self, findings: Sequence[Finding]) -> None:
        """Every remedy that applies, by a short race of rates; then combinations of the best with others."""
        self._findings, self._proposals = findings, proposals_of(findings)
        self._screen(list(REMEDIES))
        self._advice = advised(self.arms, findings, self._proposals)
        together = [name for name in (TOGETHER.join(DATA), self._advice) if name and name not in self.arms]
        self._screen([name for name in together if all(part in self.arms for part in parts_of(name))])
        for _ in range(ROUNDS):
            order = ranked(self.arms)
            if not order:
                return
            partners = [name for name in order[1:] if TOGETHER not in name and fits(order[0], name)][:PARTNERS]
            combinations = [f"{order[0]}{TOGETHER}{name}" for name in partners]
            self._screen([name for name in combinations if name not in self.arms])
            if not combinations or ranked(self.arms)[0] == order[0]:
                return

    def train_finalists(self) -> None:
        """The best of the screening, the findings' advice, a better rate alone and a random remedy: all steps."""
        names = finalists(self.arms, self._advice)
        seed = f"{self.seeds[0]} {self._conditions.problem.size}"  # not the same draw for all networks
        if (control := drawn(self.arms, [*self._proposals, *names], seed)) is not None:
            self.arms[control] = replace(self.arms[control], is_random=True)
            names.append(control)
        self._train_all(names)

    def train_named(self, names: Sequence[str], findings: Sequence[Finding]) -> None:
        """These remedies, without screening."""
        self._proposals = proposals_of(findings)
        for name in names:
            self.arms[name] = self._new(name)
        self._train_all(names)

    def confirm(self) -> None:
        """Longer runs of the winner and of the untreated network; of the next best one if the winner does not hold.

        If there is no winner, of the lowest arm, whose gain is within noise: it often grows, and noise does not.
        """
        if self._conditions.long_steps == self._conditions.steps:
            return
        for _ in range(CANDIDATES):
            best = self.treatment().best
            if best is None or best.name == UNTREATED or best.longer:
                break
            self._train_longer(best, self.seeds[0])
        promising = self.treatment().promising
        self._long_steps = self._conditions.long_steps
        if promising is None or self.arms[UNTREATED].longer:
            return
        for seed in self.seeds[:LONG_SEEDS]:
            self._train_longer(promising, seed)
            if not self.treatment().helps_later(self.arms[promising.name]):
                return

    def _train_longer(self, arm: Arm, seed: int) -> None:
        arms = [each for each in (self.arms[UNTREATED], arm) if seed not in each.longer and each.best_lr is not None]
        jobs = [self._job(each.name, "confirm", seed) for each in arms]
        self._run([replace(job, lr=job.arm.best_lr) for job in jobs])

    def treatment(self, *, is_complete: bool = True) -> Treatment:
        """The result so far: the arms that were trained first, the best of them first."""

        def place(arm: Arm) -> tuple[bool, bool, float, float]:
            final = math.inf if arm.best_final is None else arm.best_final.median
            screened = math.inf if arm.screened is None else arm.screened
            return arm.name != UNTREATED, not arm.runs, final, screened

        arms = {arm.name: arm for arm in sorted(self.arms.values(), key=place)}
        has_screening = any(arm.screened is not None for arm in arms.values())
        treatment = Treatment(
            arms,
            self.seeds,
            self._conditions.steps,
            self._conditions.screening_steps if has_screening else 0,
            judged_by=self._conditions.held.about,
            uninformed_loss=self._uninformed,
            long_steps=self._long_steps,
            planned=self.planned,
            cost=self.cost,
            notes=tuple(self.notes),
            is_complete=is_complete,
        )
        if not is_complete or treatment.best is None:
            return treatment
        return replace(treatment, notes=(*self.notes, *not_chosen(arms, self._findings, treatment.best)))

    # jobs

    def _new(self, name: str) -> Arm:
        if name == UNTREATED:
            return Arm(name, why="The network, its optimizer and its rate as they are.")
        parts = parts_of(name)
        rules = tuple(dict.fromkeys(rule for part in parts for rule in self._proposals.get(part, ())))
        return Arm(name, why="\n".join(REMEDIES[part].why for part in parts), found_by=rules)

    def _job(self, name: str, task: Task, seed: int) -> ArmJob:
        arm, shared = self.arms.get(name) or self._new(name), self._conditions
        return ArmJob(shared, arm, task, seed, self._rates.get(name), device=str(shared.problem.device))

    def _screen(self, names: Sequence[str]) -> None:
        order = [*self.arms, *names]
        self._run([self._job(name, "screen", self._conditions.race_seed) for name in names])
        self.arms = {name: self.arms[name] for name in order if name in self.arms}  # not as other processes ended

    def _train_all(self, names: Sequence[str]) -> None:
        """A race of rates for each; then all of them with one seed after the other, so that an interrupt is fair."""
        self._run([self._job(name, "begin", self.seeds[0]) for name in names])
        ready = [name for name in names if self.arms[name].refused is None]
        self._run([self._job(name, "repeat", seed) for seed in self.seeds[1:] for name in ready])

    def _run(self, jobs: Sequence[ArmJob]) -> None:
        """Run jobs, and keep what each of them adds to its arm."""
        planned = {job.name: job.planned for job in jobs}
        shares = dict.fromkeys(planned, 0.0)

        def tell(job: ArmJob, what: str, share: float) -> None:
            shares[job.name] = share
            done = self._done + sum(planned[name] * share for name, share in shares.items())
            self._progress(f"{job.arm.name}: {what}", min(done / self._planned, 1.0))

        with contextlib.closing(self._launcher.run(jobs, tell)) as running:
            for ended in running:
                if ended.error:
                    raise WellcondError(ended.error)
                self.cost += ended.cost
                if ended.arm is not None:
                    self._keep(ended.arm, ended.lr)
        self._done += sum(planned.values())

    def _keep(self, arm: Arm, lr: float) -> None:
        """Merge what a job returns with what others have added to its arm."""
        known = self.arms.get(arm.name, arm)
        if known.refused is not None:
            return
        runs = {} if arm.refused is not None else dict(known.runs)
        for rate, by_seed in arm.runs.items():
            runs[rate] = runs.get(rate, {}) | by_seed
        self.arms[arm.name] = replace(arm, runs=runs, longer=known.longer | arm.longer)
        self._rates[arm.name] = lr
