"""A race of learning rates: all from the same weights on the same batches, most left behind early."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch.optim import Adagrad

from wellcond.errors import Interrupted
from wellcond.learning_rate.race.horizon import Choice, choose, last_loss
from wellcond.results import Progress, number, text_table
from wellcond.training.copies import Copies, Field, Racer, Start, largest_lr
from wellcond.training.run import Run

RATIO = 2.4
"""Of neighboring rates. The loss stays within 10 % of the best over a factor of 2 to 5 on most of `benchmarks.rates`,
and a parabola through three rates finds what lies between them."""
BUDGET = 470
"""Steps, of all runs together."""
LENGTHS, KEPT = (15, 40), (5, 3)
"""Steps after which runs are compared within such a budget, and how many neighbors go on then. The last ones take what
is left of it, 100 steps and more."""
TIE = 0.05
"""Losses of so few mini-batches that differ by less are as good. Of rates as good so early, the larger ones leave a
plateau first, the smaller ones reach a lower floor: the race goes on in between."""
MOST_RATES, FAR = 14, 3
"""Rates that are tried at most; and by how many ratios to go down where every one so far has diverged."""
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
        is_corrected: Whether the rate is for a longer run than these; without noise there is nothing to correct.
        status: "" or why the race ended early.
    """

    runs: dict[float, Run]
    choice: Choice | None
    steps: int
    steps_taken: int
    is_corrected: bool = False
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
        """The largest rate below which none has diverged; nan if there is none."""
        return max((lr for lr in self.runs if lr < self.smallest_diverged), default=math.nan)

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
    return last_loss(run.losses) > run.losses[0] + (UP - 1) * abs(run.losses[0])


def race(
    copies: Copies,
    start: Callable[[float], Start],
    *,
    steps: int,
    budget: int = BUDGET,
    center: float | None = None,
    progress: Progress | None = None,
) -> Race:
    """Find a learning rate for a run of so many steps.

    Five rates around the center take 15 steps; others join below or above while the best is at an end. The five around
    the best go on to 40 steps, and three of them share what is left. What they came to, and how the best rate moves as
    training goes on (`horizon`), give the rate.

    Args:
        copies: What is trained.
        start: Makes a copy of the model and its optimizer with a learning rate, as `copies.start` does.
        steps: The length of the run that the rate is for.
        budget: The steps of all runs together, about; the runs become shorter with it.
        center: Where to begin; None: at the optimizer's own rate.
        progress: Called as (what is being done, share of all work done).

    Returns:
        The rate and the runs.

    Raises:
        Interrupted: On Ctrl-C, with the race so far as `.result`.
    """
    return _Race(copies, start, steps, budget, progress).run(center)


class _Race:
    """Rates are center · RATIO^k, and runs are known by k."""

    def __init__(
        self, copies: Copies, start: Callable[[float], Start], steps: int, budget: int, progress: Progress | None
    ) -> None:
        self.copies, self.start, self.steps, self.budget = copies, start, steps, budget
        self.lengths = [max(1, min(round(length * budget / BUDGET), steps)) for length in LENGTHS]
        self.report = progress or (lambda _what, _share: None)
        self.center = FALLBACK
        self.racers: dict[int, Racer] = {}
        self.before = copies.cost
        self.is_noisy = copies.depend_on_seed()

    def run(self, center: float | None) -> Race:
        own = 0.0 if self.copies.optimizer is None else largest_lr(self.copies.optimizer)
        self.center = center or own or FALLBACK
        try:
            with self.copies.racing([]) as field:
                chosen = self._bracket(field, self._around(0), self.lengths[0], MOST_RATES)
                if (best := self._best(chosen)) is not None:
                    chosen = self._bracket(field, self._around(best), self.lengths[1], KEPT[0] + 1)
                    best = self._best(chosen)
                if best is not None:
                    first = min(max(chosen.index(best) - KEPT[1] // 2, 0), len(chosen) - KEPT[1])
                    field.close()
                    self._advance(field, chosen[first : first + KEPT[1]], self._last_length())
        except KeyboardInterrupt as interrupt:
            raise Interrupted(self._result("interrupted")) from interrupt
        return self._result()

    def _around(self, k: int) -> list[int]:
        return list(range(k - KEPT[0] // 2, k + KEPT[0] // 2 + 1))

    def _bracket(self, field: Field, chosen: list[int], length: int, most: int) -> list[int]:
        """Runs of one length at these rates, and at others beyond them while the best is at an end; ascending."""
        self._join(field, *chosen)
        self._advance(field, chosen, length)
        while len(chosen) < most:
            best = self._best(chosen)
            if best is None:
                chosen = [chosen[0] - FAR, *chosen]
            elif best == chosen[0]:
                chosen = [best - 1, *chosen]
            elif best == chosen[-1]:
                chosen = [*chosen, best + 1]
            else:
                break
            self._join(field, chosen[0], chosen[-1])
        return chosen

    def _best(self, chosen: list[int]) -> int | None:
        """Half way from the lowest loss to the largest rate that is as good; None if every run has diverged."""
        low = min(chosen, key=self._loss)
        lowest, high = self._loss(low), low
        if math.isinf(lowest):
            return None
        while high + 1 in chosen and self._loss(high + 1) <= lowest + TIE * abs(lowest):
            high += 1
        return (low + high + 1) // 2

    def _last_length(self) -> int:
        left = self.budget - (self.copies.cost - self.before).backwards
        return min(self.lengths[1] + max(self.lengths[0], int(left / KEPT[1])), self.steps)

    def _join(self, field: Field, *rates: int) -> None:
        for k in rates:
            if k not in self.racers:
                self._tell(f"lr {self._lr(k):.3g}")
                self.racers[k] = field.join(*self.start(self._lr(k)))

    def _advance(self, field: Field, chosen: list[int], length: int) -> None:
        """Up to a length; the runs at other rates are left behind."""
        racers = [self.racers[k] for k in chosen]
        for _ in range(length - max(len(racer.losses) for racer in racers)):
            field.advance(1, racers)
            self._tell(f"{len(chosen)} rates from {self._lr(chosen[0]):.3g} to {self._lr(chosen[-1]):.3g}")

    def _tell(self, what: str) -> None:
        self.report(f"racing {what}", min(0.99, (self.copies.cost - self.before).backwards / self.budget))

    def _lr(self, k: int) -> float:
        return float(self.center * RATIO**k)

    def _loss(self, k: int) -> float:
        racer = self.racers[k]
        return math.inf if racer.diverged_at is not None else last_loss(racer.losses)

    def _result(self, status: str = "") -> Race:
        runs = {self._lr(k): self.racers[k].run for k in sorted(self.racers)}
        taken = (self.copies.cost - self.before).backwards
        finite = {k: len(r.losses) for k, r in self.racers.items() if r.diverged_at is None and r.losses}
        if not finite:
            return Race(runs, None, self.steps, round(taken), status=status)
        length = max(1, max(finite.values()) - bool(status))  # some may be a step behind when interrupted
        ended = [k for k, racer in self.racers.items() if racer.diverged_at is not None]
        finalists = sorted(k for k, steps in finite.items() if steps >= length)
        finalists += [k for k in ended if k == finalists[-1] + 1]
        losses = [self.racers[k].losses[:length] for k in finalists]
        slows = 0.5 if isinstance(self.racers[finalists[0]].optimizer, Adagrad) else 0.0
        steps = self.steps if self.is_noisy else length
        choice = choose([self._lr(k) for k in finalists], losses, steps, slows=slows)
        return Race(runs, choice, self.steps, round(taken), steps > length, status)
