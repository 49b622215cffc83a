"""A race of learning rates: all from the same weights on the same batches, most dropped early."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch.optim import Adagrad

from wellcond.errors import Interrupted
from wellcond.learning_rate.race.horizon import Choice, choose, last_loss
from wellcond.results import Progress, number, text_table
from wellcond.training.copies import CopyRun, CopyTrainer, InStep
from wellcond.training.optimizers import largest_lr
from wellcond.training.run import Run

RATIO = 2.4
"""Ratio of neighboring rates. The loss stays within 10 % of the best over a factor of 2 to 5 on most of
`benchmarks.rates`, and a parabola through three rates finds what lies between them."""
MAX_STEPS = 470
"""Steps of all runs together."""
LENGTHS, SURVIVORS = (15, 40), (5, 3)
"""Steps after which runs are compared, where all together may take `MAX_STEPS`; and how many neighbors go on then. The
last three share the remaining steps, 100 and more each."""
TIE = 0.05
"""Losses of few mini-batches that differ by less are equally good. Of rates that are equally good so early, the larger
ones leave a plateau first, the smaller ones reach a lower floor: the race goes on in between."""
MOST_RATES, FAR = 14, 3
"""The largest number of rates to try; and by how many ratios to go down where every rate so far has diverged."""
FALLBACK = 0.01
"""The first rate where neither the optimizer nor the curvature gives one."""
UP = 1.5
"""A loss that ends this many times above where it began has gone up, not merely met harder batches."""


@dataclass(frozen=True)
class Race:
    """The outcome of a race of learning rates.

    Attributes:
        runs: Runs by learning rate, ascending.
        choice: The rate for `steps` steps, and the range of rates that are equally good; None if no rate trains.
        steps: The length of the run that the rate is for.
        steps_taken: Steps of all runs together.
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
        """The lower end of the rates that are equally good; nan if none trains."""
        return math.nan if self.choice is None else self.choice.low

    @property
    def high(self) -> float:
        """The upper end of the rates that are equally good, none of which diverged; nan if none trains."""
        return math.nan if self.choice is None else max(self.lr, min(self.choice.high, self.largest_trained))

    @property
    def longest(self) -> int:
        """The number of steps of the longest runs."""
        return max((len(run.losses) for run in self.runs.values()), default=0)

    @property
    def best(self) -> float:
        """The rate with the lowest loss among the longest runs; nan if none trains."""
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
                remark = remark or "dropped"
            loss = "–" if run.diverged_at is not None else number(last_loss(run.losses))
            body.append([number(lr), str(len(run.losses)), loss, remark])
        return text_table(["lr", "steps", "loss", ""], body)


def went_up(run: Run) -> bool:
    """Whether a run's loss stopped being finite, or ended clearly above where it began."""
    if run.diverged_at is not None or not run.losses:
        return True
    return last_loss(run.losses) > run.losses[0] + (UP - 1) * abs(run.losses[0])


def race(
    trainer: CopyTrainer,
    *,
    steps: int,
    max_steps: int = MAX_STEPS,
    center: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Race:
    """Find a learning rate for a run of this many steps.

    Five rates around the center take 15 steps; others join below or above while the best is at an end. The five around
    the best go on to 40 steps, and three of them share the remaining steps. Their losses, and how the best rate moves
    as training goes on (`horizon`), give the rate.

    Args:
        trainer: It trains the copies.
        steps: The length of the run that the rate is for.
        max_steps: The steps of all runs together, about; with fewer, each run is shorter.
        center: The rate to begin with; None: the optimizer's own rate.
        seed: As in `CopyTrainer.start`.
        progress: Called as (what is being done, share of all work done).

    Returns:
        The rate and the runs.

    Raises:
        Interrupted: On Ctrl-C, with the race so far as `.result`.
    """
    return _Race(trainer, steps, max_steps, seed, progress).run(center)


class _Race:
    """Rates are center · RATIO^k, and runs are known by k."""

    def __init__(self, trainer: CopyTrainer, steps: int, max_steps: int, seed: int, progress: Progress | None) -> None:
        self.trainer, self.steps, self.max_steps, self.seed = trainer, steps, max_steps, seed
        self.lengths = [max(1, min(round(length * max_steps / MAX_STEPS), steps)) for length in LENGTHS]
        self.report = progress or (lambda _what, _share: None)
        self.center = FALLBACK
        self.runs: dict[int, CopyRun] = {}
        self.before = trainer.cost
        self.is_noisy = trainer.depends_on_seed()

    def run(self, center: float | None) -> Race:
        own = 0.0 if self.trainer.optimizer is None else largest_lr(self.trainer.optimizer)
        self.center = center or own or FALLBACK
        try:
            with self.trainer.in_step(self.seed) as field:
                self._race(field)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(self._result("interrupted")) from interrupt
        return self._result()

    def _race(self, field: InStep) -> None:
        rates = self._bracket(field, self._around(0), self.lengths[0], MOST_RATES)
        if (best := self._best(rates)) is None:
            return
        rates = self._bracket(field, self._around(best), self.lengths[1], SURVIVORS[0] + 1)
        if (best := self._best(rates)) is None:
            return
        first = min(max(rates.index(best) - SURVIVORS[1] // 2, 0), len(rates) - SURVIVORS[1])
        field.close()
        self._advance(field, rates[first : first + SURVIVORS[1]], self._last_length())

    def _around(self, k: int) -> list[int]:
        return list(range(k - SURVIVORS[0] // 2, k + SURVIVORS[0] // 2 + 1))

    def _bracket(self, field: InStep, rates: list[int], length: int, most: int) -> list[int]:
        """Runs of one length at these rates, and at others beyond them while the best is at an end; ascending."""
        self._join(field, *rates)
        self._advance(field, rates, length)
        while len(rates) < most:
            best = self._best(rates)
            if best is None:
                rates = [rates[0] - FAR, *rates]
            elif best == rates[0]:
                rates = [best - 1, *rates]
            elif best == rates[-1]:
                rates = [*rates, best + 1]
            else:
                break
            self._join(field, rates[0], rates[-1])
        return rates

    def _best(self, rates: list[int]) -> int | None:
        """Half way from the lowest loss to the largest rate that is equally good; None if every run has diverged."""
        low = min(rates, key=self._loss)
        lowest, high = self._loss(low), low
        if math.isinf(lowest):
            return None
        while high + 1 in rates and self._loss(high + 1) <= lowest + TIE * abs(lowest):
            high += 1
        return (low + high + 1) // 2

    def _last_length(self) -> int:
        left = self.max_steps - self._steps_taken
        return min(self.lengths[1] + max(self.lengths[0], int(left / SURVIVORS[1])), self.steps)

    def _join(self, field: InStep, *rates: int) -> None:
        for k in rates:
            if k not in self.runs:
                self._tell(f"lr {self._lr(k):.3g}")
                self.runs[k] = self.trainer.start(self._lr(k), seed=self.seed)
                field.join(self.runs[k])

    def _advance(self, field: InStep, rates: list[int], length: int) -> None:
        """Train these runs up to a length; those at other rates are dropped."""
        for k in self.runs.keys() - set(rates):
            self.runs[k].release()
        runs = [self.runs[k] for k in rates]
        for _ in range(length - max(len(run.losses) for run in runs)):
            field.advance(runs)
            self._tell(f"{len(rates)} rates from {self._lr(rates[0]):.3g} to {self._lr(rates[-1]):.3g}")

    def _tell(self, what: str) -> None:
        self.report(f"racing {what}", min(0.99, self._steps_taken / self.max_steps))

    @property
    def _steps_taken(self) -> float:
        return (self.trainer.cost - self.before).backwards

    def _lr(self, k: int) -> float:
        return float(self.center * RATIO**k)

    def _loss(self, k: int) -> float:
        run = self.runs[k]
        return math.inf if run.diverged_at is not None else last_loss(run.losses)

    def _result(self, status: str = "") -> Race:
        runs = {self._lr(k): self.runs[k].as_run for k in sorted(self.runs)}
        lengths = {k: len(run.losses) for k, run in self.runs.items() if run.diverged_at is None and run.losses}
        if not lengths:
            return Race(runs, None, self.steps, round(self._steps_taken), status=status)
        length = max(1, max(lengths.values()) - bool(status))  # some may be a step short when interrupted
        finalists = sorted(k for k, steps in lengths.items() if steps >= length)
        next_larger = self.runs.get(finalists[-1] + 1)
        if next_larger is not None and next_larger.diverged_at is not None:
            finalists.append(finalists[-1] + 1)
        losses = [self.runs[k].losses[:length] for k in finalists]
        slows = 0.5 if isinstance(self.runs[finalists[0]].optimizer, Adagrad) else 0.0
        steps = self.steps if self.is_noisy else length
        choice = choose([self._lr(k) for k in finalists], losses, steps, slows=slows)
        return Race(runs, choice, self.steps, round(self._steps_taken), steps > length, status)
