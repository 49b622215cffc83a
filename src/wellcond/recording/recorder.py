"""`Recorder`: one line in a training loop, and the run is recorded and judged as it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from wellcond.diagnosis.finding import Finding
from wellcond.problem.loss.outputs import Loss
from wellcond.problem.training_step import Step, TrainingStep
from wellcond.recording.allowance import Account, Allowance
from wellcond.recording.checks import check_share, is_compiled, model_of, optimizers_of
from wellcond.recording.directory.run_directory import MAX_BYTES, RunDirectory
from wellcond.recording.entries import entries_of
from wellcond.recording.history import History
from wellcond.recording.logbook import Logbook, OnFinding
from wellcond.recording.loss_watch import LossWatch, on_host
from wellcond.recording.mishaps import Mishaps
from wellcond.recording.readings import Readings
from wellcond.recording.run import Run, read_run
from wellcond.recording.sampling import Sampling
from wellcond.recording.watching.repeats import Repeats, sample_of
from wellcond.results import Row
from wellcond.results import quantities as q

MOST_PASSES = 64
"""Calls without a step of the optimizer that are taken for micro-batches of one step, until the first such step."""
SECONDS_BETWEEN_FILES = 10.0
"""Rows are written so often: what a run that is killed has lost at most."""

GRADIENTS, EVERYTHING, JUDGING = "gradients", "everything", "judging"


class Recorder:
    """Record a training: numbers of its steps and layers, and findings as they come, in a stated share of its time.

    The training is not changed: its weights are bit for bit those of the same run without the recorder. What the
    recorder measures by itself, it measures in a state that is restored. It never raises into the loop: what cannot be
    recorded is said once, by a warning and in `problems`.

    Args:
        model: The model that is trained.
        optimizer: Its optimizer, or a list of those that train parts of it. Two networks that are trained in turn have
            a recorder each.
        loss: As for `Problem`: `loss(outputs, targets)`, or None for a model that returns its loss. For a training step
            of your own there is `Recorder.from_step`.
        run_dir: Folder of the run, in files that other programs read too; None records in memory. A run that is there
            already is continued.
        budget: Share of wall time that recording may take.
        on_finding: Called with each finding as it begins, and again when it has ended.
        ignore: Names of rules that are not applied.
        scaler: The `GradScaler`, if there is one: for the norm before clipping, and the loss scale.
        max_bytes: Bound on the size of the folder.
        clock: Returns seconds.

    Attributes:
        model: The module that is recorded, without its wrappers.
        optimizers: The optimizers that train it.
        notes: What cannot be seen of this training, and why.

    Raises:
        TypeError: `model` is no module, or there is no torch optimizer in `optimizer`.
        InvalidProblem: Nothing in the model is trained, or not by this optimizer.
        ValueError: `budget` is no share.
        RunInUse: Another process writes to `run_dir`.
        OutputError: `run_dir` cannot be written to.
        MissingExtra: `run_dir` needs pyarrow, which is not installed.

    Example:
        >>> model, x = nn.Linear(1, 1), torch.ones(8, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Recorder(model, optimizer, nn.MSELoss()) as rec:
        ...     for _ in range(20):
        ...         optimizer.zero_grad()
        ...         value = nn.functional.mse_loss(model(x), x)
        ...         value.backward()
        ...         optimizer.step()
        ...         rec.step(value, (x, x))
        >>> len(rec.history.series("training_loss"))
        20
    """

    @classmethod
    def from_step(cls, model: nn.Module, optimizer: Any, training_step: Step, *args: Any, **kwargs: Any) -> Recorder:
        """A recorder for a training step of one's own, as in `Problem.from_step`.

        Args:
            model: The model that is trained.
            optimizer: Its optimizer, or several.
            training_step: `training_step(model, batch)` → the loss, where the batch is what `step` is called with.
            *args: As in `Recorder`.
            **kwargs: As in `Recorder`.
        """
        return cls(model, optimizer, TrainingStep(training_step), *args, **kwargs)

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        loss: Loss | None = None,
        run_dir: str | Path | None = None,
        budget: float = 0.05,
        *,
        on_finding: OnFinding | None = None,
        ignore: Collection[str] = (),
        scaler: Any = None,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        budget = check_share(budget)
        self.model = model_of(model)
        self.optimizers = optimizers_of(self.model, optimizer)
        self.notes: list[str] = []
        self._entries = entries_of(self.model, self.optimizers, budget)
        directory = None if run_dir is None else RunDirectory.open(run_dir, self._entries, max_bytes=max_bytes)
        self._clock, self._mishaps, self._readings = clock, Mishaps(clock), Readings()
        calls_are_seen = not is_compiled(model, self.model)
        self._sampling = Sampling(self.model, self.optimizers, scaler, calls_are_seen, self._readings, self._mishaps)
        names = " and ".join(type(each).__name__ for each in self.optimizers)
        self._logbook = Logbook(self._sampling.layout.every_name(), names, ignore, on_finding, directory, self._mishaps)
        self._allowance = Allowance(
            budget,
            {
                GRADIENTS: Account(0.1, price=0.05, most_spacing=50),
                EVERYTHING: Account(0.2, price=0.3),
                JUDGING: Account(0.1, price=0.1, least_spacing=10),
            },
        )
        self._losses, self._repeats = LossWatch(), Repeats()
        self._step = 0 if directory is None else directory.last_step
        self._pending: list[Any] = []
        self._patience = MOST_PASSES
        self._optimizer_steps = 0
        self._rows: list[Row] = []
        self._charged = 0.0
        self._left: float | None = None
        self._written = clock()
        self._is_open = True
        if calls_are_seen:
            self._sampling.plan("everything")

    # the run so far

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings so far, worst first: `.step` is where each began, `.until` where it ended, None if it is there."""
        return self._logbook.course.findings

    @property
    def history(self) -> History:
        """All numbers so far, as series over steps."""
        self._mishaps.guard("rows", self._fetch)
        return self._logbook.history

    @property
    def problems(self) -> list[str]:
        """What could not be recorded, and why."""
        return list(self._mishaps.messages.values())

    @property
    def run(self) -> Run:
        """The run so far, in the form of `read_run`."""
        return Run.of(self.history, self.findings, self._entries | {"notes": self.notes})

    def save(self, path: str | Path) -> None:
        """Write the run so far as a page, a table or a picture, by the suffix of the path."""
        self.run.save(path)

    # in the loop

    def step(self, value: Any, batch: Any = None, *, step: int | None = None, indices: Any = None) -> None:
        """Record a training step; call it after `optimizer.step()`.

        With gradient accumulation, call it once for each step of the optimizer, or after every micro-batch: the losses
        of calls without such a step are averaged into the next.

        Args:
            value: The loss of this step, a number or a tensor; a tensor on a GPU is not waited for.
            batch: The batch as the loader gave it, on which some things are measured; without it they are missing.
            step: Number of the step, if it is counted elsewhere; otherwise they are counted from 1.
            indices: Places of the batch's examples in the data, which a finding about a spike names.
        """
        if not self._is_open:
            return
        began = self._clock()
        in_hooks, self._mishaps.seconds, self._charged = self._mishaps.seconds, 0.0, 0.0
        ran = None if self._left is None else began - self._left - in_hooks
        if ran is not None:
            self._allowance.pass_time(ran)
        self._mishaps.guard("recording", lambda: self._record(value, batch, step, indices, ran, in_hooks))
        self._left = self._clock()
        self._mishaps.seconds = 0.0
        self._allowance.spend(max(0.0, self._left - began + in_hooks - self._charged))

    def validation(self, value: Any) -> None:
        """Record a validation loss, at the last step that was recorded."""
        row = self._mishaps.guard("validation", lambda: Row(self._step, "", q.VALIDATION_LOSS, float(value), ""))
        if row is not None:
            self._rows.append(row)

    def close(self) -> None:
        """Judge and write what is left, and remove all hooks; what is called afterwards does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self._sampling.remove()
        self._mishaps.guard("recording", lambda: self._judge(wait=True))
        self._logbook.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # one step

    def _record(
        self, value: Any, batch: Any, number: int | None, indices: Any, ran: float | None, in_hooks: float
    ) -> None:
        if not self._is_step():
            self._pending.append(value)
            return
        step = self._begin(number)
        is_alarming = self._note_loss(step, [*self._pending, value])
        self._pending = []
        self._rows += self._sampling.rates(step)
        if batch is not None:
            self._note_batch(step, batch)
        if indices is not None:
            self._logbook.note_indices(step, indices)
        if depth := self._sampling.depth:
            self._charge(depth, lambda: self._collect(step, ran), already=in_hooks)
        if is_alarming or self._allowance.is_turn(JUDGING, step):
            self._charge(JUDGING, self._judge)
        if self._clock() - self._written > SECONDS_BETWEEN_FILES:
            self._logbook.write()
            self._written = self._clock()
        self._plan(step + 1, is_alarming)

    def _is_step(self) -> bool:
        """Whether the optimizer has taken a step; or has not for so long that its steps cannot be seen."""
        taken = self._sampling.optimizer_steps
        if taken == self._optimizer_steps:
            return len(self._pending) >= self._patience
        is_first = self._optimizer_steps == 0
        self._patience = len(self._pending) if is_first else max(self._patience, len(self._pending))
        self._optimizer_steps = taken
        return True

    def _begin(self, number: int | None) -> int:
        step = self._step + 1 if number is None else number
        if step <= self._step:
            self._logbook.truncate(step - 1)
        self._step = step
        return step

    def _note_loss(self, step: int, values: list[Any]) -> bool:
        numbers = [on_host(value) for value in values]
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            loss = sum(known) / len(known)
            self._rows.append(Row(step, "", q.TRAINING_LOSS, loss, ""))
            return self._losses.is_alarming(step, loss)
        mean = (
            values[0].detach()
            if len(values) == 1
            else torch.stack([torch.as_tensor(v).detach() for v in values]).mean()
        )
        self._readings.add(mean, lambda numbers: [Row(step, "", q.TRAINING_LOSS, numbers[0], "")])
        return False

    def _note_batch(self, step: int, batch: Any) -> None:
        """Count a batch that was just seen; the count is recorded with what else is read of the step."""
        sample = sample_of(batch)
        if sample is None:
            return
        is_recorded = bool(self._sampling.depth)

        def rows(values: list[float]) -> list[Row]:
            self._repeats.count(values)
            count = Row(step, "", q.REPEATED_BATCHES, float(self._repeats.in_a_row), "batches")
            return [count] if is_recorded else []

        if sample.device.type == "cpu":
            self._rows += rows(sample.tolist())
        else:
            self._readings.add(sample, rows)

    def _collect(self, step: int, ran: float | None) -> None:
        self._rows += self._sampling.collect(step)
        if self._sampling.depth == EVERYTHING:
            self._rows.append(Row(step, "", q.RECORDING_SHARE, self._allowance.share, ""))
            if ran is not None:
                self._rows.append(Row(step, "", q.STEP_TIME, ran, "s"))

    def _judge(self, *, wait: bool = False) -> None:
        self._fetch(wait=wait)
        self._logbook.judge(self._step)

    def _fetch(self, *, wait: bool = True) -> None:
        rows, self._rows = self._rows, []
        self._logbook.add([*rows, *self._readings.fetch(wait=wait)])

    def _plan(self, step: int, is_alarming: bool) -> None:
        """Decide what is read of the coming step."""
        if is_alarming or self._allowance.is_turn(EVERYTHING, step):
            self._sampling.plan(EVERYTHING)
        elif self._allowance.is_turn(GRADIENTS, step):
            self._sampling.plan(GRADIENTS)
        elif self._sampling.depth:
            self._sampling.plan("")

    def _charge(self, part: str, function: Callable[[], Any], already: float = 0.0) -> None:
        """Run a part, and charge it for the time it took."""
        began = self._clock()
        function()
        seconds = max(0.0, self._clock() - began) + already
        self._charged += seconds
        self._allowance.charge(part, seconds, self._step)
