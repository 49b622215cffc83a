"""What a run reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wellcond.results import Row
from wellcond.results.quantities import DIVERGED_AT, FINAL_LOSS, LOSS, STEPS, TRAINING_LOSS
from wellcond.results.run import Run

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


@pytest.mark.slow
def test_a_run_is_saved_and_drawn(tmp_path: Path) -> None:
    assert json.loads(STAIRS.save(tmp_path / "run.json").read_text())["values"]["losses"] == STAIRS.losses
    assert STAIRS.save(tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
