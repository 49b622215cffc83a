"""The sweep: every task at thirty rates for 2000 steps, the loss of every step.

python -m benchmarks.rates.sweep --out curves.npz --processes 16      # 7 minutes on 16 cores
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

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.rates.tasks import OTHERS, RATES, TASKS, Task

STEPS, SEEDS = 2000, (0, 1)
HEAVY = ("resnet", "vit", "gpt", "gru")
"""Tasks whose second seed is trained for fewer steps."""
ALL = TASKS | OTHERS


def steps_of(name: str, seed: int) -> int:
    """The length of a task's runs."""
    return STEPS // 4 if seed and name.startswith(HEAVY) else STEPS


def trained(task: Task, lr: float, seed: int, steps: int, other: int = 0) -> NDArray[np.float32]:
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


def _run(job: tuple[str, int, int, int, float]) -> tuple[str, int, int, NDArray[np.float32] | None]:
    name, seed, index, steps, until = job
    torch.set_num_threads(1)
    if time.time() > until:
        return name, seed, index, None
    return name, seed, index, trained(ALL[name], ALL[name].rates[index], seed, steps)


Curves = dict[str, NDArray[np.float32]]
"""(rates, steps), by "task/seed"."""


def sweep(processes: int, seconds: float, steps: int = STEPS, known: Curves | None = None) -> Curves:
    """All curves that are not known yet. Runs that would begin after this many seconds are nan."""
    until, known = time.time() + seconds, known or {}
    jobs = [
        (name, seed, index, min(steps, steps_of(name, seed)), until)
        for seed in SEEDS
        for name in sorted(ALL, key=lambda name: not name.startswith(HEAVY))
        for index in reversed(range(RATES))
        if not (f"{name}/{seed}" in known and np.isfinite(known[f"{name}/{seed}"][index, 0]))
    ]
    curves = {f"{name}/{seed}": np.full((RATES, steps), np.nan, np.float32) for name, seed, _, steps, _ in jobs} | known
    begin, left_out = time.time(), 0
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for done, (name, seed, index, losses) in enumerate(pool.imap_unordered(_run, jobs), start=1):
            if losses is None:
                left_out += 1
            else:
                curves[f"{name}/{seed}"][index, : len(losses)] = losses
            if not done % 64:
                print(f"{done} of {len(jobs)} runs, {time.time() - begin:.0f} s", flush=True)
    print(f"{left_out} runs left out", flush=True)
    return curves


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")) / "curves.npz")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--known", type=Path, help="curves of an earlier sweep, which are not trained again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = dict(np.load(options.known)) if options.known else None
    np.savez_compressed(options.out, **sweep(options.processes, options.seconds, options.steps, known))
