"""The loop of long runs on quadratics with closed forms: batches, progress, evaluations and divergence."""

from __future__ import annotations

import math
from itertools import count
from typing import Any

import pytest
import torch

from wellcond.errors import InvalidProblem, NonFinite
from wellcond.results import Row
from wellcond.results.quantities import LOSS
from wellcond.results.run import Run
from wellcond_papers.training.loop import Loop
from wellcond_papers.training.step import EagerStep


def descent(lr: float, batches: Any = (1.0,), steps: int = 4, progress: Any = None, **options: Any) -> Run:
    """The loss is (a w)² from w = 1, for batches a; a step takes w to (1 − 2 lr a²) w."""
    w = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr)
    step = EagerStep[float](optimizer, lambda _, a: (a * w).square().sum())
    return Loop(optimizer, step, steps, **options).run(batches, progress)


@pytest.mark.parametrize("batches", [[1.0, 2.0], lambda step: [1.0, 2.0][step % 2]], ids=["a list", "a function"])
def test_every_step_is_the_optimizers_on_the_batches_in_turn(batches: Any) -> None:
    w, losses = 1.0, []
    for a in (1.0, 2.0, 1.0, 2.0):
        losses.append((a * w) ** 2)
        w -= 0.1 * 2 * a * a * w
    shares: list[float] = []
    run = descent(0.1, batches, progress=lambda _, share: shares.append(share))
    assert run.losses == pytest.approx(losses, rel=1e-12)
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_a_loss_that_overflows_ends_the_run() -> None:
    # the loss of step k + 1 is (1 − 2e60)²ᵏ: 1, 4e120, 1.6e241, and then more than float64 holds
    run = descent(1e60, steps=10)
    assert (run.diverged_at, len(run.losses), run.final) == (4, 3, None)


def test_a_step_that_raises_non_finite_ends_the_run_with_its_cause() -> None:
    w = torch.ones(1, requires_grad=True)

    def step(taken: int, _batch: float) -> float:
        if taken == 2:
            raise NonFinite("layer 3")
        return 1.0

    run = Loop(torch.optim.SGD([w], 0.1), step, 9).run([1.0])
    assert (run.diverged_at, run.cause, len(run.losses)) == (3, "layer 3", 2)


def test_evaluations_are_at_the_chosen_steps() -> None:
    run = descent(0.1, steps=5, evaluate=lambda step: [Row(step, "", LOSS, float(step), "")], at=[0, 2, 4])
    assert run.evaluated(LOSS) == [0, 2, 4]
    assert [row.step for row in run.evaluations] == [0, 2, 4]


@pytest.mark.parametrize("bad", [0, 2, 4])
def test_an_evaluation_that_is_not_finite_ends_the_run(bad: int) -> None:
    def evaluate(step: int) -> list[Row]:
        return [Row(step, "", LOSS, math.nan if step == bad else 1.0, "")]

    run = descent(0.1, at=range(5), evaluate=evaluate)
    assert (run.diverged_at, len(run.losses), run.final) == (bad, bad, None)
    assert run.evaluated(LOSS) == [1.0] * bad


def test_a_generator_without_end_is_read_as_far_as_it_is_needed() -> None:
    batches = count(0.0)
    assert len(descent(0.0, batches, 5).losses) == 5
    assert next(batches) == 5.0


@pytest.mark.parametrize("batches", [[], iter([1.0, 1.0])], ids=["none", "an iterator that ends"])
def test_batches_that_run_out_are_an_error(batches: Any) -> None:
    with pytest.raises(InvalidProblem, match="no more batches"):
        descent(0.1, batches)
