"""Figures 3 and 4 of lange2022: fully connected networks under BNP, and under what it is compared with.

Three hidden layers of 100, ReLU, Glorot initialisation, plain SGD with the source's learning rates; three seeds, and
the same mini-batches for all methods of a seed. Inputs are pixels in [0, 1], which are neither centred nor scaled. The
training loss is that of the first 5000 training images and the accuracy that of the test set, both in eval mode.

Beside the source's methods stands a vanilla network whose rate was tuned for these settings: by the training loss that
seed 0 ends with, over factors of 2 to 3. Beside its settings stand two more: MNIST in batches of 6, with half the rates
of batches of 60, as in the source on CIFAR-10; and CIFAR-10 with standardised inputs, both networks' rates tuned.

    python -m wellcond.experiments.preconditioned_training [--data DIR] [--out docs/figures] [--workers 2]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from wellcond.data import cifar10, mnist
from wellcond.data.dataset import Dataset
from wellcond.experiments.preconditioned_run import Data, Run, as_data, network, train
from wellcond.experiments.preconditioned_summary import TUNED, Record, as_json, summary, table
from wellcond.optim.bnp import BNP
from wellcond.report.style import draw_curves, save_figure
from wellcond.results.files import check_writable, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "lange2022_figures_3_4"
SEEDS = (0, 1, 2)
HIDDEN = [100, 100, 100]
READERS: dict[str, Callable[..., Dataset]] = {"MNIST": mnist, "CIFAR-10": cifar10}


@dataclass(frozen=True)
class Setting:
    """One panel: data, batch size, length of training, and the learning rate of each method."""

    data: str
    batch: int
    steps: int
    every: int
    rates: Mapping[str, float]
    standardize: bool = False
    figure: str = ""

    def __str__(self) -> str:
        return f"{self.data}{', standardised' if self.standardize else ''}, batch {self.batch}"


SETTINGS = (
    Setting("MNIST", 60, 3000, 100, {"vanilla": 0.1, TUNED: 0.3, "BN": 0.5, "BNP": 0.5, "LN": 0.1}, figure="3"),
    Setting("CIFAR-10", 60, 3000, 100, {"vanilla": 0.01, TUNED: 0.03, "BN": 0.5, "BNP": 0.1, "LN": 0.5}, figure="3"),
    Setting(
        "CIFAR-10", 6, 10_000, 500,
        {"vanilla": 5e-3, TUNED: 1e-2, "BN": 5e-2, "BNP": 5e-2, "Renorm": 5e-2, "LN": 5e-2}, figure="4",
    ),
    Setting("CIFAR-10", 1, 20_000, 1000, {"vanilla": 5e-4, TUNED: 2e-3, "BNP": 0.1, "LN": 1e-2}, figure="4"),
    Setting("MNIST", 6, 10_000, 500, {"vanilla": 0.05, TUNED: 0.03, "BNP": 0.25}),
    Setting("CIFAR-10", 60, 3000, 100, {TUNED: 0.03, "BNP": 0.3}, standardize=True),
)  # fmt: skip


def one_run(setting: Setting, method: str, seed: int, data: Data) -> Run:
    """Train one network by plain SGD, under BNP where that is the method."""
    model = network(method, [data.x.shape[1], *HIDDEN, 10], seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.rates[method])
    if method == "BNP":
        BNP(model, optimizer)
    return train(model, optimizer, data, batch=setting.batch, steps=setting.steps, every=setting.every, seed=seed)


def records_of(settings: Sequence[Setting], root: str | None, workers: int) -> list[Record]:
    """Every setting, method and seed, in processes of one thread; a line for each that is done says what is left."""
    tasks = [(setting, method, seed) for setting in settings for method in setting.rates for seed in SEEDS]
    records: dict[int, Record] = {}
    begin, done, total = time.perf_counter(), 0, sum(setting.steps for setting, _, _ in tasks)
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        futures = {pool.submit(_in_worker, *task, root): place for place, task in enumerate(tasks)}
        for future in as_completed(futures):
            setting, method, seed = tasks[futures[future]]
            run = future.result()
            records[futures[future]] = Record(
                str(setting), setting.figure, method, setting.rates[method], setting.steps, seed, run
            )
            done += setting.steps
            left = (time.perf_counter() - begin) * (total / done - 1)
            end = f"loss {run.losses[-1]:.4g}" if run.diverged_at is None else f"diverged by step {run.diverged_at}"
            what = f"[{len(records)}/{len(tasks)}] {setting}, {method}, seed {seed}: {end}"
            print(f"{what}; about {left / 60:.0f} min left", flush=True)
    return [records[place] for place in range(len(tasks))]


def _in_worker(setting: Setting, method: str, seed: int, root: str | None) -> Run:
    return one_run(setting, method, seed, _data(setting.data, setting.standardize, root))


@lru_cache(maxsize=1)
def _data(name: str, standardize: bool, root: str | None) -> Data:
    return as_data(READERS[name](root), READERS[name](root, train=False), standardize=standardize)


def draw(records: Sequence[Record], path: Path) -> None:
    """The source's settings side by side: training loss above, test accuracy below."""
    from matplotlib.figure import Figure

    settings = list(dict.fromkeys(record.setting for record in records if record.figure))
    methods = ["vanilla", "BNP", "BN", "LN", "Renorm", TUNED]
    figure = Figure(figsize=(3.6 * len(settings), 6.4), layout="constrained")
    panels = figure.subplots(2, len(settings), squeeze=False, sharex="col")
    for (above, below), setting in zip(panels.T, settings, strict=True):
        own = [record for record in records if record.setting == setting]
        runs = {method: [r.run for r in own if r.method == method] for method in methods}
        runs = {method: found for method, found in runs.items() if found}
        draw_curves(above, {m: [(run.steps, run.losses) for run in found] for m, found in runs.items()}, methods)
        draw_curves(below, {m: [(run.steps, run.accuracies) for run in found] for m, found in runs.items()}, methods)
        _look_past_the_start(above, below, [run for found in runs.values() for run in found])
        above.set_title(f"Figure {own[0].figure}: {setting}", loc="left", fontsize=11)
        below.set_xlabel("steps")
    for axes, label in zip(panels[:, 0], ("training loss", "test accuracy"), strict=True):
        axes.set_ylabel(label)
    handles = {h.get_label(): h for axes in panels[0] for h in axes.get_legend_handles_labels()[0]}
    named = [method for method in methods if method in handles]
    figure.legend([handles[m] for m in named], named, loc="outside lower center", ncols=len(named), frameon=False)
    save_figure(figure, path, dpi=120)


def _look_past_the_start(above: Axes, below: Axes, runs: Sequence[Run]) -> None:
    """Axes that show what comes after the first steps; a spike of the loss above its start leaves the panel."""
    least = min(min(run.losses) for run in runs)
    if least < 0.1:
        above.set_yscale("log")
    above.set_ylim(0.9 * least, max(run.losses[0] for run in runs))
    later = [accuracy for run in runs for accuracy in run.accuracies[len(run.accuracies) // 8 :]]
    below.set_ylim(min(later) - 0.02, max(later) + 0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder that holds MNIST and CIFAR-10 (default: $WELLCOND_DATA or ./data)")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    parser.add_argument(
        "--workers", type=int, default=min(2, os.cpu_count() or 1), help="processes (default: %(default)s)"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    picture, rows = (check_writable(options.out / f"{NAME}.{kind}") for kind in ("png", "json"))
    records = records_of(SETTINGS, options.data, options.workers)
    write_atomically(rows, as_json(records).encode())
    draw(records, picture)
    print(table(summary(records)))


if __name__ == "__main__":
    main()
