"""The plain training loop on quadratics with closed forms, where it stops, and what a run reports."""

from __future__ import annotations

import json
import math
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from wellcond.errors import InvalidProblem, NonFinite
from wellcond.results import Row
from wellcond.results.quantities import DIVERGED_AT, FINAL_LOSS, LOSS, STEPS, TRAINING_LOSS
from wellcond.training.loop import take_step, train
from wellcond.training.run import Run


def descent(lr: float, batches: Any = (1.0,), steps: int = 4) -> Run:
    """The loss is (a w)² from w = 1, for batches a; a step takes w to (1 − 2 lr a²) w."""
    w = torch.ones(1, dtype=torch.float64, requires_grad=True)
    return train(torch.optim.SGD([w], lr), lambda _, a: (a * w).square().sum(), batches, steps)


def test_every_step_is_the_optimizers_on_the_batches_in_turn() -> None:
    w, expected = 1.0, []
    for a in (1.0, 2.0, 1.0, 2.0):
        expected.append((a * w) ** 2)
        w -= 0.1 * 2 * a * a * w
    run = descent(0.1, [1.0, 2.0])
    assert run.losses == pytest.approx(expected, rel=1e-12)


def test_a_loss_is_called_with_the_steps_taken_and_the_batch() -> None:
    w = torch.ones(1, requires_grad=True)
    calls: list[tuple[int, float]] = []

    def loss_at(step: int, batch: float) -> Tensor:
        calls.append((step, batch))
        return w.sum()

    train(torch.optim.SGD([w], 0.1), loss_at, [1.0, 2.0], 3)
    assert calls == [(0, 1.0), (1, 2.0), (2, 1.0)]


def test_a_step_without_a_finite_loss_is_not_taken() -> None:
    w = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.1)
    assert math.isnan(take_step(optimizer, lambda: w.sum() * math.nan))
    assert w.tolist() == [1.0]


def test_a_generator_without_end_is_read_as_far_as_it_is_needed() -> None:
    batches = count(0.0)
    assert len(descent(0.0, batches, 5).losses) == 5
    assert next(batches) == 5.0


@pytest.mark.parametrize("batches", [[], iter([1.0, 1.0])], ids=["none", "an iterator that ends"])
def test_batches_that_run_out_are_an_error(batches: Any) -> None:
    with pytest.raises(InvalidProblem, match="no more batches"):
        descent(0.1, batches)


# divergence


def test_a_loss_that_overflows_ends_the_run() -> None:
    # the loss of step k + 1 is (1 − 2e60)²ᵏ: 1, 4e120, 1.6e241, and then more than float64 holds
    run = descent(1e60, steps=10)
    assert (run.diverged_at, run.final, str(run)) == (4, None, "diverged @ 4")
    assert [math.log(loss) for loss in run.losses] == pytest.approx([k * 2 * math.log(2e60) for k in range(3)])


def test_a_loss_that_says_it_is_not_finite_ends_the_run_with_its_cause() -> None:
    w = torch.ones(1, requires_grad=True)

    def loss_at(step: int, _batch: float) -> Tensor:
        if step == 2:
            raise NonFinite("layer 3")
        return w.sum()

    run = train(torch.optim.SGD([w], 0.1), loss_at, [1.0], 9)
    assert (run.diverged_at, run.cause, len(run.losses)) == (3, "layer 3", 2)


# a run


STAIRS = Run([4.0] * 10 + [2.0] * 10)


def test_the_final_loss_is_the_mean_of_the_last_tenth() -> None:
    assert Run([float(k) for k in range(30)]).final == 28.0  # of 27, 28 and 29
    assert Run([3.0, 1.0]).final == 1.0


def test_the_steps_to_a_loss_are_counted_when_the_mean_of_a_tenth_is_there() -> None:
    assert [STAIRS.steps_to(loss) for loss in (5.0, 4.0, 3.0, 2.9, 2.0, 1.9)] == [2, 2, 11, 12, 12, None]
    assert Run([], diverged_at=1).curve() == ([], [])


@pytest.mark.parametrize(
    ("run", "step", "rows"),
    [
        (
            Run([3.0, 1.0]),
            None,
            [(1, TRAINING_LOSS, 3.0), (2, TRAINING_LOSS, 1.0), (None, FINAL_LOSS, 1.0), (None, STEPS, 2.0)],
        ),
        (Run([2.0], diverged_at=2), None, [(1, TRAINING_LOSS, 2.0), (None, DIVERGED_AT, 2.0), (None, STEPS, 1.0)]),
        (
            Run([2.0], evaluations=(Row(1, "", LOSS, 0.5, ""),)),
            10,
            [(11, TRAINING_LOSS, 2.0), (11, LOSS, 0.5), (10, FINAL_LOSS, 2.0), (10, STEPS, 1.0)],
        ),
    ],
    ids=["finished", "diverged", "begun at step 10"],
)
def test_rows_hold_every_loss_and_how_the_run_ended(run: Run, step: int | None, rows: list[Any]) -> None:
    assert [(row.step, row.quantity, row.value) for row in run.rows(step)] == rows


def test_a_run_is_saved_and_drawn(tmp_path: Path) -> None:
    assert json.loads(STAIRS.save(tmp_path / "run.json").read_text())["values"]["losses"] == STAIRS.losses
    assert STAIRS.save(tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
