"""One writer for each kind of logger: numbers by step, and findings as the logger takes them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from wellcond.diagnosis.finding import Finding
from wellcond.results.result import as_json

Numbers = Mapping[int, Mapping[str, float]]
"""Values of series by their names, by step."""
MOST_AT_ONCE = 1000
"""Metrics that MLflow takes in one call."""
NO_LOGGER = """\
{kind} is no logger that is known. Pass a SummaryWriter, a run of W&B, trackio or MLflow, or the path of a JSONL file;
any other object with log_metrics(metrics, step=…) works too."""


class Writer:
    """Writes to a logger: to any with `log_metrics(metrics, step=…)`, as those of Lightning and Comet have it.

    Args:
        logger: The user's.
    """

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def write(self, numbers: Numbers) -> None:
        """Log numbers, steps ascending."""
        for step, values in numbers.items():
            self.logger.log_metrics(dict(values), step=step)

    def tell(self, finding: Finding) -> None:
        """Log a finding that has begun or ended, if the logger takes text."""


class TensorBoardWriter(Writer):
    """A `SummaryWriter` of torch or tensorboardX."""

    def write(self, numbers: Numbers) -> None:
        for step, values in numbers.items():
            for name, value in values.items():
                self.logger.add_scalar(name, value, step)

    def tell(self, finding: Finding) -> None:
        self.logger.add_text("wellcond/findings", in_markdown(finding), finding.until or finding.step)


class WandbWriter(Writer):
    """A run of W&B, or `wandb` itself. Steps are a series of their own, since its count of steps is the user's."""

    def __init__(self, logger: Any) -> None:
        super().__init__(logger)
        self._is_defined = False

    def write(self, numbers: Numbers) -> None:
        if not self._is_defined:
            self._is_defined = True
            self.logger.define_metric("wellcond/*", step_metric="wellcond/step")
        for step, values in numbers.items():
            self.logger.log({**values, "wellcond/step": step})

    def tell(self, finding: Finding) -> None:
        if finding.until is None and finding.severity != "note":
            level = "ERROR" if finding.severity == "severe" else "WARN"
            self.logger.alert(title=title_of(finding), text=in_markdown(finding), level=level)


class TrackioWriter(Writer):
    """A run of trackio, or `trackio` itself."""

    def write(self, numbers: Numbers) -> None:
        for step, values in numbers.items():
            self.logger.log(dict(values), step=step)

    def tell(self, finding: Finding) -> None:
        if finding.until is None:
            levels = {"severe": "ERROR", "warning": "WARN", "note": "INFO"}
            level = import_module("trackio").AlertLevel[levels[finding.severity]]
            self.logger.alert(title=title_of(finding), text=in_markdown(finding), level=level)


class MlflowWriter(Writer):
    """A run of MLflow, or `mlflow` itself; findings are in the file `wellcond/findings.md` of the run."""

    def __init__(self, logger: Any) -> None:
        super().__init__(logger)
        self._findings: list[str] = []

    def write(self, numbers: Numbers) -> None:
        mlflow, now = import_module("mlflow"), int(1000 * time.time())
        metrics = [
            mlflow.entities.Metric(name, value, now, step)
            for step, values in numbers.items()
            for name, value in values.items()
        ]
        for start in range(0, len(metrics), MOST_AT_ONCE):
            mlflow.MlflowClient().log_batch(self._run_id, metrics[start : start + MOST_AT_ONCE])

    def tell(self, finding: Finding) -> None:
        self._findings.append(in_markdown(finding))
        client = import_module("mlflow").MlflowClient()
        client.log_text(self._run_id, "\n\n".join(self._findings), "wellcond/findings.md")

    @property
    def _run_id(self) -> str:
        run = self.logger.active_run() if isinstance(self.logger, ModuleType) else self.logger
        return str(run.info.run_id)


class JsonLinesWriter(Writer):
    """A file with a line for each step, and one for each finding; the logger is its path."""

    def write(self, numbers: Numbers) -> None:
        self._append(*({"step": step, **values} for step, values in numbers.items()))

    def tell(self, finding: Finding) -> None:
        self._append({"step": finding.until or finding.step, "finding": finding})

    def _append(self, *lines: dict[str, Any]) -> None:
        path = Path(self.logger)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(as_json(line))}\n" for line in lines)


def writer_for(logger: Any) -> Writer:
    """The writer for a user's logger.

    Raises:
        TypeError: There is none.
    """
    if isinstance(logger, (str, Path)):
        return JsonLinesWriter(logger)
    for each in (logger, getattr(logger, "experiment", None)):  # a logger of Lightning's holds another one
        if hasattr(each, "add_scalar"):
            return TensorBoardWriter(each)
        if hasattr(each, "define_metric"):
            return WandbWriter(each)
        if hasattr(each, "active_run") or hasattr(getattr(each, "info", None), "run_id"):
            return MlflowWriter(each)
        if hasattr(each, "alert"):
            return TrackioWriter(each)
    if hasattr(logger, "log_metrics"):
        return Writer(logger)
    raise TypeError(NO_LOGGER.format(kind=f"a {type(logger).__name__}"))


def title_of(finding: Finding) -> str:
    """Rule and layer of a finding."""
    return f"{finding.rule} at {finding.layer}" if finding.layer else finding.rule


def in_markdown(finding: Finding) -> str:
    """A finding as text: what began at which step, why, and what to write; or that it has ended."""
    if finding.until is not None:
        return f"**{title_of(finding)}** ended at step {finding.until}"
    code = f"\n\n```python\n{finding.remedy}\n```" if finding.remedy else ""
    title = f"**{finding.severity}: {title_of(finding)}** from step {finding.step}"
    return f"{title}: {finding.summary} {finding.reason}{code}"
