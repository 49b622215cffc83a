"""Learning rates against a sweep: `suggest_lr`, successive halving, a range test, half of the measured limit.

python -m benchmarks.rates.sweep --out curves.npz      # once: every task at thirty rates, 2000 steps
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
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.rates.methods import METHODS
from benchmarks.rates.sweep import ALL, HEAVY, SEEDS, STEPS, steps_of, trained
from benchmarks.rates.tasks import OTHERS, TASKS
from benchmarks.timing import environment

HORIZONS = (400, STEPS)
FLOOR = 0.01
"""Share of the first loss: networks that fit all their data to below it count as equally good."""
MOST = 20
"""Multiple of the first loss that a diverged run counts in averages over neighboring rates."""
Measured = tuple[str, int, str, int, float, float, float]


def final(losses: Any, steps: int) -> Any:
    """The mean over the last tenth of the first `steps` steps; infinity if a run diverged."""
    mean = losses[..., steps - steps // 10 : steps].mean(-1)
    return np.where(np.isfinite(mean), mean, np.inf)


def _judge(job: tuple[str, int, str, int]) -> Measured:
    name, seed, method, steps = job
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lr, cost = METHODS[method](ALL[name], seed, steps)
    loss = math.inf if math.isnan(lr) else float(final(trained(ALL[name], lr, seed, steps), steps))
    return name, seed, method, steps, lr, cost, loss


def judged(processes: int, methods: Collection[str]) -> list[Measured]:
    """Methods on every task, seed and horizon."""
    jobs = [
        (name, seed, method, steps)
        for name in sorted(ALL, key=lambda name: not name.startswith(HEAVY))
        for seed in SEEDS
        for steps in reversed(HORIZONS)
        for method in methods
        if steps <= steps_of(name, seed)
    ]
    begin, measured = time.time(), []
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for result in pool.imap_unordered(_judge, jobs):
            measured.append(result)
            if not len(measured) % 40:
                print(f"{len(measured)} of {len(jobs)}, {time.time() - begin:.0f} s", flush=True)
    return measured


def smoothed(losses: Any) -> Any:
    """Log-losses over the rates, averaged over neighbors with weights ¼, ½, ¼: the best of thirty noisy runs is not as
    good as it looks, and its neighbors tell."""
    padded = np.pad(np.log(losses), 1, mode="edge")
    return 0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:]


def compared(result: list[Measured], curves: dict[str, Any]) -> list[dict[str, Any]]:
    """A row per task and horizon: the sweep's best mean over seeds, and of each method that mean over it."""
    rows = []
    for name in ALL:
        for steps in HORIZONS:
            seeds = [s for s in SEEDS if curves[f"{name}/{s}"].shape[1] >= steps]
            seeds = [s for s in seeds if np.isfinite(curves[f"{name}/{s}"][:, 0]).all()]
            first = float(np.mean([curves[f"{name}/{s}"][0, :3].mean() for s in seeds]))
            sweep = np.mean([final(curves[f"{name}/{s}"], steps) for s in seeds], 0)
            best = int(sweep.argmin())
            smooth = smoothed(np.clip(sweep, FLOOR * first, MOST * first))
            places = np.log(ALL[name].rates)
            row: dict[str, Any] = {
                "task": name, "tuned on": name in TASKS, "steps": steps, "seeds": len(seeds),
                "first loss": first, "best loss": float(sweep[best]), "best lr": ALL[name].rates[best], "methods": {},
            }  # fmt: skip
            for method in METHODS:
                mine = [f for f in result if f[0] == name and f[1] in seeds and f[2] == method and f[3] == steps]
                loss = float(np.mean([f[6] for f in mine]))
                row["methods"][method] = {
                    "lr": [f[4] for f in mine], "u": float(np.mean([f[5] for f in mine])), "loss": loss,
                    "ratio": max(loss, FLOOR * first) / max(float(sweep[best]), FLOOR * first),
                    "ratio without floor": loss / float(sweep[best]),
                    "smooth ratio": _read_off(places, smooth, [f[4] for f in mine]),
                }  # fmt: skip
            rows.append(row)
    return rows


def _read_off(places: Any, smooth: Any, rates: list[float]) -> float:
    """The loss at some rates over the lowest, both read off the smoothed sweep."""
    if any(math.isnan(lr) for lr in rates):
        return math.inf
    return float(np.mean(np.exp(np.interp(np.log(rates), places, smooth) - smooth.min())))


def second_sweep(curves: dict[str, Any]) -> list[dict[str, float]]:
    """How well the best rate of a sweep with one seed does with the other: what no method can be asked to beat."""
    rows = []
    for name in ALL:
        for steps in HORIZONS:
            both = [curves[f"{name}/{s}"] for s in SEEDS]
            if any(c.shape[1] < steps or not np.isfinite(c[:, 0]).all() for c in both):
                continue
            finals = [np.maximum(final(c, steps), FLOOR * float(c[0, :3].mean())) for c in both]
            rows += [
                {"steps": steps, "ratio": float(finals[s][finals[1 - s].argmin()] / finals[s].min())} for s in SEEDS
            ]
    return rows


def _measured_in(earlier: dict[str, Any]) -> list[Measured]:
    return [
        (f[0], f[1], f[2], f[3], math.nan if f[4] is None else f[4], f[5], f[6]) for f in earlier["results"]["found"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    parser.add_argument("--only", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--known", type=Path, help="earlier results, from which the other methods are taken")
    options = parser.parse_args()
    curves = dict(np.load(options.curves))
    result = judged(options.processes, options.only)
    if options.known:
        result += [f for f in _measured_in(json.loads(options.known.read_text())) if f[2] not in options.only]
    rows = compared(result, curves)
    results = {"found": result, "rows": rows, "second sweep": second_sweep(curves), "floor": FLOOR}
    text = json.dumps({"environment": environment("cpu"), "results": results}, indent=1)
    (options.out / "rates_cpu.json").write_text(text.replace("NaN", "null").replace("Infinity", "1e999") + "\n")
    for group, names in (("tuned on", TASKS), ("for validation", OTHERS)):
        for steps in HORIZONS:
            for method in METHODS:
                some = [r["methods"][method] for r in rows if r["steps"] == steps and r["task"] in names]
                for kind in ("ratio", "smooth ratio"):
                    ratios = np.array([r[kind] for r in some])
                    within = f"within 10 % on {(ratios <= 1.1).sum()} of {len(some)}, worst {ratios.max():.2f}"
                    mean = np.mean([r["u"] for r in some])
                    print(f"{group}, {steps} steps, {method}, {kind}: {within}, {mean:.0f} u")


if __name__ == "__main__":
    main()
