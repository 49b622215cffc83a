"""The logbook of a run: rows in memory and on disk, and what the rules say of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from wellcond.diagnosis.finding import Finding
from wellcond.recording.directory.findings_log import FindingEvent, finding_of
from wellcond.recording.directory.run_directory import RunDirectory
from wellcond.recording.history import History
from wellcond.recording.judging.course import Course
from wellcond.recording.judging.run_rule import RunEvidence
from wellcond.recording.listener import Listener
from wellcond.recording.mishaps import Mishaps, warn
from wellcond.recording.run import read_run
from wellcond.results import Row
from wellcond.results import quantities as q
from wellcond.results.result import as_json

OnFinding = Callable[[Finding], Any]
"""Called with a finding when it begins, and again, with `until` set, when it has ended."""


MOST_ROWS = 4_000_000
"""Rows that are held in memory, about 64 MB; then older ones are thinned, as they are on the disk."""
SPIKE = "loss-spike"
MOST_NOTED, MOST_NAMED = 1000, 16
"""Steps whose examples are remembered, and examples that a finding names."""


class FindingWarning(UserWarning):
    """A finding of a recorded run, as it begins. `warnings.simplefilter("ignore", FindingWarning)` silences them."""


@functools.cache
def warm_up_rules() -> None:
    """Judge a few rows once: what is loaded for it then does not interrupt a training."""
    rows = [Row(step, layer, q.GRADIENT_NORM, 1.0 + step % 3, "") for step in range(60) for layer in ("", "0")]
    losses = [Row(step, "", q.TRAINING_LOSS, 1.0 + step % 3, "") for step in range(60)]
    Course().update(RunEvidence(History([*rows, *losses]), 59, ("0",)))


class Logbook:
    """Rows and findings of a run so far.

    Args:
        layers: Names of the layers, in the model's order.
        optimizer: Class name of the optimizer.
        ignore: Names of rules that are not applied.
        on_finding: The user's callback.
        log: Receives all rows and findings.
        directory: Where rows and findings are written, if anywhere.
        mishaps: Guards the callback, the rules and the disk.

    Attributes:
        history: All rows so far.
        course: All findings so far.
        inspected: What the rules of `diagnose` said at the last inspection.
        inspected_at: The step of that; None if there was none.
    """

    def __init__(
        self,
        layers: tuple[str, ...],
        optimizer: str,
        ignore: Collection[str],
        on_finding: OnFinding | None,
        log: Listener | None,
        directory: RunDirectory | None,
        mishaps: Mishaps,
    ) -> None:
        earlier = None if directory is None else read_run(directory.path)
        self.history = History() if earlier is None else earlier.history
        self.course = Course(ignore, () if earlier is None else earlier.findings)
        self.inspected: tuple[Finding, ...] = ()
        self.inspected_at: int | None = None
        self._layers, self._optimizer, self._ignore = layers, optimizer, ignore
        self._on_finding, self._log, self._directory, self._mishaps = on_finding, log, directory, mishaps
        self._unwritten: list[Row] = []
        self._rows_since = 0
        self._indices: dict[int, Any] = {}
        self._examples: dict[int, str] = {}

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows of later steps."""
        self.history.add(rows)
        self._rows_since += len(rows)
        if self._rows_since > MOST_ROWS // 8:  # counting them takes a while
            self.history.thin(MOST_ROWS)
            self._rows_since = 0
        if self._directory is not None:
            self._unwritten.extend(rows)
        if self._log is not None and rows:
            self._mishaps.attempt("logging", functools.partial(self._log.rows, rows))

    def note_indices(self, step: int, indices: Any) -> None:
        """Remember which examples a step was made of, for a while."""
        self._indices[step] = indices
        self._indices.pop(step - MOST_NOTED, None)

    def set_aside(self) -> Path | None:
        """Begin anew in the same directory; what was recorded there is moved to a folder next to it, which is returned.

        Raises:
            OutputError: It could not be moved.
        """
        self.history, self.course = History(), Course(self._ignore)
        return None if self._directory is None else self._directory.set_aside()

    def truncate(self, step: int) -> None:
        """Drop everything after a step, from which the run goes on."""
        rows = [row for row in self.history.rows() if row.step is not None and row.step <= step]
        self.history = History(rows)
        self._unwritten = [row for row in self._unwritten if row.step is not None and row.step <= step]
        if self._directory is not None:
            directory = self._directory
            self._mishaps.attempt("files", lambda: directory.truncate(step))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All so far, worst first; one about a spike names the examples, if they are known."""
        return tuple(map(self._named, self.course.findings))

    def _named(self, finding: Finding) -> Finding:
        step = finding.step or 0
        if finding.rule != SPIKE:
            return finding
        if step in self._indices:
            places = torch.as_tensor(self._indices.pop(step)).flatten().tolist()
            few = ", ".join(map(str, places[:MOST_NAMED]))
            self._examples[step] = few if len(places) <= MOST_NAMED else f"{few} … ({len(places)})"
        examples = self._examples.get(step)
        return finding if examples is None else replace(finding, evidence=finding.evidence | {"examples": examples})

    def judge(self, step: int) -> None:
        """Apply the rules to everything so far, and tell what began and what ended."""
        evidence = RunEvidence(self.history, step, self._layers, self._optimizer, self.inspected, self.inspected_at)
        began, ended = self.course.update(evidence)
        moved = [FindingEvent("moved", step, self._named(now), before) for before, now in self.course.moved]
        events = [FindingEvent("began", step, self._named(each)) for each in began]
        events += [FindingEvent("ended", step, self._named(each)) for each in ended]
        if self._directory is not None and (moved or events):
            directory = self._directory
            self._mishaps.attempt("files", lambda: directory.append_findings([*moved, *events]))
        for event, _, each, _ in events:
            if event == "began" and each.severity != "note":
                warn(f"step {each.step}: {each}", FindingWarning)
            if self._on_finding is not None:
                self._mishaps.attempt("callback", functools.partial(self._on_finding, each))
            if self._log is not None:
                self._mishaps.attempt("logging", functools.partial(self._log.finding, each))

    def write(self) -> None:
        """Write rows that are not yet on disk, as one file."""
        rows, self._unwritten = self._unwritten, []
        directory = self._directory
        if directory is not None and rows:
            rows.sort(key=lambda row: row.step or 0)
            self._mishaps.attempt("files", lambda: directory.append(rows))

    def state_dict(self) -> dict[str, Any]:
        """Findings so far, and rows if they are not on disk; what is not yet there is written."""
        self.write()
        rows = [tuple(row) for row in self.history.rows()] if self._directory is None else []
        return {
            "rows": rows,
            "findings": as_json(self.findings),
            "inspected": as_json(self.inspected),
            "inspected_at": self.inspected_at,
        }

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Continue from a saved state, at this step."""
        if self._directory is None:
            self.history = History(Row(*row) for row in state["rows"])
        else:
            self.truncate(step)
        self.course = Course(self._ignore, map(finding_of, state["findings"]))
        self.inspected = tuple(map(finding_of, state["inspected"]))
        self.inspected_at = state["inspected_at"]

    def close(self) -> None:
        """Write what is left, and release the directory."""
        self.write()
        if self._directory is not None:
            self._mishaps.attempt("files", self._directory.close)
