"""`Plan`: what of the queue has finished, what is left, and how long that takes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.evening.queue import Entry
from wellcond_papers.experiments import catalog
from wellcond_papers.experiments.experiment import Cell, Settings, epochs_of
from wellcond_papers.experiments.reproduce import reproduction_of
from wellcond_papers.experiments.rows import add_rows, read_rows
from wellcond_papers.experiments.running.store import Ended, Store
from wellcond_papers.experiments.scales import Scale
from wellcond_papers.experiments.table import Record

GRID = ("values", "lrs", "rates")
"""Settings that list what one cell trains with, one after the other."""


@dataclass(frozen=True)
class Planned:
    """A cell of the queue that has not finished.

    Attributes:
        entry: The entry that it belongs to.
        cell: The cell.
        seconds: How long it takes while others share the GPU, about.
    """

    entry: Entry
    cell: Cell
    seconds: float


@dataclass(frozen=True)
class Plan:
    """The queue, and where its results are.

    Attributes:
        entries: The queue.
        rows: The folder with the rows of all experiments, as they are committed.
        runs: The folder with the cells of the evenings and their checkpoints.
    """

    entries: Sequence[Entry]
    rows: Path
    runs: Path

    @property
    def experiments(self) -> list[tuple[str, Scale]]:
        """The experiments of the queue with their scales."""
        return list(dict.fromkeys((entry.name, entry.scale) for entry in self.entries))

    def store(self, cell: Cell, scale: Scale) -> Store:
        """Where a cell is saved."""
        return Store(self.runs / cell.experiment / scale)

    def left(self, entry: Entry, device: str = "cuda") -> list[Planned]:
        """Its cells whose rows are missing: those with a checkpoint first, then the longest."""
        path = self.rows / f"{entry.name}-{entry.scale}.json"
        cells = entry.cells()
        missing = {cell.key for cell in (read_rows(path).missing if path.exists() else cells)}
        known = [] if entry.timed_with else self._records(entry, device)
        declared = 60 * entry.minutes * entry.sharing / max(len(cells), 1)
        left = [Planned(entry, cell, _seconds(cell, known) or declared) for cell in cells if cell.key in missing]
        return sorted(left, key=lambda each: (not self._has_checkpoint(each), -each.seconds))

    def _has_checkpoint(self, planned: Planned) -> bool:
        folder = self.store(planned.cell, planned.entry.scale).checkpoints(planned.cell)
        return any(folder.glob("[!.]*"))

    def _records(self, entry: Entry, device: str) -> list[Record]:
        """Finished cells of the experiment on such a device, at any scale."""
        runs = [read_rows(path) for path in self.rows.glob(f"{entry.name}-*.json")]
        is_cpu = device == "cpu"
        return [
            record
            for run in runs if run.experiment.name == entry.name
            if any(name.startswith("cpu") == is_cpu for name in run.made_with.get("device", "").split(", "))
            for record in run.table
        ]  # fmt: skip

    def add_rows(self, ended: Iterable[Ended]) -> None:
        """Add finished cells to the rows of every experiment that shows them."""
        by_key = {each.cell.key: each for each in ended}
        for name, scale in self.experiments:
            experiment = catalog.experiment(name)
            own = [by_key[cell.key] for cell in experiment.cells(scale) if cell.key in by_key]
            if own:
                self.rows.mkdir(parents=True, exist_ok=True)
                add_rows(self.rows / f"{name}-{scale}.json", reproduction_of(experiment, scale, own))

    def stored(self) -> dict[Path, Ended]:
        """All finished cells in the store, by their file."""
        finished: dict[Path, Ended] = {}
        for name, scale in self.experiments:
            cells = catalog.experiment(name).cells(scale)
            store = self.store(cells[0], scale)
            finished |= {store.path(each.cell): each for each in store.finished(cells).values()}
        return finished


def _seconds(cell: Cell, known: Iterable[Record]) -> float:
    """The longest that a cell of the same arm took, in proportion to its work; 0 if there is none."""
    work = _work(cell.settings)
    own = [record for record in known if record.arm == cell.settings["arm"]]
    return max((record.seconds * work / _work(record.settings) for record in own), default=0.0)


def _work(settings: Settings) -> float:
    """Passes over the data through every layer, for all points of a grid; 1 if nothing is trained."""
    points = math.prod(len(settings.get(name, "1")) for name in GRID)
    return (epochs_of(settings) or 1.0) * float(settings.get("depth", 1)) * points
