"""`Treatment`: how each remedy compares with the untreated network, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from wellcond.results import Cost, Result, Row, text_table
from wellcond.results.quantities import COST, STEPS
from wellcond.training.run import averaged_steps
from wellcond.treatment.arm import Arm, Change

UNTREATED = "untreated"
RATE = "rate"
TOGETHER = " + "
"""Between the names of remedies that are applied together."""
LITTLE = 0.05
"""Few seeds have wide intervals: an arm that ends higher by more than this share of the untreated loss is worse."""
SLOWER = 1.5
"""A step that takes more than this many times as long is reported; less may be the machine."""
WORTHWHILE = 0.01
"""Smallest improvement that counts as help, as a share of the untreated network's loss."""


@dataclass(frozen=True)
class Treatment(Result):
    """Every remedy compared with the untreated network; prints its verdict and a table.

    Attributes:
        arms: Arms by name: the untreated network first, then those that were run, best first, then the others.
        seeds: Seeds of the runs.
        steps: The length of every run.
        screening_steps: The length of the runs of the screening.
        cost: Cost of everything. One u is a training step: forward and backward pass of one mini-batch.
        cost_per_arm: Steps of each arm that was run, its race of learning rates included.
        notes: What else the user should know.
        is_complete: False after an interrupt.
    """

    arms: dict[str, Arm]
    seeds: tuple[int, ...]
    steps: int
    screening_steps: int = 0
    cost: Cost = field(default_factory=Cost)
    cost_per_arm: int = 0
    notes: tuple[str, ...] = ()
    is_complete: bool = True

    @property
    def untreated(self) -> Arm:
        """The network as it is."""
        return self.arms[UNTREATED]

    @property
    def best(self) -> Arm | None:
        """The remedy that helps most, the untreated network if none does; None if no run finished.

        Of remedies that are equally good, within noise or a hundredth of the untreated loss, it is the one that most
        findings propose, and then the simplest: a better rate alone, or the fewest together.
        """
        helping = {arm.name: arm for arm in self.arms.values() if self.helps(arm)}
        lowest = _lowest(helping)
        if lowest is None:
            return self.untreated if self.untreated.best_final is not None else None
        as_good = [arm for arm in helping.values() if self._is_as_good(arm, lowest)]
        return min(as_good, key=lambda a: (-len(a.found_by), a.name != RATE, a.name.count("+"), a is not lowest))

    @property
    def random(self) -> Arm | None:
        """The remedy that was drawn at random, if one was."""
        return next((arm for arm in self.arms.values() if arm.is_random), None)

    @property
    def refused(self) -> dict[str, str]:
        """The remedies that the network does not allow, and why."""
        return {name: arm.refused for name, arm in self.arms.items() if arm.refused is not None}

    @property
    def status(self) -> str:
        """Whether all was done."""
        finished = sum(len(runs) for arm in self.arms.values() for runs in arm.runs.values())
        return "complete" if self.is_complete else f"interrupted after {finished} runs"

    @property
    def code(self) -> str:
        """The lines to write for the best arm at its learning rate; "" if nothing helps, or no run finished."""
        return "" if self.best is None else self.best.code.replace("{lr}", f"{self.best.best_lr:.3g}")

    def change(self, arm: Arm) -> Change | None:
        """An arm's final loss less that of the untreated network, over seeds; None if either diverged."""
        return arm.change_from(self.untreated)

    def helps(self, arm: Arm) -> bool:
        """Whether an arm ends clearly lower than the untreated network, or finishes where that diverges."""
        return self._beats(arm, self.untreated)

    def _beats(self, arm: Arm, other: Arm) -> bool:
        if arm.best_final is None or arm is other:
            return False
        if other.best_final is None:
            return True
        change = arm.change_from(other)
        if change is None:
            return False
        return change.high < 0 and change.mean < -WORTHWHILE * abs(other.best_final.median)

    def _is_as_good(self, arm: Arm, lowest: Arm) -> bool:
        """Whether an arm ends not clearly higher than the lowest one, or higher by less than is worth a change."""
        change = arm.change_from(lowest)
        if arm is lowest or change is None:
            return True
        most = LITTLE if change.low <= 0 else WORTHWHILE
        return change.mean < most * self._scale

    @property
    def _scale(self) -> float:
        """The untreated network's loss: the last one, or the first of any run where it diverges."""
        if self.untreated.best_final is not None:
            return abs(self.untreated.best_final.median)
        runs = [run for arm in self.arms.values() for by_seed in arm.runs.values() for run in by_seed.values()]
        return next((abs(run.losses[0]) for run in runs if run.losses), 0.0)

    def rows(self, step: int | None = None) -> list[Row]:
        """The best arm's rows; then those of every arm, with its name in place of a layer's."""
        best = [] if self.best is None else self.best.rows(step, name="")
        price = [Row(step, "", STEPS, float(self.steps), "steps"), Row(step, "", COST, self.cost.u, "u")]
        return [*best, *price, *(row for arm in self.arms.values() for row in arm.rows(step))]

    def verdict(self) -> str:
        """How far the remedies help; no more than the differences over seeds support."""
        plain, best = self.untreated, self.best
        lowest = _lowest({name: arm for name, arm in self.arms.items() if arm is not plain})
        if best is None and lowest is None:
            return "No run finished: nothing that was tried trains this network. See what wellcond diagnose says."
        if best is None or best is plain:
            ends = f"untreated it ends at {plain}"
            if lowest is None:
                return f"None of these helps: {ends}, and no remedy finished."
            verdict = f"None of these helps: {ends}, with {lowest.name} at {lowest}"
            change = self.change(lowest)
            if change is not None and change.mean < 0 <= change.high:
                return f"{verdict}, which is within the noise of {len(self.seeds)} seeds; more steps or seeds may tell."
            return f"{verdict}."
        ends = f"{best.name} helps: it ends at {best}"
        if plain.best_final is None:
            verdict = f"{ends}, where the untreated network {plain.outcome if plain.runs else 'is not finite'}."
        else:
            verdict = f"{ends}, the untreated network at {plain}."
            if (reached := best.steps_to(plain.best_final.median)) is not None:
                verdict += f" It reaches the untreated final loss after {reached} of {self.steps} steps."
        return verdict + self._controls(best)

    def _controls(self, best: Arm) -> str:
        """How the rate alone, and a remedy drawn at random, compare with the best."""
        text, rate, drawn = "", self.arms.get(RATE), self.random
        if rate is not None and rate is not best and rate.runs:
            text += f" A better rate alone ends at {rate}."
        if drawn is not None and drawn is not best and drawn.runs:
            text += f" A remedy drawn at random, {drawn.name}, ends at {drawn}."
        if not math.isnan(ratio := best.seconds / self.untreated.seconds) and ratio > SLOWER:
            text += f" A step takes {ratio:.1f} times as long."
        return text

    @property
    def title(self) -> str:
        """What the table shows."""
        over = f", median (least to greatest) of {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        return f"Loss after {self.steps} steps (mean of the last {averaged_steps(self.steps)}{over})"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings, and one line per arm that was not refused."""
        body = []
        for arm in self.arms.values():
            if arm.refused is None:
                change = self.change(arm) if arm is not self.untreated else None
                rate = "" if arm.best_lr is None else f"{arm.best_lr:.3g}"
                role = "a random remedy" if arm.is_random else ", ".join(arm.found_by)
                body.append([arm.name, rate, arm.outcome, "" if change is None else str(change), role])
        return ["", "lr", "loss", "change (95 %)", "proposed by"], body

    def __str__(self) -> str:
        is_helped = self.best is not None and self.best is not self.untreated
        lines = [self.verdict(), "", *([self.code, ""] if is_helped else []), self.title, text_table(*self.table())]
        lines += [f"{name} refused: {reason}" for name, reason in self.refused.items()]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, self.price])

    @property
    def price(self) -> str:
        """The cost, in training steps."""
        return f"cost: {self.cost.u:.4g} u (training steps); each arm that was run took {self.cost_per_arm}"


def _lowest(arms: Mapping[str, Arm]) -> Arm | None:
    """The arm with the lowest median; None if none finished."""
    medians = {name: arm.best_final.median for name, arm in arms.items() if arm.best_final is not None}
    return arms[min(medians, key=medians.__getitem__)] if medians else None
