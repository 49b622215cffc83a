"""What a longer race would find: the race of `suggest_lr` on the sweep's own curves, where a step costs nothing.

python -m benchmarks.rates.replay --curves curves.npz      # after `python -m benchmarks.rates`, in a minute

It is placed as on the benchmark, and a ratio of the sweep's rates lower and higher. The rates of the race are within
1 % of every second of the sweep's. Its runs see the batches on which the rate is judged, so that it does a little
better than `suggest_lr` does.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.optim import SGD

from benchmarks.rates.__main__ import FLOOR, HORIZONS, MOST, _read_off, final, smoothed
from benchmarks.rates.methods import GUESS
from benchmarks.rates.sweep import ALL, SEEDS
from wellcond.learning_rate.race.race import MAX_STEPS, race
from wellcond.learning_rate.race.suggest_lr import ADAPTIVE_SHARE
from wellcond.results import Cost
from wellcond.training.copies import CopyTrainer
from wellcond.training.run import Run

LONGER = (1, 2, 4, 8)
"""Times the steps of a race."""
PLACES = (-1, 0, 1)


class Recorded:
    """In place of `CopyTrainer` and its `InStep`: the runs are read off curves, of (rates, steps)."""

    def __init__(self, name: str, curves: Any) -> None:
        self.task, self.curves = ALL[name], curves
        self.optimizer = self.task.optimizer([torch.nn.Parameter(torch.zeros(1))], lr=GUESS)
        self.cost, self.taken = Cost(), 0

    def depends_on_seed(self) -> bool:
        return True

    @contextmanager
    def in_step(self, _seed: int) -> Iterator[Recorded]:
        yield self

    def nearest(self, lr: float) -> int:
        """The index of the sweep's rate, also beyond both ends."""
        return round(math.log(lr / self.task.rates[0]) / math.log(self.task.rates[1] / self.task.rates[0]))

    def start(self, lr: float, seed: int) -> RecordedRun:
        """The curve of the nearest rate; above all of them none is finite."""
        above, nearest = np.full(self.curves.shape[1], np.nan), self.nearest(lr)
        curve = above if nearest >= len(self.curves) else self.curves[max(nearest, 0)]
        return RecordedRun(curve, self.optimizer)

    def join(self, run: RecordedRun) -> None:
        for _ in range(self.taken):
            self._step(run)

    def advance(self, runs: Collection[RecordedRun]) -> None:
        for run in runs:
            self._step(run)
        self.taken += 1

    def close(self) -> None:
        pass

    def _step(self, run: RecordedRun) -> None:
        if run.diverged_at is None:
            self.cost += Cost(1, 1)
            loss = float(run.curve[len(run.losses)])
            if math.isfinite(loss):
                run.losses.append(loss)
            else:
                run.diverged_at = len(run.losses) + 1


@dataclass
class RecordedRun:
    """In place of a `CopyRun`."""

    curve: Any
    optimizer: Any
    losses: list[float] = field(default_factory=list)
    diverged_at: int | None = None

    @property
    def as_run(self) -> Run:
        return Run(tuple(self.losses), self.diverged_at)

    def release(self) -> None:
        pass


def center(recorded: Recorded, half: float | None) -> float:
    """Where `suggest_lr` begins, from half of the measured limit."""
    if half is None:
        return GUESS
    if not isinstance(recorded.optimizer, SGD):
        return ADAPTIVE_SHARE * 2 * half
    momentum = recorded.optimizer.param_groups[0]["momentum"]
    return float(2 * half * (1 - momentum) / (1 + momentum))


def ratio(name: str, curves: dict[str, Any], steps: int, max_steps: int, place: int, halves: dict[Any, Any]) -> float:
    """The loss at the rates that the race finds over the lowest, read off the smoothed sweep; the mean over seeds."""
    seeds = [s for s in SEEDS if curves[f"{name}/{s}"].shape[1] >= steps]
    first = float(np.mean([curves[f"{name}/{s}"][0, :3].mean() for s in seeds]))
    sweep = np.mean([final(curves[f"{name}/{s}"], steps) for s in seeds], 0)
    rates, found = ALL[name].rates, []
    for seed in seeds:
        recorded = Recorded(name, curves[f"{name}/{seed}"])
        index = recorded.nearest(center(recorded, halves[name, seed])) + place
        begin = rates[0] * (rates[1] / rates[0]) ** index
        found.append(race(cast(CopyTrainer, recorded), steps=steps, max_steps=max_steps, center=begin).lr)
    return _read_off(np.log(rates), smoothed(np.clip(sweep, FLOOR * first, MOST * first)), found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, required=True)
    results = Path(__file__).parents[1] / "results" / "rates_cpu.json"
    parser.add_argument("--known", type=Path, default=results, help="results that say where the races begin")
    options = parser.parse_args()
    curves = dict(np.load(options.curves))
    known = json.loads(options.known.read_text())["results"]["found"]
    halves = {(f[0], f[1]): f[4] for f in known if f[2] == "half of the limit"}
    for times in LONGER:
        for steps in HORIZONS:
            ratios = np.array(
                [[ratio(name, curves, steps, times * MAX_STEPS, place, halves) for name in ALL] for place in PLACES]
            )
            within = (ratios <= 1.1).sum(1)
            line = f"{steps} steps, {times * MAX_STEPS} u: within 10 % on {within.mean():.1f} of {len(ALL)}"
            print(f"{line} (from {within.min()} to {within.max()}), worst {ratios.max():.2f}", flush=True)


if __name__ == "__main__":
    main()
