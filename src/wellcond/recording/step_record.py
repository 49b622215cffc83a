"""`StepRecord`: what is recorded of one step of training."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

from torch import Tensor

from wellcond.network.calling import one_line
from wellcond.recording.earlier_run import EarlierRun
from wellcond.recording.logbook import Logbook
from wellcond.recording.mishaps import Mishaps
from wellcond.recording.ranks import RecorderRanks
from wellcond.recording.turns import Turns
from wellcond.recording.watching.counting import EVERY_SKIPPED, MORE, StepCount
from wellcond.recording.watching.kept_losses import KeptLosses
from wellcond.recording.watching.labels import BatchLabels, labels_of
from wellcond.recording.watching.loss_watch import LossWatch
from wellcond.recording.watching.readings import Readings
from wellcond.recording.watching.repeats import EVERY, Repeats, sample_of
from wellcond.recording.watching.sampling import Sampling
from wellcond.results import Row
from wellcond.results import quantities as q


class StepRecord:
    """Records single steps: loss, rates, skipped steps, repeated and sorted batches, and whether to look closer.

    Args:
        count: Counts the steps.
        earlier: The run that is in the folder already.
        sampling: What is read of the optimizer and the layers.
        readings: Numbers on a GPU that are read later, many at once.
        turns: Takes its turn to look closer.
        logbook: Keeps what is recorded.
        mishaps: Says what could not be recorded.
        ranks: The processes that train the model.
    """

    def __init__(
        self,
        count: StepCount,
        earlier: EarlierRun,
        sampling: Sampling,
        readings: Readings,
        turns: Turns,
        logbook: Logbook,
        mishaps: Mishaps,
        ranks: RecorderRanks,
    ) -> None:
        self._count, self._earlier, self._sampling, self._readings = count, earlier, sampling, readings
        self._turns, self._logbook, self._mishaps, self._ranks = turns, logbook, mishaps, ranks
        self._losses, self._repeats, self._labels = LossWatch(), Repeats(), BatchLabels()
        self._kept_losses = KeptLosses(readings)

    def state_dict(self) -> dict[str, Any]:
        """What the recorder of a resumed run needs to go on."""
        return {"losses": self._losses.state_dict(), "repeats": self._repeats.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self._losses.load_state_dict(state["losses"])
        self._repeats.load_state_dict(state["repeats"])

    def record(self, value: Any, batch: Any, number: int | None, indices: Any, began: float) -> None:
        """Record a step, and look closer at it where that is due.

        Args:
            value: The loss.
            batch: The batch, or None.
            number: The number of the step, if it is counted elsewhere.
            indices: Places of the examples in the data, or None.
            began: When the recorder was called.
        """
        sampling, seen = self._sampling, self._sampling.seen
        value = self._count.loss_of_step(seen.steps, value, is_captured=seen.is_captured)
        if value is MORE:
            return
        if self._earlier.is_open:
            self._earlier.decide(self._count, number)
        last = self._count.step
        step = self._count.begin(number)
        if not self._ranks.is_writer:
            if step >= self._turns.next_look or self._sampling.depth:
                self._turns.follow(step)
            return
        if step <= last:
            self._turns.fetch()
            self._logbook.truncate(step - 1)
        is_alarming, is_finite = self._note_loss(step, value)
        is_lost, is_alarming = is_alarming and not is_finite, is_alarming or seen.writes_anew
        seen.writes_anew = False
        if seen.has_new_rates:
            self._turns.rows += sampling.settings.rates(step, is_read=bool(sampling.depth))
            seen.has_new_rates = False
        if self._count.skipped and self._count.skipped % EVERY_SKIPPED == 0:
            self._turns.rows.append(Row(step, "", q.SKIPPED_STEPS, float(self._count.skipped), "steps"))
        if indices is not None:
            self._logbook.note_indices(step, indices)
        if batch is not None and step % EVERY == 0:
            self._note_batch(step, batch)
        is_urgent = is_alarming and self._ranks.team is None  # of which other processes do not know
        if step >= self._turns.next_look or is_urgent or sampling.depth:
            probed = batch if self._ranks.can_probe else None
            self._turns.look(step, probed, self._count.passes, is_alarming, is_lost, began)
        if is_finite:
            self._turns.last_batch = batch

    def _note_loss(self, step: int, value: Any) -> tuple[bool, bool]:
        """Keep the loss of a step: whether it is alarming, and whether it is finite; on a GPU both are known later."""
        if isinstance(value, Tensor) and not value.is_cpu and value.numel() == 1:
            self._kept_losses.add(step, value)
            return False, False
        try:
            loss = value.item() if isinstance(value, Tensor) else float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            self._mishaps.report("the loss", f"step() was not called with a number: {one_line(error)}")
            return False, False
        self._turns.rows.append(Row(step, "", q.TRAINING_LOSS, loss, ""))
        return self._losses.is_alarming(step, loss), math.isfinite(loss)

    def _note_batch(self, step: int, batch: Any) -> None:
        """Count a batch that was just seen, and note its labels; on a GPU both are known later."""
        sample = sample_of(batch)
        if sample is None:
            return

        def rows(values: list[float]) -> list[Row]:
            before = self._repeats.in_a_row
            self._repeats.count(values)
            count = self._repeats.in_a_row
            is_new = not count or not before or step % (2 * EVERY) == 0
            repeats = [Row(step, "", q.REPEATED_BATCHES, float(count), "batches")] if is_new else []
            size = math.sqrt(fmean(value * value for value in values))
            return [*repeats, Row(step, "", q.INPUT_SIZE, size, "")] if sample.is_floating_point() else repeats

        self._add(sample, rows)
        if step % (2 * EVERY) == 0 and (labels := labels_of(batch)) is not None:
            self._add(labels, lambda values: self._labels.rows(step, values))

    def _add(self, sample: Tensor, rows: Callable[[list[float]], list[Row]]) -> None:
        """Rows of a few numbers of a batch, which are read with what else is read of a step if they are on a GPU."""
        if sample.device.type == "cpu":
            self._turns.rows += rows(sample.tolist())
        else:
            self._readings.add(sample.float(), rows)
