"""`Task`: a cell, and everything that is needed to run it anywhere."""

from __future__ import annotations

import json
import platform
import shutil
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from wellcond.results import Progress, Row
from wellcond.results.version import __version__
from wellcond.treatment.launching import launcher
from wellcond_papers.experiments.experiment import Cell, Job
from wellcond_papers.experiments.running.store import Ended, Store
from wellcond_papers.experiments.table import Record
from wellcond_papers.training.distributed import process_count


@dataclass(frozen=True)
class Task(launcher.Job[Ended]):
    """A cell, and everything that is needed to run it anywhere.

    Attributes:
        cell: The cell to run.
        measure: Runs it. Other processes get it by pickle: a function at the top level of a module, or an object.
        store: Saves the cell when it has ended, and its checkpoints until then.
        data: The folder with the data sets.
        minutes: The approximate time it takes.
    """

    cell: Cell
    measure: Callable[[Job], Iterable[Row]]
    store: Store
    data: Path | None = None
    minutes: float = 1.0

    @property
    def name(self) -> str:
        return self.cell.experiment

    def run(self, progress: Progress) -> Ended:
        """Run the cell here; an exception becomes its error, except under `torchrun`: other processes would wait."""
        folder = self.store.checkpoints(self.cell)
        job = Job(self.cell.settings, torch.device(self.device), self.data, folder, progress)
        begin = time.perf_counter()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            rows = [
                Row(None if step is None else int(step), str(layer), str(quantity), float(value), str(unit))
                for step, layer, quantity, value, unit in self.measure(job)
            ]
        except (Exception, SystemExit) as error:  # a script's sys.exit() ends its cell, not the others
            if process_count() > 1:
                raise
            return self.failed(_in_a_line(error))
        settings = json.loads(json.dumps(self.cell.settings))  # as the store reads them back: lists for tuples
        record = Record(settings, rows, time.perf_counter() - begin)
        return Ended(self.cell, record, "", self.attempt, made_with(self.device))

    def run_elsewhere(self) -> Ended:
        """Say which machine lacks the data, and leave no checkpoints of a finished cell there."""
        ended = super().run_elsewhere()
        if "DataNotFound" in ended.error:
            place = f"{ended.error} This is {platform.node()}: with Ray the data must lie there on every machine."
            return replace(ended, error=place)
        if ended.record is not None:
            shutil.rmtree(self.store.checkpoints(self.cell), ignore_errors=True)
        return ended

    def failed(self, error: str) -> Ended:
        """The end of a cell that failed."""
        return Ended(self.cell, None, error, self.attempt, made_with(self.device))


@cache
def made_with(device: str) -> dict[str, str]:
    """The name of the device, and the versions of the libraries that compute the numbers."""
    is_cuda = device.startswith("cuda") and torch.cuda.is_available()
    name = torch.cuda.get_device_name(device) if is_cuda else f"{device} ({platform.machine()})"
    versions = {"wellcond": __version__, "torch": torch.__version__, "numpy": np.__version__}
    return {"device": name, **versions, "python": platform.python_version()}


def _in_a_line(error: BaseException) -> str:
    """What was raised, and the last line of code that was running."""
    *_, last = traceback.extract_tb(error.__traceback__)
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text} ({Path(last.filename).name}, line {last.lineno})"
