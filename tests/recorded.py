"""Runs in folders, for every test of a command that reads one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wellcond.recording.directory.findings_log import FindingEvent
from wellcond.recording.directory.run_directory import RunDirectory
from wellcond.recording.run import Run


def open_run(folder: Path, run: Run, **entries: Any) -> RunDirectory:
    """Write a run and go on writing: the folder is that of a training that still runs.

    Args:
        folder: The folder to write to.
        run: Its rows, findings and manifest.
        **entries: Other entries of the manifest.
    """
    described = {name: run.manifest[name] for name in ("model", "optimizer", "budget") if name in run.manifest}
    directory = RunDirectory.open(folder, described | entries)
    directory.append(run.rows())
    directory.append_findings(
        FindingEvent("began" if each.until is None else "ended", each.step or 0, each) for each in run.findings
    )
    return directory


def write_run(folder: Path, run: Run, **entries: Any) -> Path:
    """Write a run that has ended."""
    open_run(folder, run, **entries).close()
    return folder
