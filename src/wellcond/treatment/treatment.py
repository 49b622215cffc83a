"""`Treatment`: how each remedy compares with the untreated network, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from wellcond.results import Cost, Result, Row, number, text_table
from wellcond.results.quantities import COST, STEPS
from wellcond.results.text import sentence
from wellcond.treatment.arm import Arm, Change
from wellcond.treatment.prices import median_of, price_table, unbeaten

UNTREATED = "untreated"
RATE = "rate"
TOGETHER = " + "
"""Between the names of remedies that are applied together."""
MORE_SEEDS = 20
"""Four times the default, which halves the noise of seeds: whether a gain within noise is real then shows."""
LITTLE = 0.05
"""Few seeds have wide intervals: an arm that ends higher by more than this share of the untreated loss is worse."""
SLOWER = 1.5
"""A step that takes more than this many times as long is reported; less may be the machine."""
PRICES = "What a lower loss costs: arms that no other beats in loss, time and memory at once"
OF_LONGER = 0.2
"""Share of the 5 % of treatments that may call an arm helpful by chance: that of the longer runs. Where these matter,
differences have grown."""
WORTHWHILE = 0.01
"""Smallest improvement that counts as help, as a share of the loss of an uninformed answer, or of the untreated
network's if that is higher: of a regression, a hundredth of the variance."""


@dataclass(frozen=True)
class Treatment(Result):
    """Every remedy compared with the untreated network; prints its verdict and a table.

    Attributes:
        arms: Arms by name: the untreated network first, then those that were run, best first, then the others.
        seeds: Seeds of the runs.
        steps: The length of every run.
        screening_steps: The length of the runs of the screening.
        cost: Cost of everything. One u is a training step: forward and backward pass of one mini-batch.
        planned: Most u that it was to take, as said before it began.
        judged_by: Which data the losses are of.
        long_steps: The length of the runs that have confirmed the best; 0 if there are none.
        uninformed_loss: Loss of the best answer that is the same for all examples, or of the network before training
            where that is not known.
        notes: What else the user should know.
        is_complete: False after an interrupt.
    """

    arms: dict[str, Arm]
    seeds: tuple[int, ...]
    steps: int
    screening_steps: int = 0
    cost: Cost = field(default_factory=Cost)
    planned: float = math.inf
    judged_by: str = ""
    uninformed_loss: float = 0.0
    long_steps: int = 0
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
        eligible = [arm for arm in self.arms.values() if not arm.is_random]
        helping = {arm.name: arm for arm in eligible if self._is_lower(arm)}
        lowest = _lowest(helping)
        if lowest is None:
            return self.untreated if self.untreated.best_final is not None else None
        as_good = [arm for arm in helping.values() if self._is_as_good(arm, lowest)]
        return min(as_good, key=lambda a: (-len(a.found_by), a.name != RATE, a.name.count("+"), a is not lowest))

    def _is_lower(self, arm: Arm) -> bool:
        return (self.helps(arm) and self.holds(arm)) or self.helps_later(arm)

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

    @property
    def promising(self) -> Arm | None:
        """The lowest arm, if it ends lower than the untreated network by more than a little, and may by chance."""
        if self.fits or self.best is not self.untreated:
            return None
        lowest = _lowest({arm.name: arm for arm in self.arms.values() if not arm.is_random})
        change = None if lowest is None else self.change(lowest)
        is_lower = change is not None and change.high >= 0 and change.mean < -WORTHWHILE * self._scale
        return lowest if is_lower else None

    def change(self, arm: Arm) -> Change | None:
        """An arm's loss less that of the untreated network; the intervals of all arms hold together.

        None if either diverged.
        """
        return arm.change_from(self.untreated, comparisons=self._compared / (1 - OF_LONGER))

    def longer_change(self, arm: Arm) -> Change | None:
        """The same after the longer runs; None if there are none.

        Any arm might have had them, because of its loss on the same held-out data, so that all of them are compared.
        """
        return arm.longer_change_from(self.untreated, comparisons=self._compared / OF_LONGER)

    @property
    def _compared(self) -> int:
        return max(sum(bool(arm.runs) for arm in self.arms.values() if arm is not self.untreated), 1)

    def helps(self, arm: Arm) -> bool:
        """Whether an arm ends clearly lower than the untreated network, or finishes where that diverges."""
        if arm.best_final is None or arm is self.untreated:
            return False
        if self.untreated.best_final is None:
            return True
        change = self.change(arm)
        return change is not None and change.high < 0 and change.mean < -WORTHWHILE * self._scale

    def holds(self, arm: Arm) -> bool:
        """Whether an arm still ends lower in a longer run; True for all where there are none yet."""
        end, plain = arm.longer_end, self.untreated.longer_end
        if end is None:
            return not self.long_steps
        return math.isfinite(end) and (plain is None or not math.isfinite(plain) or self._is_gain(plain - end, plain))

    def helps_later(self, arm: Arm) -> bool:
        """Whether an arm whose gain is within noise ends clearly lower in the longer runs, or alone finishes them."""
        end, plain = arm.longer_end, self.untreated.longer_end
        if end is None or plain is None or arm is self.untreated or not math.isfinite(end):
            return False
        if not math.isfinite(plain):
            return True
        change = self.longer_change(arm)
        return change is not None and change.high < 0 and self._is_gain(-change.mean, plain)

    def _is_gain(self, gain: float, plain: float) -> bool:
        return gain > WORTHWHILE * max(abs(plain), abs(self.uninformed_loss))

    @property
    def fits(self) -> bool:
        """Whether the untreated network's loss is so low that nothing could gain enough to matter."""
        final = self.untreated.best_final
        return final is not None and 0 <= final.median < WORTHWHILE * abs(self.uninformed_loss)

    def _is_as_good(self, arm: Arm, lowest: Arm) -> bool:
        """Whether an arm ends not clearly higher than the lowest one, or higher by less than is worth a change."""
        change = arm.change_from(lowest)
        if arm is lowest or change is None:
            return True
        most = LITTLE if change.low <= 0 else WORTHWHILE
        return change.mean < most * self._scale

    @property
    def _scale(self) -> float:
        """The larger of the untreated network's loss and that of an uninformed answer, of which gains are shares.

        Where the untreated network diverges it is the first loss of any run.
        """
        if self.untreated.best_final is not None:
            return max(abs(self.untreated.best_final.median), abs(self.uninformed_loss))
        runs = [run for arm in self.arms.values() for by_seed in arm.runs.values() for run in by_seed.values()]
        return next((abs(run.losses[0]) for run in runs if run.losses), 0.0)

    def rows(self, step: int | None = None) -> list[Row]:
        """The best arm's rows; then those of every arm, with its name in place of a layer's."""
        best = [] if self.best is None else self.best.rows(step, name="")
        price = [Row(step, "", STEPS, float(self.steps), "steps"), Row(step, "", COST, self.cost.u, "u")]
        return [*best, *price, *(row for arm in self.arms.values() for row in arm.rows(step))]

    def verdict(self) -> str:
        """How far the remedies help; no more than the differences over seeds and held-out batches support."""
        return self._verdict() if self.is_complete else f"{sentence(self.status)} So far: {self._verdict()}"

    def _verdict(self) -> str:
        plain, best = self.untreated, self.best
        lowest = _lowest({name: arm for name, arm in self.arms.items() if arm is not plain})
        if best is None and lowest is None:
            return "No run finished: nothing that was tried trains this network. See what wellcond diagnose says."
        if best is None or best is plain:
            return self._nothing_helps(lowest)
        ends = f"{best.name} helps: it ends at {best}"
        if plain.best_final is None:
            verdict = f"{ends}, where the untreated network {plain.outcome if plain.runs else 'is not finite'}."
        else:
            verdict = f"{ends}, the untreated network at {plain}."
            if plain.training is not None and (reached := best.steps_to(plain.training.median)) is not None:
                verdict += f" It reaches the untreated network's training loss after {reached} of {self.steps} steps."
        if best.longer:
            verdict += f" After {self.long_steps} steps it is at {_end(best)}, the untreated network at {_end(plain)}."
        if not self.helps(best):
            verdict += f" Only these longer runs tell it from noise: {self.longer_change(best)}."
        return verdict + self._controls(best)

    def _nothing_helps(self, lowest: Arm | None) -> str:
        ends = f"untreated it ends at {self.untreated}"
        if self.fits:
            share = 100 * median_of(self.untreated) / abs(self.uninformed_loss)
            return f"Nothing helps, and nothing has to: {ends}, {share:.2g} % of what an uninformed answer has."
        longer = next((arm for arm in self.arms.values() if arm.longer and arm is not self.untreated), None)
        later = ""
        if longer is not None:
            later = f"after {self.long_steps} steps at {_end(self.untreated)}, with {longer.name} at {_end(longer)}"
        if longer is not None and self.helps(longer):
            return f"None of these helps for long: {ends}, with {longer.name} at {longer}, but {later}."
        if lowest is None and not self.is_complete:
            return f"{ends}, and no remedy has been trained in full.{self._screened()}"
        if lowest is None:
            return f"None of these helps: {ends}, and no remedy finished."
        why = self._why_no_help(lowest)
        return f"None of these helps: {ends}, with {lowest.name} at {lowest}{why}{later and f'; {later}'}."

    def _screened(self) -> str:
        """Which arm did best in the screening; "" if none went through it."""
        screened = {arm.name: arm.screened for arm in self.arms.values() if arm.screened is not None}
        if not any(map(math.isfinite, screened.values())):
            return ""
        name = min(screened, key=screened.__getitem__)
        return f" In the screening, of {self.screening_steps} steps, {name} is lowest: {number(screened[name])}."

    def _why_no_help(self, lowest: Arm) -> str:
        """Why the lowest arm does not help although it ends lower, and what would tell more; "" if it does not."""
        change = self.change(lowest)
        if change is None or change.mean >= 0:
            return ""
        if change.high >= 0 and len(self.seeds) == 1:
            return ", which is within the noise of the held-out data; more of them (validation=) or more steps may tell"
        if change.high >= 0:
            fresh = max(self.seeds) + 1
            again = f"remedies=[{lowest.name!r}], seeds=range({fresh}, {fresh + MORE_SEEDS})"
            return f", which is within noise; fewer arms and more seeds would tell: {again}"
        if not self.helps(lowest):
            return ", which is too little to matter"
        return f", a remedy drawn at random, which never wins; remedies=[{lowest.name!r}] tries it for itself"

    def _controls(self, best: Arm) -> str:
        """How the rate alone, and a remedy drawn at random, compare with the best."""
        text, rate, drawn = "", self.arms.get(RATE), self.random
        if rate is not None and rate is not best and rate.runs:
            text += f" A better rate alone ends at {rate}."
        if drawn is not None and drawn.runs:
            text += f" A remedy drawn at random, {drawn.name}, ends at {drawn}."
        if not math.isnan(ratio := best.seconds / self.untreated.seconds) and ratio > SLOWER:
            text += f" A step takes {ratio:.1f} times as long."
        return text

    @property
    def title(self) -> str:
        """What the table shows."""
        over = f", median (least to greatest) of {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        of = f" of {self.judged_by}" if self.judged_by else ""
        return f"Loss{of} after at most {self.steps} steps{over}"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings, and one line per arm that was not refused."""
        body = []
        for arm in self.arms.values():
            if arm.refused is None:
                change = self.change(arm) if arm is not self.untreated else None
                rate = "" if arm.best_lr is None else f"{arm.best_lr:.3g}"
                role = "control (random)" if arm.is_random else ", ".join(arm.found_by)
                shown = "" if change is None else str(change)
                training = "" if arm.training is None else number(arm.training.median)
                body.append([arm.name, rate, arm.outcome, shown, training, role])
        return ["", "lr", "loss", "change (95 %)", "training loss", "proposed by"], body

    @property
    def pareto(self) -> list[Arm]:
        """The arms that no other one beats in loss, time of a step and memory at once; the lowest loss first."""
        return unbeaten(list(self.arms.values()), least_gain=WORTHWHILE * self._scale, slower=SLOWER)

    def prices(self) -> tuple[list[str], list[list[str]]]:
        """Headings, and what each arm of `pareto` gains and costs, and the untreated network."""
        return price_table(self.pareto, self.untreated)

    def __str__(self) -> str:
        is_helped = self.best is not None and self.best is not self.untreated
        lines = [self.verdict(), "", *([self.code, ""] if is_helped else []), self.title, text_table(*self.table())]
        if (priced := self.prices())[1]:
            lines += ["", PRICES, text_table(*priced)]
        lines += [f"{name} refused: {reason}" for name, reason in self.refused.items()]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, self.price])

    @property
    def price(self) -> str:
        """The cost, in training steps."""
        planned = f", of at most {self.planned:,.0f} planned" if math.isfinite(self.planned) else ""
        return f"cost: {self.cost.u:,.0f} u (training steps){planned}"


def _end(arm: Arm) -> str:
    """The loss of the longer runs, as a sentence has it."""
    return number(arm.longer_end) if arm.longer_end is not None and math.isfinite(arm.longer_end) else "no finite loss"


def _lowest(arms: Mapping[str, Arm]) -> Arm | None:
    """The arm with the lowest median; None if none finished."""
    medians = {name: arm.best_final.median for name, arm in arms.items() if arm.best_final is not None}
    return arms[min(medians, key=medians.__getitem__)] if medians else None
