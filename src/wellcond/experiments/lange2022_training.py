"""Figures 3 and 4 of lange2022: fully connected networks under BNP, and under what it is compared with.

Three hidden layers of 100, ReLU, Glorot initialisation, plain SGD with the source's learning rates; three seeds, and
the same mini-batches for all methods of a seed. Inputs are pixels in [0, 1], which are neither centred nor scaled. The
training loss is that of the first 5000 training images and the accuracy that of the test set, both in eval mode.

Beside the source's methods stands a vanilla network whose rate was tuned for these settings: by the training loss that
seed 0 ends with, over factors of 2 to 3. Beside its settings stand two more: MNIST in batches of 6, with half the rates
of batches of 60, as in the source on CIFAR-10; and CIFAR-10 with standardised inputs, both networks' rates tuned.

    python -m wellcond.experiments.lange2022_training [--data DIR] [--out docs/figures] [--workers 2]
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, repeat
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import torch

from wellcond.data import cifar10, mnist
from wellcond.data.dataset import Dataset
from wellcond.experiments.lange2022_networks import SEEDS, Curves, Data, as_data, draw_training, network, train_network
from wellcond.experiments.output import output_files, parser, write
from wellcond.optim.bnp import BNP
from wellcond.report.style import new_figure
from wellcond.results import number, text_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HIDDEN = [100, 100, 100]
READERS: dict[str, Callable[..., Dataset]] = {"MNIST": mnist, "CIFAR-10": cifar10}
TUNED = "tuned vanilla"
REFERENCES = ("vanilla", TUNED)
"""The methods whose final training loss the others are to reach."""


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


@dataclass(frozen=True)
class Record:
    """One run, of so many steps, and its settings; `figure` is the source's number for the panel, or ""."""

    setting: str
    figure: str
    method: str
    lr: float
    length: int
    seed: int
    run: Curves


def one_run(setting: Setting, method: str, seed: int, data: Data) -> Curves:
    """Train one network by plain SGD, under BNP where that is the method."""
    model = network(method, [data.x.shape[1], *HIDDEN, 10], seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.rates[method])
    if method == "BNP":
        BNP(model, optimizer)
    return train_network(
        model, optimizer, data, batch=setting.batch, steps=setting.steps, every=setting.every, seed=seed
    )


def records_of(settings: Sequence[Setting], root: str | None, workers: int) -> list[Record]:
    """Every setting, method and seed, in processes of one thread; prints a line as each ends."""
    tasks = [(setting, method, seed) for setting in settings for method in setting.rates for seed in SEEDS]
    records: list[Record] = []
    begin, done, total = time.perf_counter(), 0, sum(setting.steps for setting, _, _ in tasks)
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        runs = pool.map(_in_worker, *zip(*tasks, strict=True), repeat(root))
        for (setting, method, seed), run in zip(tasks, runs, strict=True):
            about = str(setting), setting.figure, method, setting.rates[method], setting.steps
            records.append(Record(*about, seed, run))
            done += setting.steps
            left = (time.perf_counter() - begin) * (total / done - 1)
            end = f"loss {run.losses[-1]:.4g}" if run.diverged_at is None else f"diverged at step {run.diverged_at}"
            what = f"[{len(records)}/{len(tasks)}] {setting}, {method}, seed {seed}: {end}"
            print(f"{what}; about {left / 60:.0f} min left", flush=True)
    return records


def _in_worker(setting: Setting, method: str, seed: int, root: str | None) -> Curves:
    return one_run(setting, method, seed, _data(setting.data, setting.standardize, root))


@lru_cache(maxsize=1)
def _data(name: str, standardize: bool, root: str | None) -> Data:
    return as_data(READERS[name](root), READERS[name](root, train=False), standardize=standardize)


# what the runs came to


def summary(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One record per setting and method, in order: how many seeds diverged, and loss and accuracy at the end.

    `steps_to` holds the first step with the training loss that a reference ended with, seed by seed. What is not known
    of every seed is None.
    """
    by_name = {(r.setting, r.method, r.seed): r.run for r in records}
    lines = []
    for (setting, method), group in groupby(records, lambda r: (r.setting, r.method)):
        own = list(group)
        finished = [r.run if r.run.diverged_at is None else None for r in own]
        steps_to: dict[str, Any] = {}
        for name in REFERENCES:
            if (setting, name, own[0].seed) in by_name:
                steps_to[name] = spread(_steps_to(r.run, by_name[setting, name, r.seed]) for r in own)
        lines.append(
            {
                "setting": setting, "method": method, "lr": own[0].lr, "length": own[0].length,
                "diverged": finished.count(None),
                "loss": spread(None if run is None else run.losses[-1] for run in finished),
                "accuracy": spread(None if run is None else run.accuracies[-1] for run in finished),
                "steps_to": steps_to,
            }
        )  # fmt: skip
    return lines


def spread(values: Iterable[float | None]) -> dict[str, float] | None:
    """Mean, least and greatest value over the seeds; None if one is missing.

    Example:
        >>> spread([1.0, 2.0, 6.0])
        {'mean': 3.0, 'least': 1.0, 'greatest': 6.0}
    """
    known = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    return {"mean": sum(known) / len(known), "least": min(known), "greatest": max(known)}


def _steps_to(run: Curves, reference: Curves) -> float | None:
    return None if reference.diverged_at is not None else run.first_step_at(reference.losses[-1])


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Means, with the range of loss and accuracy over the seeds; steps also as a share of the run's."""
    reached = [f"steps to {name}'s loss" for name in REFERENCES]
    header = ["", "method", "rate", "training loss", "test accuracy", *reached]
    body = [
        [line["setting"], line["method"], f"{line['lr']:g}", _range(line, "loss"), _range(line, "accuracy")]
        + [_share(line["steps_to"].get(name), line["length"]) for name in REFERENCES]
        for line in lines
    ]
    return text_table(header, body)


def _range(line: Mapping[str, Any], quantity: str) -> str:
    if line[quantity] is None:
        return f"{line['diverged']} diverged"
    mean, least, greatest = map(number, line[quantity].values())
    return f"{mean} ({least} to {greatest})"


def _share(steps: Mapping[str, float] | None, length: int) -> str:
    return "–" if steps is None else f"{steps['mean']:.0f} ({steps['mean'] / length:.2f})"


def draw(records: Sequence[Record]) -> Figure:
    """The source's settings side by side: training loss above, test accuracy below."""
    settings = list(dict.fromkeys(record.setting for record in records if record.figure))
    methods = ["vanilla", "BNP", "BN", "LN", "Renorm", TUNED]
    figure = new_figure(3.6 * len(settings), 6.4)
    panels = figure.subplots(2, len(settings), squeeze=False, sharex="col")
    for (above, below), setting in zip(panels.T, settings, strict=True):
        own = [record for record in records if record.setting == setting]
        runs = {method: [r.run for r in own if r.method == method] for method in methods}
        runs = {method: found for method, found in runs.items() if found}
        draw_training(above, below, runs, methods)
        _limit_axes(above, below, [run for found in runs.values() for run in found])
        above.set_title(f"Figure {own[0].figure}: {setting}", loc="left", fontsize=11)
        below.set_xlabel("steps")
    for axes, label in zip(panels[:, 0], ("training loss", "test accuracy"), strict=True):
        axes.set_ylabel(label)
    handles = {h.get_label(): h for axes in panels[0] for h in axes.get_legend_handles_labels()[0]}
    named = [method for method in methods if method in handles]
    figure.legend([handles[m] for m in named], named, loc="outside lower center", ncols=len(named), frameon=False)
    return figure


def _limit_axes(losses: Axes, accuracies: Axes, runs: Sequence[Curves]) -> None:
    """Show what comes after the first steps; a spike of the loss above its start leaves the panel."""
    least = min(min(run.losses) for run in runs)
    if least < 0.1:
        losses.set_yscale("log")
    losses.set_ylim(0.9 * least, max(run.losses[0] for run in runs))
    later = [accuracy for run in runs for accuracy in run.accuracies[len(run.accuracies) // 8 :]]
    accuracies.set_ylim(min(later) - 0.02, max(later) + 0.02)


def main() -> None:
    """Run everything and write the picture and the numbers."""
    command = parser(__doc__, data="MNIST and CIFAR-10")
    command.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="processes (%(default)s)")
    options = command.parse_args()
    files = output_files(options.out, "lange2022_figures_3_4")
    records = records_of(SETTINGS, options.data, options.workers)
    lines = summary(records)
    write(files, draw(records), {"summary": lines, "runs": records})
    print(table(lines))


if __name__ == "__main__":
    main()
