"""Learning rates against a sweep: `suggest_lr`, the script's own, successive halving, range tests, at one price.

python -m benchmarks.rates.sweep --out curves.npz      # once: every task at 22 rates
python -m benchmarks.rates --curves curves.npz         # the methods; to benchmarks/results
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.rates.blind_tasks import BLIND
from benchmarks.rates.judging import Judge
from benchmarks.rates.methods import METHODS
from benchmarks.rates.sweep import ALL, LENGTHS, SEEDS
from benchmarks.rates.tasks import OTHERS, TASKS
from benchmarks.timing import environment

Measured = tuple[str, int, str, int, float, float]
"""Task, seed, method, steps, rate, price."""
GROUPS = {"written by others": BLIND, "for validation": OTHERS, "tuned on": TASKS}


def _find(job: tuple[str, int, str, int]) -> Measured:
    name, seed, method, steps = job
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return name, seed, method, steps, *METHODS[method](ALL[name], seed, steps)


def found(processes: int, known: list[Measured], judge: Judge, seeds: Sequence[int] = SEEDS) -> list[Measured]:
    """Methods on every task and length, with every seed that the sweep has."""
    every = [
        (name, seed, method, steps)
        for seed in seeds
        for method in METHODS
        for group in GROUPS.values()
        for name in group
        for steps in LENGTHS
        if judge.knows(name, seed, steps)
    ]
    measured = [each for each in known if each[:4] in every]
    are_known = {each[:4] for each in measured}
    jobs, begin = [job for job in every if job not in are_known], time.time()
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for result in pool.imap_unordered(_find, jobs):
            measured.append(result)
            if not len(measured) % 40:
                print(f"{len(measured)} of {len(every)}, {time.time() - begin:.0f} s", flush=True)
    return measured


def compared(result: list[Measured], judge: Judge) -> list[dict[str, Any]]:
    """A row per task and length: the sweep's best rate, and of each method the loss over the lowest."""
    rows = []
    for name in ALL:
        group = next(group for group, tasks in GROUPS.items() if name in tasks)
        for steps in LENGTHS:
            if not judge.knows(name, 0, steps):
                continue
            row: dict[str, Any] = {
                "task": name, "group": group, "steps": steps, "own lr": ALL[name].own,
                "best lr": judge.best(name, steps), "noise": judge.noise(name, steps), "methods": {},
            }  # fmt: skip
            for method in METHODS:
                mine = [f for f in result if f[0] == name and f[2] == method and f[3] == steps]
                row["methods"][method] = {
                    "lr": [f[4] for f in mine],
                    "u": float(np.mean([f[5] for f in mine])),
                    "ratio": float(np.mean([judge.ratio(name, steps, f[4]) for f in mine])),
                }
            rows.append(row)
    return rows


def summary(rows: list[dict[str, Any]]) -> str:
    """A line per group, length and method."""
    lines = []
    for group in (*GROUPS, "all"):
        for steps in LENGTHS:
            here = [row for row in rows if row["steps"] == steps and group in (row["group"], "all")]
            for method in METHODS:
                ratios = np.array([row["methods"][method]["ratio"] for row in here])
                owns = np.array([row["methods"]["the script's own rate"]["ratio"] for row in here])
                worse = sum(np.log(ratios / owns) > 2 * np.array([row["noise"] for row in here]))
                price = np.mean([row["methods"][method]["u"] for row in here])
                lines.append(
                    f"{group}, {steps} steps, {method}: {price:.0f} u, within 10 % {(ratios <= 1.1).sum()}, "
                    f"within 20 % {(ratios <= 1.2).sum()} of {len(here)}, above 1.5 {(ratios > 1.5).sum()}, "
                    f"worst {ratios.max():.2f}, worse than the script's own {worse}"
                )
    return "\n".join(lines)


def _measured_in(earlier: dict[str, Any]) -> list[Measured]:
    return [(f[0], f[1], f[2], f[3], math.nan if f[4] is None else f[4], f[5]) for f in earlier["results"]["found"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, default=Path(__file__).parents[1] / "results" / "rates_finals.npz")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    parser.add_argument(
        "--known", type=Path, help="earlier results, of which only what `--anew` names is measured again"
    )
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=list(SEEDS))
    parser.add_argument("--anew", nargs="*", choices=METHODS, default=["suggest_lr"], metavar="METHOD")
    options = parser.parse_args()
    judge = Judge(dict(np.load(options.curves)))
    known = _measured_in(json.loads(options.known.read_text())) if options.known else []
    result = found(options.processes, [each for each in known if each[2] not in options.anew], judge, options.seeds)
    rows = compared(result, judge)
    text = json.dumps({"environment": environment("cpu"), "results": {"found": result, "rows": rows}}, indent=1)
    (options.out / "rates_cpu.json").write_text(text.replace("NaN", "null").replace("Infinity", "1e999") + "\n")
    print(summary(rows))


if __name__ == "__main__":
    main()
