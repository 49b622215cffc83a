"""Run an experiment: its cells, the table of their rows, and what becomes of the paper's claims."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from wellcond.experiments.catalogue import experiment as by_name
from wellcond.experiments.claims import Outcome, Verdict, overall
from wellcond.experiments.experiment import Cell, Experiment, Job, Scale
from wellcond.experiments.store import Store
from wellcond.experiments.table import Record, Table
from wellcond.results import Progress, Result, Row, text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Reproduction(Result):
    """What came out of an experiment.

    Attributes:
        experiment: Which one.
        scale: At which scale.
        table: The rows of all cells.
        outcomes: What became of every claim, in their order.
    """

    experiment: Experiment
    scale: Scale
    table: Table

    @property
    def outcomes(self) -> list[Outcome]:
        """What became of every claim, in their order."""
        return [claim.check(self.table) for claim in self.experiment.claims]

    def verdict(self) -> Verdict:
        """Of all claims together."""
        return overall(outcome.verdict for outcome in self.outcomes)

    def rows(self, step: int | None = None) -> list[Row]:
        return [row for record in self.table for row in record.rows]

    def figure(self) -> Figure:
        return self.experiment.draw(self.table)

    def __str__(self) -> str:
        body = [
            [claim.says, claim.paper, outcome.found, outcome.verdict]
            for claim, outcome in zip(self.experiment.claims, self.outcomes, strict=True)
        ]
        return text_table(["claim", "paper", "found", "verdict"], body)


def run_cell(cell: Cell, device: str, data: Path | None, folder: Path | None, progress: Progress) -> Record:
    """Run one cell."""
    begin = time.perf_counter()
    job = Job(cell.settings, torch.device(device), data, folder, progress)
    rows = list(by_name(cell.experiment).measure(job))
    return Record(cell.settings, rows, time.perf_counter() - begin)


def reproduce(
    name: str,
    scale: Scale = "laptop",
    *,
    out: str | os.PathLike[str] = "runs",
    device: str = "cpu",
    data: str | os.PathLike[str] | None = None,
    progress: Progress = lambda what, share: None,
) -> Reproduction:
    """Run an experiment, or what is left of it, in this process.

    Args:
        name: Such as "santurkar2018-fig9"; `catalogue.names()` has all.
        scale: "smoke", "laptop", "gpu" or "paper".
        out: Finished cells are kept in `out/name/scale` and never run again.
        device: Where to train and measure.
        data: The folder with the data sets.
        progress: Called as (what is being done, share of all work done).

    Example:
        >>> reproduce("santurkar2018-fig9", "smoke")  # doctest: +SKIP
    """
    chosen = by_name(name)
    store = Store(Path(out) / name / scale)
    cells = chosen.cells(scale)
    done = store.finished(cells)
    root = None if data is None else Path(data)
    for place, cell in enumerate(cells):
        if cell.key not in done:
            tell = lambda what, share, place=place: progress(what, (place + share) / len(cells))  # noqa: E731
            done[cell.key] = run_cell(cell, device, root, store.checkpoints(cell), tell)
            store.put(cell, done[cell.key])
    return Reproduction(chosen, scale, Table([done[cell.key] for cell in cells]))
