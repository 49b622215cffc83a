"""`read_run`: a recorded run, read back; also while it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.errors import MissingExtra
from wellcond.recording.directory import findings_log
from wellcond.recording.directory import manifest as manifests
from wellcond.recording.directory.lock import is_locked
from wellcond.recording.directory.reading import EndsReader, Recorded, read_rows
from wellcond.recording.directory.run_directory import ROWS
from wellcond.recording.history import EMPTY, History, Series
from wellcond.recording.judging.nesting import nested
from wellcond.results import Result, Row
from wellcond.results.text import sentence

if TYPE_CHECKING:
    import pandas

Status = Literal["running", "ended", "killed"]


@dataclass(frozen=True)
class Run(Result):
    """Everything that was recorded of a training: numbers over its steps, and what was found in them.

    Attributes:
        history: Every number, as series over steps.
        findings: First causes with what they explain, worst first, and those that are still there before those over.
        manifest: What run.json holds: model, optimizer, budget, versions, lives.
        status: `"running"` while a process writes, `"ended"`, or `"killed"` if it ended without saying so.
        path: The run directory; None for a run in memory.
        times: Seconds since 1970 at which rows were written, by step.
        notes: What could not be read, and why.
    """

    history: History = field(repr=False)
    findings: tuple[Finding, ...]
    manifest: Mapping[str, Any]
    status: Status = "running"
    path: Path | None = None
    times: Series = field(default=EMPTY, repr=False)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, history: History, findings: Iterable[Finding], manifest: Mapping[str, Any]) -> Run:
        """A run that is in memory.

        Args:
            history: Its numbers.
            findings: What was found so far.
            manifest: What run.json would hold.

        Example:
            >>> run = Run.of(History([Row(1, "", "training_loss", 2.3, "")]), [], {})
            >>> print(run.verdict())
            Nothing was found in 1 step.
        """
        status = manifest.get("status", "running")
        return cls(history, tuple(nested(findings)), manifest, status)

    @property
    def last_step(self) -> int:
        """The last step that was recorded; 0 if there is none."""
        return self.history.last_step

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that have rows, in the order of the model."""
        recorded = {layer: None for quantity in self.history.quantities() for layer in self.history.layers(quantity)}
        known = [module["name"] for module in self.manifest.get("model", ()) if module["name"] in recorded]
        return tuple(dict.fromkeys([*known, *recorded]))

    @property
    def seconds(self) -> float:
        """Time from the start of each life to its last row, together."""
        lives = self.manifest.get("lives", ())
        ends = [*(life["first_step"] for life in lives[1:]), self.last_step + 1]
        total = 0.0
        for life, end in zip(lives, ends, strict=False):  # without lives there is an end too many
            times = self.times.values[(self.times.steps >= life["first_step"]) & (self.times.steps < end)]
            total += float(times[-1]) - life["started"] if len(times) else 0.0
        return total

    def rows(self, step: int | None = None) -> list[Row]:
        """Every number that was recorded, by step.

        Args:
            step: Only those of this step.
        """
        return [row for row in self.history.rows() if step is None or row.step == step]

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a data frame with the columns step, layer, quantity, value and unit."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("pandas", "pandas") from error
        quantities, layers, series = zip(*(list(self.history) or [("", "", EMPTY)]), strict=True)
        units = [self.history.unit(quantity) for quantity in quantities]
        lengths = [len(each) for each in series]
        columns = {
            "step": np.concatenate([each.steps for each in series]),
            "layer": np.repeat(np.array(layers, object), lengths),
            "quantity": np.repeat(np.array(quantities, object), lengths),
            "value": np.concatenate([each.values for each in series]),
            "unit": np.repeat(np.array(units, object), lengths),
        }
        return pandas.DataFrame(columns).sort_values("step", kind="stable", ignore_index=True)

    def verdict(self) -> str:
        """What was found and when; otherwise that nothing was."""
        steps = f"{self.last_step:,} step{'s' * (self.last_step != 1)}"
        if not self.last_step:
            return "Nothing was recorded yet."
        faults = [finding for finding in self.findings if finding.severity != "note"]
        notes = len(self.findings) - len(faults)
        if not faults:
            noted = f" ({notes} note{'s' * (notes > 1)})" if notes else ""
            return f"Nothing was found in {steps}{noted}."
        worst = faults[0]
        where = f" at {worst.layer}" if worst.layer and worst.layer not in worst.summary else ""
        when = f", {worst.when}" if worst.when else ""
        others = len(faults) - 1
        more = f" {others} more {'was' if others == 1 else 'were'} found in {steps}." if others else ""
        return sentence(f"{worst.severity} ({worst.rule}{where}{when}): {worst.summary}") + more


def read_run(path: str | Path) -> Run:
    """Read a run directory, also while it is written.

    Args:
        path: The folder that `Recorder` was called with.

    Returns:
        The run as it is on the disk now.

    Raises:
        DataNotFound: There is no run in this folder.
        CorruptData: Its manifest is damaged, or of a later version.
        MissingExtra: pyarrow is not installed.

    Example:
        >>> import tempfile
        >>> from wellcond.recording.directory.run_directory import RunDirectory
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     directory = RunDirectory.open(folder, {})
        ...     directory.append([Row(1, "", "training_loss", 2.3, ""), Row(2, "", "training_loss", 2.1, "")])
        ...     run = read_run(folder)
        ...     directory.close()
        >>> run.status, run.last_step, run.history.series("training_loss").values.tolist()
        ('running', 2, [2.3, 2.1])
    """
    folder = Path(path).expanduser().absolute()
    return _read(folder, lambda: read_rows(folder / ROWS))


class Follower:
    """Reads a run again and again while it is written: each file once, so that a long run opens and renews at once.

    Args:
        path: The folder that `Recorder` was called with.

    Example:
        >>> import tempfile
        >>> from wellcond.recording.directory.run_directory import RunDirectory
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     directory, follower = RunDirectory.open(folder, {}), Follower(folder)
        ...     directory.append([Row(1, "", "training_loss", 2.3, "")])
        ...     before = follower.read().last_step
        ...     directory.append([Row(2, "", "training_loss", 2.1, "")])
        ...     after = follower.read().last_step
        ...     directory.close()
        >>> before, after
        (1, 2)
    """

    def __init__(self, path: str | Path) -> None:
        self._folder = Path(path).expanduser().absolute()
        self._reader = EndsReader()

    def read(self) -> Run:
        """The run as it is now: all of the whole network, and of each layer only what its files end with."""
        return _read(self._folder, lambda: read_rows(self._folder / ROWS, self._reader))


def _read(folder: Path, read: Callable[[], Recorded]) -> Run:
    is_written = is_locked(folder)
    manifest = manifests.read_manifest(folder)
    recorded = read()
    events, damaged = findings_log.read_lines(folder)
    cut = (f"{damaged} line{'s' * (damaged > 1)} of {findings_log.FINDINGS} left out: damaged.",) if damaged else ()
    return Run(
        history=recorded.history,
        findings=tuple(nested(findings_log.findings_of(events))),
        manifest=manifest,
        status="running" if is_written else "ended" if manifest.get("status") == "ended" else "killed",
        path=folder,
        times=recorded.times,
        notes=(*recorded.notes, *cut),
    )
