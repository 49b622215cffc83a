"""What a trial came to: the runs, a table of their final losses, and in words what the remedies bought."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import fmean

from numpy.lib.stride_tricks import sliding_window_view

from wellcond.results import Row, number, text_table

WORTH = 0.01
"""A loss that is lower by less than this share of plain SGD's is no help."""


def tenth(steps: int) -> int:
    """How many losses are averaged, so that they tell of the training and not of single batches."""
    return max(1, steps // 10)


@dataclass(frozen=True)
class Run:
    """One method at one learning rate.

    losses: of every step, in training mode, on its batch and before its update.
    diverged_at: the first step, counted from 1, whose loss was NaN or infinite; the losses end before it.
    refused: why the method cannot be had for this network.
    """

    method: str
    lr: float
    losses: list[float]
    diverged_at: int | None = None
    refused: str | None = None

    @property
    def final(self) -> float | None:
        """The mean loss of the last tenth of the steps; None if the run diverged or was refused."""
        is_finished = self.diverged_at is None and self.refused is None
        return fmean(self.losses[-tenth(len(self.losses)) :]) if is_finished else None

    def curve(self) -> tuple[list[int], list[float]]:
        """Steps, and the mean loss of the tenth of all steps that ends with each.

        >>> Run("sgd", 0.1, [float(loss) for loss in range(20, 0, -1)]).curve()[1][:3]
        [19.5, 18.5, 17.5]
        """
        window = tenth(len(self.losses))
        means = sliding_window_view(self.losses, window).mean(-1)
        return list(range(window, len(self.losses) + 1)), means.tolist()

    def steps_to(self, loss: float) -> int | None:
        """The first step at which the curve is at most `loss`; None if it never is."""
        return next((step for step, mean in zip(*self.curve(), strict=True) if mean <= loss), None)

    def __str__(self) -> str:
        if self.refused is not None:
            return "–"
        return f"diverged @ {self.diverged_at}" if self.final is None else number(self.final)


@dataclass(frozen=True)
class Trial:
    """All runs of a trial, one a method and learning rate; prints as a table with a verdict."""

    runs: list[Run]

    def rows(self) -> list[Row]:
        """The loss of every step, and of every run the final loss or the step at which it diverged."""
        rows = []
        for run in self.runs:
            of = f"({run.method}, lr={run.lr:g})"
            rows += [Row(step, "", f"training_loss{of}", loss, "") for step, loss in enumerate(run.losses, start=1)]
            if run.final is not None:
                rows.append(Row(None, "", f"trained_loss{of}", run.final, ""))
            elif run.diverged_at is not None:
                rows.append(Row(None, "", f"diverged_at{of}", float(run.diverged_at), "steps"))
        return rows

    @property
    def refused(self) -> dict[str, str]:
        """Methods that cannot be had for this network, and why."""
        return {run.method: run.refused for run in self.runs if run.refused is not None}

    @property
    def learning_rates(self) -> list[float]:
        """All that were tried, ascending."""
        return sorted({run.lr for run in self.runs})

    def table(self) -> dict[str, dict[float, Run]]:
        """Runs by method, then by learning rate."""
        table: dict[str, dict[float, Run]] = {}
        for run in self.runs:
            table.setdefault(run.method, {})[run.lr] = run
        return table

    def best(self, methods: Collection[str]) -> Run | None:
        """The run of these methods with the lowest final loss; None if none finished."""
        finished = [(run.final, run) for run in self.runs if run.method in methods and run.final is not None]
        return min(finished, key=lambda pair: pair[0])[1] if finished else None

    def verdict(self) -> str:
        """What the remedies bought over plain SGD, each at its best learning rate, in words."""
        methods = self.table()
        plain, remedy = self.best(["sgd"]), self.best([method for method in methods if method != "sgd"])
        if plain is None:
            if remedy is None:
                hint = "" if self.refused.keys() == methods.keys() else "; try lower learning rates"
                return f"No run finished{hint}."
            why = "diverged at every rate" if "sgd" in methods else "was not tried"
            return f"{remedy.method} got lowest, {_told(remedy)}; plain SGD {why}."
        if remedy is None:
            return f"Plain SGD's best loss is {_told(plain)}; no remedy finished."
        assert plain.final is not None
        assert remedy.final is not None
        if remedy.final > plain.final - WORTH * abs(plain.final):
            text = f"No remedy helps: plain SGD's best loss is {_told(plain)}, that of {remedy.method} {_told(remedy)}."
            return text + self._at_the_edge(remedy)
        return (
            f"{remedy.method} at lr {remedy.lr:g} got lowest, {remedy}: it reached plain SGD's best loss "
            f"{_told(plain)} after {remedy.steps_to(plain.final)} steps." + self._at_the_edge(plain)
        )

    def _at_the_edge(self, loser: Run) -> str:
        """A method that lost at an end of the range of rates may have lost for want of a better one."""
        rates = self.learning_rates
        if len(rates) == 1 or loser.lr not in (rates[0], rates[-1]):
            return ""
        end, beyond = ("smallest", "smaller") if loser.lr == rates[0] else ("largest", "larger")
        return f" {loser.method} did best at the {end} rate tried: try {beyond} ones too."

    def __str__(self) -> str:
        rates = self.learning_rates
        body = [[name, *(str(runs.get(lr, "")) for lr in rates)] for name, runs in self.table().items()]
        reasons = [f"{method} refused: {reason}" for method, reason in self.refused.items()]
        return "\n".join([text_table(["lr", *(f"{lr:g}" for lr in rates)], body), *reasons, self.verdict()])


def _told(run: Run) -> str:
    return f"{run} (lr {run.lr:g}, {len(run.losses)} steps)"
