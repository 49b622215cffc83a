"""`Evening`: run what is left of the queue for some minutes, as much at once as the GPU takes."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.evening.packing import MIB, pack
from benchmarks.evening.plan import Plan, Planned
from wellcond.treatment.launching.processes import Processes
from wellcond_papers.experiments.reproduce import NamedMeasure, missing_data
from wellcond_papers.experiments.running.store import Ended
from wellcond_papers.experiments.running.task import Task

MARGIN = 20.0
"""Seconds before the end at which cells are stopped, to pack what there is."""
GPU_MEMORY = 130.0
"""GiB that cells may take together."""
WORTHWHILE = 60.0
"""Seconds that must be left to begin a cell that will not finish."""
TRAVELS = 16.0
"""MiB of a checkpoint that can be taken along."""


@dataclass
class Evening:
    """Some minutes on one GPU.

    Attributes:
        plan: The queue, and where its results are.
        data: The folder with the data sets.
        device: The device.
        workers: Cells that run at once.
        out: The folder for what leaves the machine; None if the machine stays.
        stays: Whether the store outlives the evening, so that checkpoints of any size are of use.
        end: The time at which cells are stopped, by the monotonic clock.
    """

    plan: Plan
    data: Path
    device: str = "cuda"
    workers: int = 10
    out: Path | None = None
    stays: bool = True
    end: float = field(default=0.0, init=False)
    _running: dict[str, Planned] = field(default_factory=dict, init=False)
    _shares: dict[str, float] = field(default_factory=dict, init=False)
    _finished: list[Path] = field(default_factory=list, init=False)

    def run(self, minutes: float) -> None:
        """Run cells until the time is over, or until SIGTERM or Ctrl-C."""
        self.end = time.monotonic() + 60 * minutes - MARGIN
        stored = self.plan.stored()
        self.plan.add_rows(stored.values())  # a cell that finished just before a kill has no rows yet
        self._finished = list(stored)
        waiting = self.runnable()
        with _stopped_at(self.end) as stop:
            launcher = Processes(retries=0, workers=self.workers, stop=stop)
            with contextlib.closing(launcher.run(self.following(waiting), self._tell)) as ends:
                for ended in ends:
                    self._save(ended)
            self._pack_checkpoints()

    def _save(self, ended: Ended) -> None:
        planned = self._running.pop(ended.cell.key)
        self._shares.pop(ended.cell.key, None)
        store = self.plan.store(ended.cell, planned.entry.scale)
        store.put(ended)
        if ended.record is not None:
            self._finished.append(store.path(ended.cell))
            self._pack_cells()
            self.plan.add_rows([ended])
        settings, left = ended.cell.settings, max(0.0, self.end - time.monotonic())
        how = f"failed: {ended.error}" if ended.error else "finished"
        print(f"{left:4.0f} s left; {planned.entry.name}: {settings['arm']}, seed {settings['seed']} {how}", flush=True)

    def runnable(self) -> list[Planned]:
        """What is left and has its data."""
        left = [each for entry in self.plan.entries for each in self.plan.left(entry, self.device)]
        names = dict.fromkeys(each.cell.settings.get("data") for each in left)
        missing = {name: text for name in names if name and (text := missing_data(name, self.data))}
        for name, text in missing.items():
            print(f"left out, for want of {name}: {text}", flush=True)
        return [each for each in left if each.cell.settings.get("data") not in missing]

    def following(self, waiting: list[Planned]) -> Iterator[Task | None]:
        """The next cell, in the order of the queue, that can be run now; None if others must end first."""
        while True:
            left = self.end - time.monotonic()
            waiting = [each for each in waiting if self._is_in_time(each, left)]
            chosen = next((each for each in waiting if self._has_room(each)), None)
            if chosen is not None:
                waiting.remove(chosen)
                self._running[chosen.cell.key] = chosen
                store = self.plan.store(chosen.cell, chosen.entry.scale)
                measure = NamedMeasure(chosen.cell.experiment)
                yield Task(chosen.cell, measure, store, self.data, chosen.seconds / 60, device=self.device)
            else:
                yield None

    def _is_in_time(self, planned: Planned, left: float) -> bool:
        """Whether it can finish, or continue another time from what this one brings."""
        size = planned.entry.checkpoint
        continues = size is not None and (self.stays or size <= TRAVELS) and left > WORTHWHILE
        workers = 1 if planned.entry.alone else self.workers
        return continues or planned.seconds * max(1.0, workers / planned.entry.sharing) <= left

    def _has_room(self, planned: Planned) -> bool:
        running = list(self._running.values())
        if running and (planned.entry.alone or running[0].entry.alone):
            return False
        return sum(each.entry.memory for each in [planned, *running]) <= GPU_MEMORY

    def _tell(self, task: Task, what: str, share: float) -> None:
        self._shares[task.cell.key] = share

    def _pack_cells(self) -> None:
        """At once, since the machine may be taken away at any time."""
        if self.out is not None:
            pack(self._finished, self.plan.runs, self.out, "cells")

    def _pack_checkpoints(self) -> None:
        if self.out is None:
            return
        files = [path for path in self.plan.runs.glob("*/*/checkpoints/*/[!.]*") if path.is_file()]
        files.sort(key=lambda path: -self._shares.get(path.parent.name, 0.0))
        cells = list(self.out.glob("cells-*.tar.gz"))
        for path in pack(files, self.plan.runs, self.out, "checkpoints", cells):
            size = path.stat().st_size / MIB
            print(f"a checkpoint of {size:.0f} MiB stays here, and its cell begins again elsewhere: {path}")


@contextlib.contextmanager
def _stopped_at(end: float) -> Iterator[Connection]:
    """A connection where something arrives at this time, or when the process is asked to end."""
    stop, ours = Pipe(duplex=False)

    def ask(*args: object) -> None:
        ours.send("stop")

    kinds = (signal.SIGTERM, signal.SIGINT)
    before = {kind: signal.signal(kind, ask) for kind in kinds}
    timer = threading.Timer(max(0.0, end - time.monotonic()), ask)
    timer.start()
    try:
        yield stop
    finally:
        timer.cancel()
        timer.join()
        for kind, handler in before.items():
            signal.signal(kind, handler)
