"""A race of learning rates: all from the same weights on the same batches, most left behind early."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch.optim import Adagrad

from wellcond.errors import Interrupted
from wellcond.results import Progress, number, text_table
from wellcond.training.run import Run
from wellcond.verify.copies import Copies, Field, Racer, Start, largest_lr
from wellcond.verify.horizon import Choice, choose, last_loss, raised

RATIO = 2.4
"""Of neighbouring rates. The loss stays within 10 % of the best over a factor of 2 to 5 on most of `benchmarks.rates`,
and a parabola through three rates finds what lies between them."""
LENGTHS, KEPT = (15, 40, 100), (5, 3)
"""Steps after which runs are compared within a budget of BUDGET, and how many neighbours go on each time."""
BUDGET = 450
"""Steps, of all runs together."""
MOST_RATES, FAR = 14, 3
"""Rates that are tried at most; and by how many ratios to go down where every one so far has diverged."""
MOST_APART = 2.0
"""Log-losses further above the lowest count as this far when neighbours are chosen."""
FALLBACK = 0.01
"""A rate to begin with where neither the optimizer nor the curvature says one."""
UP = 1.5
"""A loss that ends so many times above where it began has gone up, not merely met harder batches."""


@dataclass(frozen=True)
class Race:
    """What a race of learning rates came to.

    Attributes:
        runs: By learning rate, ascending.
        choice: The rate for `steps` steps, and the range that is as good; None if no rate trains.
        steps: The length of the run that the rate is for.
        steps_taken: By all runs together.
        status: "" or why the race ended early.
    """

    runs: dict[float, Run]
    choice: Choice | None
    steps: int
    steps_taken: int
    status: str = ""

    @property
    def lr(self) -> float:
        """The rate; nan if none trains."""
        return math.nan if self.choice is None else self.choice.lr

    @property
    def low(self) -> float:
        """The lower end of the rates that are as good; nan if none trains."""
        return math.nan if self.choice is None else self.choice.low

    @property
    def high(self) -> float:
        """The upper end of the rates that are as good, none of which diverged; nan if none trains."""
        return math.nan if self.choice is None else max(self.lr, min(self.choice.high, self.largest_trained))

    @property
    def longest(self) -> int:
        """The steps of the runs that went furthest."""
        return max((len(run.losses) for run in self.runs.values()), default=0)

    @property
    def best(self) -> float:
        """The rate of the lowest loss among the runs that went furthest; nan if none trains."""
        last = {lr: last_loss(run.losses) for lr, run in self.runs.items() if len(run.losses) == self.longest}
        return math.nan if self.choice is None else min(last, key=last.__getitem__)

    @property
    def largest_trained(self) -> float:
        """The largest rate whose run stayed finite and did not go up; nan if there is none."""
        return max((lr for lr, run in self.runs.items() if not went_up(run)), default=math.nan)

    @property
    def smallest_diverged(self) -> float:
        """The smallest rate whose loss went up or stopped being finite; infinity if there is none."""
        return min((lr for lr, run in self.runs.items() if went_up(run)), default=math.inf)

    def __str__(self) -> str:
        body = []
        for lr, run in self.runs.items():
            remark = "went up" if went_up(run) else ""
            if run.diverged_at is not None:
                remark = f"not finite at step {run.diverged_at}"
            elif len(run.losses) == self.longest and lr == self.best:
                remark = "lowest"
            elif len(run.losses) < self.longest:
                remark = remark or "left behind"
            loss = "–" if run.diverged_at is not None else number(last_loss(run.losses))
            body.append([number(lr), str(len(run.losses)), loss, remark])
        return text_table(["lr", "steps", "loss", ""], body)


def went_up(run: Run) -> bool:
    """Whether a run's loss stopped being finite, or ended clearly above where it began."""
    if run.diverged_at is not None or not run.losses:
        return True
    begin = max(run.losses[:3])
    return last_loss(run.losses) > begin + (UP - 1) * abs(begin)


def race(
    copies: Copies,
    start: Callable[[float], Start],
    *,
    steps: int,
    budget: int = BUDGET,
    centre: float | None = None,
    progress: Progress | None = None,
) -> Race:
    """Find a learning rate for a run of so many steps.

    Five rates around the centre take 15 steps; others join below or above them while the best is at an end. The five
    around the best go on to 40 steps, and three of them to 100. A parabola through their log-losses, and the law of
    `horizon`, give the rate.

    Args:
        copies: What is trained.
        start: Makes a copy of the model and its optimizer with a learning rate, as `copies.start` does.
        steps: The length of the run that the rate is for.
        budget: The steps of all runs together, about; the runs become shorter with it.
        centre: Where to begin; None: at the optimizer's own rate.
        progress: Called as (what is being done, share of all work done).

    Returns:
        The rate and the runs.

    Raises:
        Interrupted: On Ctrl-C, with the race so far as `.result`.
    """
    return _Race(copies, start, steps, budget, progress).run(centre)


class _Race:
    """Rates are centre · RATIO^k, and runs are known by k."""

    def __init__(
        self, copies: Copies, start: Callable[[float], Start], steps: int, budget: int, progress: Progress | None
    ) -> None:
        self.copies, self.start, self.steps, self.budget = copies, start, steps, budget
        self.lengths = [max(1, min(round(length * budget / BUDGET), steps)) for length in LENGTHS]
        self.report = progress or (lambda _what, _share: None)
        self.centre = FALLBACK
        self.racers: dict[int, Racer] = {}
        self.before = copies.cost

    def run(self, centre: float | None) -> Race:
        own = 0.0 if self.copies.optimizer is None else largest_lr(self.copies.optimizer)
        self.centre = centre or own or FALLBACK
        try:
            with self.copies.racing([]) as field:
                best = self._first_heat(field)
                if best is not None:
                    chosen = [best + k for k in range(-(KEPT[0] // 2), KEPT[0] // 2 + 1)]
                    self._join(field, *chosen)
                    self._advance(field, chosen, self.lengths[1] - self.lengths[0])
                    self._advance(field, self._best_block(chosen, KEPT[1]), self.lengths[2] - self.lengths[1])
        except KeyboardInterrupt as interrupt:
            raise Interrupted(self._result("interrupted")) from interrupt
        return self._result()

    def _first_heat(self, field: Field) -> int | None:
        """Bracket the best rate; None if every one diverges."""
        around = range(-(KEPT[0] // 2), KEPT[0] // 2 + 1)
        self._join(field, *around)
        self._advance(field, list(around), self.lengths[0])
        while True:
            order = sorted(self.racers)
            best = min(order, key=self._loss)
            diverged = math.isinf(self._loss(best))
            if order[0] < best < order[-1] or len(order) >= MOST_RATES:
                return None if diverged else best
            if diverged:
                self._join(field, order[0] - FAR)
            else:
                self._join(field, order[0] - 1 if best == order[0] else order[-1] + 1)

    def _join(self, field: Field, *rates: int) -> None:
        for k in rates:
            if k not in self.racers:
                self.racers[k] = field.join(*self.start(self._lr(k)))
                self._tell(f"lr {self._lr(k):.3g}")

    def _advance(self, field: Field, chosen: list[int], steps: int) -> None:
        for _ in range(steps):
            field.advance(1, [self.racers[k] for k in chosen])
            self._tell(f"{len(chosen)} rates from {self._lr(chosen[0]):.3g} to {self._lr(chosen[-1]):.3g}")

    def _tell(self, what: str) -> None:
        self.report(f"racing {what}", min(0.99, (self.copies.cost - self.before).backwards / self.budget))

    def _lr(self, k: int) -> float:
        return float(self.centre * RATIO**k)

    def _loss(self, k: int) -> float:
        racer = self.racers[k]
        return math.inf if racer.diverged_at is not None else last_loss(racer.losses)

    def _best_block(self, chosen: list[int], count: int) -> list[int]:
        """The neighbours among the chosen whose losses are lowest together."""
        losses = raised([[self._loss(k)] for k in chosen])
        logs = np.array([math.log(each[0]) if math.isfinite(each[0]) else math.inf for each in losses])
        logs = np.minimum(logs, logs.min() + MOST_APART) if math.isfinite(logs.min()) else np.zeros(len(chosen))
        first = min(range(len(chosen) - count + 1), key=lambda i: float(logs[i : i + count].sum()))
        return chosen[first : first + count]

    def _result(self, status: str = "") -> Race:
        runs = {self._lr(k): self.racers[k].run for k in sorted(self.racers)}
        taken = (self.copies.cost - self.before).backwards
        finite = {k: len(r.losses) for k, r in self.racers.items() if r.diverged_at is None and r.losses}
        if not finite:
            return Race(runs, None, self.steps, round(taken), status)
        length = max(1, max(finite.values()) - bool(status))  # some may be a step behind when interrupted
        ended = [k for k, racer in self.racers.items() if racer.diverged_at is not None]
        finalists = sorted(k for k, steps in finite.items() if steps >= length)
        finalists += [k for k in ended if k == finalists[-1] + 1]
        losses = [self.racers[k].losses[:length] for k in finalists]
        shrinks = isinstance(self.racers[finalists[0]].optimizer, Adagrad)
        choice = choose([self._lr(k) for k in finalists], losses, self.steps, shrinks=shrinks)
        return Race(runs, choice, self.steps, round(taken), status)
