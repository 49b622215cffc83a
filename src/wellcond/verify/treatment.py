"""`Treatment`: what each remedy came to beside the untreated network, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Literal, NamedTuple

from wellcond.errors import OutputError
from wellcond.results import Cost, Result, Row, number, text_table
from wellcond.results.quantities import COST, FINAL_LOSS, STEPS, TRAINED_LR, TRAINING_LOSS
from wellcond.training.run import Run, averaged_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORTHWHILE = 0.01
"""A loss that is lower by less than this share of the untreated network's is no help."""


class Spread(NamedTuple):
    """The median, the smallest and the largest of some values."""

    median: float
    least: float
    greatest: float

    def __str__(self) -> str:
        middle, least, greatest = map(number, (self.median, self.least, self.greatest))
        return middle if least == greatest else f"{middle} ({least} to {greatest})"


@dataclass(frozen=True)
class Arm:
    """All runs of one remedy, or of the untreated network.

    Attributes:
        name: The remedy, or the optimizer of the untreated network.
        runs: By learning rate, then by seed.
        refused: Why the network cannot have this remedy, or None.
    """

    name: str
    runs: dict[float, dict[int, Run]] = field(default_factory=dict)
    refused: str | None = None

    def final(self, lr: float) -> Spread | None:
        """The final losses at a learning rate; None if a seed diverged there, or none was run."""
        finals = [run.final for run in self.runs.get(lr, {}).values()]
        finished = [final for final in finals if final is not None]
        if not finished or len(finished) < len(finals):
            return None
        return Spread(median(finished), min(finished), max(finished))

    @property
    def best_lr(self) -> float | None:
        """The learning rate with the lowest median final loss; None if every one diverged."""
        finals = {lr: final.median for lr in self.runs if (final := self.final(lr)) is not None}
        return min(finals, key=finals.__getitem__, default=None)

    @property
    def best_final(self) -> Spread | None:
        """The final losses at the best learning rate."""
        return None if self.best_lr is None else self.final(self.best_lr)

    def cell(self, lr: float) -> str:
        """The final losses at a learning rate as a table shows them."""
        runs = list(self.runs.get(lr, {}).values())
        if self.refused is not None:
            return "–"
        diverged = [run for run in runs if run.final is None]
        if diverged and len(diverged) == len(runs):
            return str(min(diverged, key=lambda run: run.diverged_at or 0))
        return f"{len(diverged)} of {len(runs)} diverged" if diverged else str(self.final(lr) or "")

    def steps_to(self, loss: float) -> int | None:
        """The median over seeds of the first step at which the best runs are at most `loss`; None if one never is."""
        steps = [] if self.best_lr is None else [run.steps_to(loss) for run in self.runs[self.best_lr].values()]
        reached = [step for step in steps if step is not None]
        return int(median(reached)) if reached and len(reached) == len(steps) else None

    def __str__(self) -> str:
        return f"{self.best_final} at lr {self.best_lr:g}"


@dataclass(frozen=True)
class Treatment(Result):
    """Every remedy beside the untreated network; prints as a table of medians over seeds, with a verdict.

    Attributes:
        arms: The untreated network first, then the remedies, by name.
        learning_rates: Those that were tried, ascending.
        seeds: Those that runs were made with.
        steps: The length of every run.
        lines: The code that each arm stands for, with `{lr}` in place of the learning rate.
        planned: How many runs there are to be; after an interrupt there are fewer.
        cost: Of all runs.
        notes: What else there is to know.
    """

    arms: dict[str, Arm]
    learning_rates: tuple[float, ...]
    seeds: tuple[int, ...]
    steps: int
    lines: dict[str, str]
    planned: int
    cost: Cost = field(default_factory=Cost)
    notes: tuple[str, ...] = ()

    @property
    def untreated(self) -> Arm:
        """The network as it is."""
        return next(iter(self.arms.values()))

    @property
    def best(self) -> Arm | None:
        """The remedy that helps most, the untreated network if none clearly does; None if no run finished."""
        remedy = self._best_remedy
        if self.untreated.best_final is None or (remedy is not None and self._outcome(remedy) == "helps"):
            return remedy
        return self.untreated

    @property
    def refused(self) -> dict[str, str]:
        """The remedies that the network does not allow, and why."""
        return {name: arm.refused for name, arm in self.arms.items() if arm.refused is not None}

    @property
    def finished(self) -> int:
        """How many runs were made."""
        return sum(len(runs) for arm in self.arms.values() for runs in arm.runs.values())

    @property
    def code(self) -> str:
        """The lines to write for the best arm at its best learning rate; "" if no run finished."""
        return "" if self.best is None else self.lines[self.best.name].format(lr=f"{self.best.best_lr:g}")

    @property
    def _best_remedy(self) -> Arm | None:
        """The remedy with the lowest median; None if none finished."""
        medians = {name: arm.best_final.median for name, arm in self.arms.items() if arm.best_final is not None}
        medians.pop(self.untreated.name, None)
        return self.arms[min(medians, key=medians.__getitem__)] if medians else None

    def _outcome(self, remedy: Arm) -> Literal["helps", "overlaps", "no help"]:
        """A remedy helps if its worst seed is better than the best one without it, and overlaps if its median is."""
        ours, theirs = remedy.best_final, self.untreated.best_final
        assert ours is not None
        assert theirs is not None
        if ours.median > theirs.median - WORTHWHILE * abs(theirs.median):
            return "no help"
        return "helps" if ours.greatest < theirs.least else "overlaps"

    def rows(self, step: int | None = None) -> list[Row]:
        # of the best arm; every run has rows of its own
        rows = [Row(step, "", STEPS, float(self.steps), "steps"), Row(step, "", COST, self.cost.u, "u")]
        if self.best is None or self.best.best_final is None or self.best.best_lr is None:
            return rows
        found = {TRAINED_LR: (self.best.best_lr, "lr"), FINAL_LOSS: (self.best.best_final.median, "")}
        return [*(Row(step, "", quantity, value, unit) for quantity, (value, unit) in found.items()), *rows]

    def verdict(self) -> str:
        """What the remedies bought, each at its best learning rate; no more than the spread over seeds supports."""
        plain, remedy = self.untreated, self._best_remedy
        if plain.best_final is None:
            if remedy is None:
                return "No run finished; try lower learning rates."
            return f"{remedy.name} ends lowest, at {remedy}; {plain.name} diverges at every rate."
        if remedy is None:
            return f"{plain.name} ends at {plain}; no remedy finished."
        ends = f"{plain.name} ends at {plain}, {remedy.name} at {remedy}."
        outcome = self._outcome(remedy)
        if outcome == "helps":
            if (reached := remedy.steps_to(plain.best_final.median)) is not None:
                ends += f" It reaches the loss of {plain.name} after {reached} of {self.steps} steps."
            return f"{remedy.name} helps: {ends}{self._at_the_edge(plain)}"
        if outcome == "overlaps":
            ends += f" Over {len(self.seeds)} seeds their ranges overlap; more steps or seeds may tell."
            return f"No remedy clearly helps: {ends}{self._at_the_edge(remedy)}"
        return f"No remedy helps: {ends}{self._at_the_edge(remedy)}"

    def _at_the_edge(self, loser: Arm) -> str:
        """An arm that lost at an end of the range of rates may have lost for want of a better one."""
        rates = self.learning_rates
        if len(rates) == 1 or loser.best_lr not in (rates[0], rates[-1]):
            return ""
        end, beyond = ("smallest", "smaller") if loser.best_lr == rates[0] else ("largest", "larger")
        return f" {loser.name} does best at the {end} rate tried: try {beyond} ones too."

    def figure(self) -> Figure:
        """The training loss of every arm at its best learning rate: the mean over seeds, and their range."""
        from wellcond.report.curves import training_figure

        curves = {
            f"{arm.name}, lr {arm.best_lr:g}": [
                [Row(step, "", TRAINING_LOSS, loss, "") for step, loss in zip(*run.curve(), strict=True)]
                for run in arm.runs[arm.best_lr].values()
            ]
            for arm in self.arms.values()
            if arm.best_lr is not None
        }
        if not curves:
            raise OutputError("no run finished, so there is nothing to draw.")
        window = averaged_steps(self.steps)
        return training_figure(curves, y_label=f"training loss, running mean over {window} steps")

    @property
    def title(self) -> str:
        """What the table shows."""
        over = f", median (least to greatest) of {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        return f"Loss after {self.steps} steps (mean of the last {averaged_steps(self.steps)}{over}), by learning rate"

    def __str__(self) -> str:
        body = [[f"{lr:g}", *(arm.cell(lr) for arm in self.arms.values())] for lr in self.learning_rates]
        lines = [self.title, text_table(["lr", *self.arms], body)]
        lines += [f"{name} refused: {reason}" for name, reason in self.refused.items()]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, self.verdict(), str(self.cost)])
