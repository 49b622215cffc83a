"""`Recorder`: one line in a training loop, and the run is recorded and judged as it goes."""

from __future__ import annotations

import atexit
import functools
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Self

from torch import nn

from wellcond.diagnosis.finding import Finding
from wellcond.network.calling import one_line
from wellcond.problem.loss.outputs import Loss
from wellcond.problem.training_step import Step, TrainingStep
from wellcond.recording.allowance import Allowance
from wellcond.recording.checks import check_share, is_compiled, model_of, optimizers_of
from wellcond.recording.directory.run_directory import MAX_BYTES, RunDirectory
from wellcond.recording.earlier_run import EarlierRun
from wellcond.recording.entries import entries_of
from wellcond.recording.history import History
from wellcond.recording.listener import Listener
from wellcond.recording.live_display import LiveDisplay
from wellcond.recording.logbook import Logbook, OnFinding, warm_up_rules
from wellcond.recording.mishaps import Mishaps
from wellcond.recording.probes.probing import Probing, warm_up
from wellcond.recording.ranks import RecorderRanks
from wellcond.recording.run import Run
from wellcond.recording.settings import changes
from wellcond.recording.step_record import StepRecord
from wellcond.recording.turns import Turns, all_parts
from wellcond.recording.watching.counting import StepCount
from wellcond.recording.watching.readings import Readings
from wellcond.recording.watching.sampling import EVERYTHING, Sampling
from wellcond.recording.watching.steps import READ_TOGETHER
from wellcond.results import Row
from wellcond.results import quantities as q

COMPILED = """\
the model is compiled, so hooks do not see its layers: their outputs are measured in passes of their own, without \
dropout"""
MOST_FINDINGS = 3
"""Findings that the name of a recorder has."""


class Recorder:
    """Record a training: numbers of its steps and layers, and findings as they come, in a stated share of its time.

    The training is not changed: its weights are bit for bit those of the same run without the recorder. What the
    recorder measures by itself, it measures in a state that is restored. It never raises into the loop: what cannot be
    recorded is said once, by a warning and in `problems`.

    `print(rec)` shows the verdict so far. What is left is judged and written at the end of a `with`, by `close()`, or
    when the recorder or the interpreter goes.

    Args:
        model: The model that is trained.
        optimizer: Its optimizer, or a list of those that train parts of it. Two networks that are trained in turn have
            a recorder each.
        loss: As for `Problem`: `loss(outputs, targets)`, or None for a model that returns its loss. For a training step
            of your own there is `Recorder.from_step`.
        run_dir: Folder of the run, in files that other programs read too; None records in memory. A run that is there
            already is continued. One of another model or with other settings of the optimizer is moved to a folder
            next to it, unless it is asked for by `load_state_dict` or by `step(…, step=…)`.
        budget: Share of wall time that recording may take.
        on_finding: Called with each finding as it begins, and again when it has ended.
        log: Receives all numbers and findings: `wellcond.integrations.log_to(writer)` for TensorBoard, W&B and others.
        ignore: Names of rules that are not applied.
        scaler: The `GradScaler`, if there is one: for the norm before clipping, and the loss scale.
        max_bytes: Bound on the size of the folder.
        clock: Returns seconds.

    Attributes:
        model: The module that is recorded, without its wrappers.
        optimizers: The optimizers that train it.

    Raises:
        TypeError: `model` is no module, or there is no torch optimizer in `optimizer`.
        InvalidProblem: Nothing in the model is trained, or not by this optimizer.
        ValueError: `budget` is no share.
        RunInUse: Another process writes to `run_dir`.
        OutputError: `run_dir` cannot be written to.
        LostRank: Not all processes of a sharded model make a recorder.
        MissingExtra: `run_dir` needs pyarrow, which is not installed.

    Example:
        >>> import torch
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
        >>> rec
        <Recorder of Linear: 20 steps, nothing was found, in memory, ended>
    """

    _is_open = False

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
        log: Listener | None = None,
        ignore: Collection[str] = (),
        scaler: Any = None,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        budget = check_share(budget)
        self.model = model_of(model)
        self.optimizers = optimizers_of(self.model, optimizer)
        self._ranks = RecorderRanks(model)
        is_writer = self._ranks.is_writer
        calls_are_seen = self._ranks.sees_calls and not is_compiled(model, self.model)
        notes = [*self._ranks.notes, *([COMPILED] if is_compiled(model, self.model) else [])]
        self._entries = entries_of(self.model, self.optimizers, budget) | {"notes": notes}
        directory = RunDirectory.open(run_dir, self._entries, max_bytes=max_bytes) if run_dir and is_writer else None
        self._place = "in memory" if directory is None else f"in {run_dir}"
        self._clock, self._mishaps, self._readings = clock, Mishaps(clock), Readings()
        self._sampling = Sampling(
            self.model, self.optimizers, scaler, calls_are_seen, self._readings, self._mishaps, self._ranks.team
        )
        layout = self._sampling.layout
        names = " and ".join(type(each).__name__ for each in self.optimizers)
        on_finding, log = (on_finding, log) if is_writer else (None, None)
        self._logbook = Logbook(layout.every_name(), names, ignore, on_finding, log, directory, self._mishaps)
        self._allowance = Allowance(budget, all_parts())
        self._probing = Probing(self.model, loss, self.optimizers, layout, self._allowance)
        self._turns = Turns(
            self._sampling,
            self._probing,
            self._logbook,
            self._readings,
            self._allowance,
            self._mishaps,
            clock,
            self._ranks,
        )
        self._mishaps.on_failure = functools.partial(_give_up, self._allowance, self._ranks)
        self._count = StepCount(self._ranks.agreed(0 if directory is None else directory.last_step))
        earlier = None if directory is None else directory.earlier
        changed = self._ranks.agreed([] if earlier is None else changes(earlier, self._entries))
        self._earlier = EarlierRun(self._count.step, changed, self._place, self._logbook, is_writer=is_writer)
        self._steps = StepRecord(
            self._count,
            self._earlier,
            self._sampling,
            self._readings,
            self._turns,
            self._logbook,
            self._mishaps,
            self._ranks,
        )
        self._is_open = not self._ranks.is_idle
        self._displays: list[LiveDisplay] = []
        self._owner = os.getpid(), id(self)
        self._at_exit = functools.partial(_close, weakref.ref(self))
        atexit.register(self._at_exit)  # now: what it logs to may have an exit of its own, and the last comes first
        warm_up()
        warm_up_rules()
        if self._ranks.is_idle:
            self._sampling.remove()
        elif calls_are_seen or self._ranks.team is not None:  # a model that is yet to be compiled must not see hooks
            self._sampling.plan(EVERYTHING)

    # the run so far

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Findings so far, worst first: `.step` is where each began, `.until` where it ended, None if it is there."""
        return self._logbook.findings

    @property
    def history(self) -> History:
        """All numbers so far, as series over steps."""
        self._mishaps.attempt("rows", self._turns.fetch)
        return self._logbook.history

    @property
    def notes(self) -> list[str]:
        """What cannot be seen of this training, and why."""
        return [*self._notes(), *filter(None, [self._probing.curvature.note])]

    @property
    def problems(self) -> list[str]:
        """What could not be recorded, and why."""
        return list(self._mishaps.messages.values())

    @property
    def run(self) -> Run:
        """The run so far, in the form of `read_run`."""
        status = "running" if self._is_open else "ended"
        return Run.of(self.history, self.findings, self._entries | {"notes": self.notes, "status": status})

    def save(self, path: str | Path) -> None:
        """Write the run so far as a page, a table or a picture, by the suffix of the path."""
        self.run.save(path)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on as if it had not stopped: save it with the model and the optimizer.

        It holds numbers, strings and tensors, for `torch.load(weights_only=True)`. With a `run_dir` the rows are there;
        without one they are part of it.
        """
        self._turns.fetch()
        return {
            "count": self._count.state_dict(),
            "turns": self._turns.state_dict(),
            **self._steps.state_dict(),
            "sampling": self._sampling.state_dict(),
            "logbook": self._logbook.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state, after the model and the optimizer were loaded: what was recorded later is dropped.

        Args:
            state: What `state_dict()` returned.
        """
        self._earlier.is_open = False
        self._count.load_state_dict(state["count"])
        self._logbook.load_state_dict(state["logbook"], self._count.step)
        self._turns.load_state_dict(state["turns"])
        self._steps.load_state_dict(state)
        self._sampling.load_state_dict(state["sampling"])

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
        try:
            self._steps.record(value, batch, step, indices, began)
        except Exception as error:  # nothing that goes wrong here is worth a training
            self._mishaps.report("recording", f"recording has ended: {type(error).__name__}: {one_line(error)}")
            self.close()
        for display in self._displays:
            self._mishaps.guard("display", display.refresh)
        self._turns.own += self._clock() - began

    def validation(self, value: Any) -> None:
        """Record a validation loss, at the last step that was recorded."""
        step = self._count.step
        row = self._mishaps.attempt("validation", lambda: Row(step, "", q.VALIDATION_LOSS, float(value), ""))
        if row is not None:
            self._turns.rows.append(row)

    def close(self) -> None:
        """Judge and write what is left, and remove all hooks; what is called afterwards does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        atexit.unregister(self._at_exit)
        self._sampling.remove()
        self._ranks.leave()
        self._mishaps.attempt("rules", lambda: self._turns.judge(self._count.step, wait=True))
        self._logbook.close()
        for display in self._displays:
            self._mishaps.guard("display", display.show)

    def _ipython_display_(self) -> None:
        """In a notebook: the run so far, which goes on changing in its cell while the training runs."""
        self._displays.append(LiveDisplay(lambda: self.run))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # a copy and that of a forked process do not have the folder
        if self._is_open and self._owner == (os.getpid(), id(self)):
            self.close()

    def __repr__(self) -> str:
        steps = f"{self._count.step:,} step{'s' * (self._count.step != 1)}"
        findings = [f"{each.severity}: {each.rule}{f' at {each.layer}' * bool(each.layer)}" for each in self.findings]
        findings[MOST_FINDINGS:] = [f"{len(findings) - MOST_FINDINGS} more"] * (len(findings) > MOST_FINDINGS)
        state = "recording" if self._is_open else "ended"
        parts = [steps, ", ".join(findings) or "nothing was found", self._place, state]
        return f"<Recorder of {type(self.model).__name__}: {', '.join(parts)}>"

    def __str__(self) -> str:
        return f"{self.run}\n{self._place}"

    def _notes(self) -> Iterator[str]:
        yield from self._ranks.notes
        activations = self._sampling.activations
        if activations is None and self._ranks.sees_calls:
            yield COMPILED
        if activations is not None and activations.outputs.is_half and not self._sampling.has_scaler:
            yield "half precision without scaler=…: the norm before clipping is not recorded"
        if self._count.step and not self._count.sees_steps:
            yield (
                "steps of the optimizer are not seen, as in the replay of a CUDA graph: gradients, weights and rates "
                "are not recorded, and every call of step() counts as one"
            )


def _close(recorder: weakref.ref[Recorder]) -> None:
    """Close a recorder that is still there."""
    if (one := recorder()) is not None:
        one.__del__()


def _give_up(allowance: Allowance, ranks: RecorderRanks, part: str) -> None:
    """Do without a part that has failed; where processes read it together, they end the recording together."""
    allowance.close(part)
    if part in READ_TOGETHER:
        ranks.leave()
