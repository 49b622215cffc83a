"""The sweep: every task at 22 rates for 400 steps, and at those near the best for 2000 and 10,000.

python -m benchmarks.rates.sweep --out curves.npz --processes 16      # some 15 minutes on 16 cores

The file holds, by "task/seed/steps", the losses of the first 400 or 2000 steps, (rates, steps); by "task/seed" the
final losses, (rates, lengths), inf where a run diverged and nan where there was none; by "task/first" the first loss.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.rates.blind_tasks import BLIND
from benchmarks.rates.tasks import OTHERS, RATES, TASKS, Task

ALL = TASKS | OTHERS | BLIND
LENGTHS = (400, 2000, 10_000)
SEEDS = (0, 1)
HEAVY, HEAVIEST = 3.5, 5.5
"""Milliseconds of a step: slower tasks are trained with one seed, and the slowest not for the last length."""
NEAR = {2000: (5, 2), 10_000: (4, 1)}
"""Rates below and above the best after one length that are trained for the next, in a ratio of 1.55: what is best moves
down as training goes on."""

Array = NDArray[np.float32]


def final(losses: Any, steps: int) -> Any:
    """The mean over the last tenth of the first `steps` steps; infinity if a run diverged."""
    mean = losses[..., steps - steps // 10 : steps].mean(-1)
    return np.where(np.isfinite(mean), mean, np.inf)


def trained(task: Task, lr: float, seed: int, steps: int, other: int = 0) -> Array:
    """The loss of every step, on its batch and before its update; nan from where it is not finite.

    Args:
        task: What is trained.
        lr: The learning rate.
        seed: Of the weights and of the batches.
        steps: How many.
        other: Added to the seed of the batches.
    """
    losses = np.full(steps, np.nan, dtype=np.float32)
    model = task.start(seed)
    optimizer = task.optimizer(model.parameters(), lr=lr)
    torch.manual_seed(seed + other)
    for step, (inputs, targets) in enumerate(islice(batches(task), steps)):
        loss = task.loss(model(inputs), targets)
        losses[step] = loss.item()
        if not math.isfinite(losses[step]):
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def batches(task: Task) -> Iterator[tuple[torch.Tensor, ...]]:
    """Batches of one epoch after another."""
    loader = task.loader()
    while True:
        yield from loader


class Sweep:
    """The curves of a sweep, as they come in.

    Attributes:
        curves: What the file holds.
        milliseconds: Of a step, by task.
    """

    def __init__(self, known: dict[str, Any]) -> None:
        self.curves: dict[str, Any] = known
        self.milliseconds: dict[str, float] = {}

    def finals(self, name: str, seed: int) -> Array:
        """(rates, lengths), which may be changed."""
        empty = np.full((RATES, len(LENGTHS)), np.nan, np.float32)
        finals: Array = self.curves.setdefault(f"{name}/{seed}", empty)
        return finals

    def jobs(self, place: int, names: list[str]) -> Iterator[tuple[str, int, int, int]]:
        """Runs of one length that are not known yet, as (task, seed, index of the rate, steps)."""
        for seed in SEEDS:
            for name in sorted(names, key=lambda name: self.milliseconds.get(name, 0.0)):
                finals = self.finals(name, seed)
                milliseconds = self.milliseconds.get(name, 0.0)
                if (seed and (milliseconds > HEAVY or place == 2)) or (milliseconds > HEAVIEST and place == 2):
                    continue
                for index in self._near(finals, place):
                    if np.isnan(finals[index, place]):
                        yield name, seed, index, LENGTHS[place]

    @staticmethod
    def _near(finals: Array, place: int) -> range:
        """Indices of the rates to train for a length."""
        if not place:
            return range(RATES)
        before = np.where(np.isnan(finals[:, place - 1]), np.inf, finals[:, place - 1])
        if not np.isfinite(before).any():
            return range(0)
        best, (below, above) = int(before.argmin()), NEAR[LENGTHS[place]]
        return range(max(best - below, 0), min(best + above + 1, RATES))

    def add(self, name: str, seed: int, index: int, losses: Array) -> None:
        """Keep a run: its final losses, and its first steps."""
        finals = self.finals(name, seed)
        for place, length in enumerate(LENGTHS):
            if len(losses) >= length:
                finals[index, place] = final(losses, length)
        self.curves[f"{name}/first"] = losses[0]
        steps = min(len(losses), LENGTHS[1])
        losses = np.where(np.abs(losses) < np.finfo(np.float16).max, losses, np.nan)
        empty = np.full((RATES, steps), np.nan, np.float16)
        self.curves.setdefault(f"{name}/{seed}/{steps}", empty)[index] = losses[:steps]


def _run(job: tuple[str, int, int, int, float]) -> tuple[str, int, int, Array | None]:
    name, seed, index, steps, until = job
    torch.set_num_threads(1)
    losses = None if time.time() > until else trained(ALL[name], ALL[name].rates[index], seed, steps)
    return name, seed, index, losses


def _milliseconds(name: str) -> float:
    """What a step takes, after the first ones, which load data."""
    torch.set_num_threads(1)
    trained(ALL[name], ALL[name].rates[0], 0, 5)
    begin = time.time()
    trained(ALL[name], ALL[name].rates[0], 0, 50)
    return 1e3 * (time.time() - begin) / 50


def sweep(out: Path, processes: int, seconds: float, names: list[str], known: dict[str, Any]) -> None:
    """All runs that are not known yet, written after each length. Runs that would begin after the time are left out."""
    begin, result = time.time(), Sweep(known)
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        result.milliseconds = dict(zip(names, pool.map(_milliseconds, names, chunksize=1), strict=True))
        print({name: round(each, 1) for name, each in result.milliseconds.items()}, flush=True)
        for place, length in enumerate(LENGTHS):
            jobs = [(*job, begin + seconds) for job in result.jobs(place, names)]
            left_out = 0
            for done, (name, seed, index, losses) in enumerate(pool.imap_unordered(_run, jobs), start=1):
                if losses is None:
                    left_out += 1
                else:
                    result.add(name, seed, index, losses)
                if not done % 256:
                    print(f"{length} steps: {done} of {len(jobs)} runs, {time.time() - begin:.0f} s", flush=True)
            np.savez_compressed(out, **result.curves)
            print(f"{length} steps: {left_out} of {len(jobs)} left out, {time.time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "curves.npz")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--tasks", nargs="+", default=list(ALL), metavar="TASK")
    parser.add_argument("--known", type=Path, help="curves of an earlier sweep, which are not trained again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = dict(np.load(options.known)) if options.known else {}
    sweep(options.out, options.processes, options.seconds, options.tasks, known)
