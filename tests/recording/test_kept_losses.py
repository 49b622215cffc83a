"""Losses that are kept until they are read, against copies of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from wellcond.recording.watching.kept_losses import TRIED, KeptLosses
from wellcond.recording.watching.readings import Readings
from wellcond.results import Row

STEPS = 3 * TRIED


def recorded(losses: Iterator[Tensor], after: Callable[[Tensor], object], fetches: set[int]) -> dict[int, float]:
    """Losses by step, as they are read; `after` is what the loop does with each of them later."""
    readings, rows = Readings(), []
    losses_on_gpu = KeptLosses(readings)
    for step, loss in enumerate(losses):
        losses_on_gpu.add(step, loss)
        after(loss)
        if step in fetches:
            rows += readings.fetch()
    rows += readings.fetch()
    return {row.step: row.value for row in rows if row.step is not None}


def fresh() -> Iterator[Tensor]:
    for step in range(STEPS):
        yield torch.tensor(float(step))


def replayed(since: int) -> Iterator[Tensor]:
    """From a step on every loss is written to the same place."""
    place = torch.tensor(0.0)
    for step in range(STEPS):
        yield torch.tensor(float(step)) if step < since else place.fill_(float(step))


@pytest.mark.parametrize("fetches", [set(), {TRIED + 3, 2 * TRIED}])
def test_losses_at_places_of_their_own_are_kept_and_not_copied(fetches, monkeypatch):
    copied = []
    clone = Tensor.clone
    monkeypatch.setattr(Tensor, "clone", lambda self, **kwargs: copied.append(self) or clone(self, **kwargs))
    assert recorded(fresh(), lambda _loss: None, fetches) == {step: float(step) for step in range(STEPS)}
    assert len(copied) == TRIED


def test_losses_that_are_changed_in_place_are_copied():
    losses = recorded(fresh(), lambda loss: loss.mul_(2.0), {TRIED, 2 * TRIED})
    assert losses == {step: float(step) for step in range(STEPS)}


@pytest.mark.parametrize("fetched", [TRIED + 8, 2 * TRIED])
def test_losses_that_are_changed_in_place_from_some_step_on_are_not_recorded_wrongly(fetched):
    changes_from = TRIED + 4
    losses = recorded(fresh(), lambda loss: loss.mul_(2.0) if loss >= changes_from else None, {fetched})
    assert losses == {step: float(step) for step in range(STEPS) if not changes_from <= step <= fetched}


def test_losses_of_processes_that_train_together_are_copied(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    losses = recorded(fresh(), lambda loss: loss.data.zero_(), {TRIED, 2 * TRIED})
    assert losses == {step: float(step) for step in range(STEPS)}


def test_replays_from_the_first_step_on_are_copied():
    losses = recorded(replayed(0), lambda _loss: None, {TRIED, 2 * TRIED})
    assert losses == {step: float(step) for step in range(STEPS)}


def test_replays_that_begin_later_cost_no_more_than_the_first_loss():
    since = TRIED + 10
    losses = recorded(replayed(since), lambda _loss: None, {TRIED})
    assert losses == {step: float(step) for step in range(STEPS) if step != since}


def test_losses_in_one_buffer_are_copied():
    buffer = torch.zeros(STEPS)
    losses = (buffer[step].fill_(float(step)) for step in range(STEPS))
    after = lambda _loss: buffer.zero_() if int(buffer.max()) == 2 * TRIED else None  # noqa: E731
    assert recorded(losses, after, {TRIED}) == {step: float(step) for step in range(STEPS)}


def test_a_loss_that_cannot_be_read_any_more_leaves_the_others(monkeypatch):
    readings = Readings()
    losses = list(fresh())
    for step, loss in enumerate(losses):
        readings.add(loss, lambda values, step=step: [Row(step, "", "loss", values[0], "")])
    gone = readings._waiting[7].values
    for name in ("to", "clone"):
        known = getattr(Tensor, name)

        def reads(self, *args, known=known, **kwargs):
            if self is gone:
                raise RuntimeError("accessing tensor output of CUDAGraphs that has been overwritten")
            return known(self, *args, **kwargs)

        monkeypatch.setattr(Tensor, name, reads)
    assert [row.step for row in readings.fetch()] == [step for step in range(STEPS) if step != 7]
