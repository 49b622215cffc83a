"""What a longer race would find: the race of `suggest_lr` on the sweep's own curves, where a step costs nothing.

python -m benchmarks.rates.replay --curves curves.npz      # a minute

And what no race can find: the choice between all 22 rates of the sweep after some steps, for a run that is longer.

The race begins at the script's own rate and at its neighbors in the sweep, without the curvature. Its rates are within
1 % of every second of the sweep's. Its runs see the batches on which the rate is judged, so that it does a little
better than `suggest_lr` does. Every answer is checked to lie between rates whose runs finished.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import product, repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from benchmarks.rates.judging import Judge
from benchmarks.rates.sweep import ALL, LENGTHS, SEEDS
from wellcond.learning_rate.race.horizon import choose, last_losses
from wellcond.learning_rate.race.outcome import Race, went_up
from wellcond.learning_rate.race.race import drift_of, race
from wellcond.results import Cost
from wellcond.results.run import Run
from wellcond.training.copy_trainer import CopyTrainer

PRICES = (500, 1000)
LENGTHS_OF_ALL = (90, 300)
"""Steps after which all rates of the sweep are compared."""
PLACES = (-1, 0, 1)
"""Where the race begins, in rates of the sweep from the script's own."""


class Recorded:
    """Stands in for `CopyTrainer`: its runs are read from curves, one per rate of the sweep."""

    def __init__(self, name: str, curves: Sequence[Any], place: int) -> None:
        self.rates, self.curves = ALL[name].rates, curves
        own = self.rates[min(max(self.nearest(ALL[name].own) + place, 0), len(self.rates) - 1)]
        self.optimizer = ALL[name].optimizer([torch.nn.Parameter(torch.zeros(1))], lr=own)
        self.cost = Cost()

    def depends_on_seed(self) -> bool:
        return True

    @contextmanager
    def batches(self, _seed: int) -> Iterator[Iterator[None]]:
        yield repeat(None)

    def nearest(self, lr: float) -> int:
        """The index of the sweep's rate, also beyond both ends."""
        return round(math.log(lr / self.rates[0]) / math.log(self.rates[1] / self.rates[0]))

    def start(self, lr: float, seed: int) -> RecordedRun:
        """The curve of the nearest rate; above all of them none is finite."""
        above, nearest = np.full(1, np.nan), self.nearest(lr)
        return RecordedRun(above if nearest >= len(self.curves) else self.curves[max(nearest, 0)], self)


@dataclass(eq=False)
class RecordedRun:
    """In place of a `CopyRun`."""

    curve: Any
    trainer: Recorded
    losses: list[float] = field(default_factory=list)
    diverged_at: int | None = None

    @property
    def as_run(self) -> Run:
        return Run(tuple(self.losses), self.diverged_at)

    @property
    def optimizer(self) -> Any:
        return self.trainer.optimizer

    def training(self) -> AbstractContextManager[None]:
        return nullcontext()

    def step(self, _batch: None) -> None:
        if self.diverged_at is None:
            self.trainer.cost += Cost(1, 1)
            loss = float(self.curve[min(len(self.losses), len(self.curve) - 1)])
            if math.isfinite(loss):
                self.losses.append(loss)
            else:
                self.diverged_at = len(self.losses) + 1

    def best_constant(self, _batches: Any) -> None:
        return None

    def release(self) -> None:
        pass


def curves_of(stored: dict[str, Any], name: str, seed: int) -> list[Any]:
    """The losses of every rate, 2000 where it was trained as long and 400 otherwise."""
    short, long = stored[f"{name}/{seed}/400"], stored.get(f"{name}/{seed}/2000")
    is_long = [long is not None and bool(np.isfinite(long[i, 0])) for i in range(len(short))]
    return [long[i] if is_long[i] else short[i] for i in range(len(short))]


def check_support(outcome: Race) -> None:
    """The answer lies between rates whose runs finished, and below any above the best whose loss went up."""
    if outcome.choice is not None:
        assert (
            min(outcome.finished) * 0.999 <= outcome.low <= outcome.lr <= outcome.high <= max(outcome.finished) * 1.001
        )
        assert outcome.lr < outcome.smallest_diverged


def choice_of_all(name: str, curves: Sequence[Any], length: int, steps: int) -> float:
    """The rate that is chosen for some steps if every rate of the sweep is trained for fewer; nan if all diverge."""
    recorded = Recorded(name, curves, 0)
    runs = {lr: Run(tuple(curve[:length])) for lr, curve in zip(recorded.rates, curves, strict=True)}
    finished = {lr: last_losses(run.losses) for lr, run in runs.items() if np.isfinite(run.losses).all()}
    finished = {lr: losses for lr, losses in finished.items() if not went_up(runs[lr])}
    times = max(1.0, steps / length)
    return choose(finished, times=times, drift=drift_of(recorded.optimizer)).lr if finished else math.nan


def report(what: str, ratios: Any) -> None:
    """Print how often a rate is how good."""
    ratios = np.array(ratios)
    ten, twenty, above = (100 * np.mean(some) for some in (ratios <= 1.1, ratios <= 1.2, ratios > 1.5))
    counts = f"{ten:.0f} % within 10 %, {twenty:.0f} % within 20 %, {above:.0f} % above 1.5"
    print(f"{what}, {len(ratios)} cases: {counts}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, required=True)
    stored = dict(np.load(parser.parse_args().curves))
    judge = Judge(stored)
    for steps in LENGTHS:
        every = [
            (name, curves_of(stored, name, seed))
            for name in ALL
            for seed in SEEDS
            if judge.knows(name, seed, steps) and f"{name}/{seed}/400" in stored
        ]
        for price in PRICES:
            ratios = []
            for (name, curves), place in product(every, PLACES):
                outcome = race(cast(CopyTrainer, Recorded(name, curves, place)), steps=steps, max_steps=price)
                check_support(outcome)
                ratios.append(judge.ratio(name, steps, outcome.lr))
            report(f"{steps} steps, races of {price} u", ratios)
        for length in LENGTHS_OF_ALL:
            chosen = [(name, choice_of_all(name, curves, length, steps)) for name, curves in every]
            report(
                f"{steps} steps, all 22 rates for {length} steps", [judge.ratio(name, steps, lr) for name, lr in chosen]
            )


if __name__ == "__main__":
    main()
