"""A process that ends, comes late or does something else: an error in all others, soon, and never a hang."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from rank_cases import Batches, in_ddp, in_fsdp, part_of, perceptron
from ranks import DIED, outcomes
from torch import Tensor, distributed, nn
from torch.optim import SGD
from zoo import CLASSES, integers, normal

import wellcond as wc
from wellcond.problem.ranks import meeting, orders

SOON = 30.0
"""Seconds within which all others must know."""


def test_patience_ends_soon() -> None:
    assert meeting.PATIENCE.total_seconds() < SOON - 5
    assert orders.BETWEEN_LOOKS < SOON - 5


class Watched:
    """Batches that call a function with the number of those that were read so far."""

    def __init__(self, batches: Batches, on_batch: Callable[[int], Any]) -> None:
        self.batches, self.on_batch, self.count = batches, on_batch, 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.batches:
            self.count += 1
            self.on_batch(self.count)
            yield batch


# a process that ends


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_in_a_product(rank: int, size: int) -> None:
    network = perceptron()
    own = Watched(part_of(network.batches, rank, size), lambda count: die() if rank == 1 and count == 30 else None)
    wc.max_lr(wc.Problem(in_ddp(network.model), network.loss, own), tol=1e-12)


def killed_in_a_part(rank: int, size: int) -> None:
    """A diagnosis goes on if a part fails, but not if a process is lost."""

    def not_afterwards(_: Any) -> None:
        assert not problem.team.is_lost

    network = perceptron()
    own = Watched(part_of(network.batches, rank, size), lambda count: die() if rank == 1 and count == 14 else None)
    model = in_fsdp(network.model)
    problem = wc.Problem(model, network.loss, own)
    wc.diagnose(problem, SGD(model.parameters(), lr=0.1), on_part=not_afterwards)


def killed_while_rank_0_computes_by_itself(rank: int, size: int) -> None:
    orders.BETWEEN_LOOKS = 0.5
    network = perceptron()
    problem = wc.Problem(in_ddp(network.model), network.loss, part_of(network.batches, rank, size))
    if rank == 1:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends a process
        signal.setitimer(signal.ITIMER_REAL, 2.0)
    # remedies are trained in rank 0 alone, here for minutes
    wc.treat(problem, SGD(network.model.parameters(), lr=0.1), steps=10**5, seeds=range(9), remedies=["clip"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "size"),
    [(killed_in_a_product, 4), (killed_in_a_part, 2), (killed_while_rank_0_computes_by_itself, 3)],
)
def test_all_others_know_soon_that_a_process_was_killed(function: Any, size: int) -> None:
    results = outcomes(function, size, size, seconds=SOON)
    assert results.pop(1) == DIED
    for outcome in results:
        assert outcome.error.startswith("LostRank: a process of this training has ended"), outcome
        assert outcome.seconds < SOON / 2


# a process that does not come, comes late, or calls something else


def nobody_waits_forever(rank: int) -> dict[str, str]:
    meeting.PATIENCE = timedelta(seconds=1)  # of a test
    network = perceptron()
    own = part_of(network.batches, rank, 3)
    model, sharded = in_ddp(network.model), in_fsdp(perceptron().model)
    errors: dict[str, str] = {}

    def attempt(name: str, call: Callable[[], Any], *, comes: bool = True, after: float = 0.0) -> Any:
        """Call it, or not, after some seconds; and wait for the others."""
        result = None
        time.sleep(after)
        try:
            result = call() if comes else None
            errors[name] = ""
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
        distributed.barrier()
        return result

    def of_model() -> wc.Problem:
        return wc.Problem(model, network.loss, own)

    def record() -> wc.Recorder:
        return wc.Recorder(sharded, SGD(sharded.parameters()))

    attempt("problem of two", of_model, comes=rank != 1)
    problem = attempt("problem of all", of_model)
    attempt("recorder of two", record, comes=rank != 1)
    attempt("other calls", lambda: (wc.neurons if rank == 1 else wc.max_lr)(problem))
    running = wc.Problem(model, network.loss, own, "running")
    attempt("other problems", lambda: wc.max_lr(running if rank == 1 else problem))
    attempt("same call", lambda: wc.max_lr(problem))
    attempt("late call", lambda: wc.max_lr(problem), after=2.5 * (rank == 1))
    attempt("after that", lambda: wc.max_lr(problem))
    again = attempt("new problem", of_model)
    attempt("call of the new problem", lambda: wc.max_lr(again))
    return errors


@pytest.mark.slow
def test_a_process_that_does_not_come_or_calls_something_else_is_named() -> None:
    results = outcomes(nobody_waits_forever, 3, seconds=SOON)
    assert not any(outcome.error for outcome in results), results
    first, late, third = (outcome.value for outcome in results)
    for errors in (first, third):
        assert errors["problem of two"].startswith("LostRank: not every process called Problem within 1 s: rank 1 did")
        assert "not inside `if rank == 0:`" in errors["problem of two"]
        assert "called Recorder within 1 s: rank 1 did not" in errors["recorder of two"]
        assert "called max_lr within 1 s: rank 1 did not" in errors["late call"]
    assert "called max_lr within 1 s: the others came before rank 1" in late["late call"]
    for errors in (first, late, third):
        assert errors["after that"] == errors["late call"]
        assert errors["other calls"].startswith("InvalidProblem: the processes make different calls: rank 0 max_lr(")
        assert "rank 1 neurons(" in errors["other calls"]
        assert "batchnorm='batch')), rank 1 max_lr(" in errors["other problems"]
        good = "problem of all", "same call", "new problem", "call of the new problem"
        assert [errors[name] for name in good] == ["", "", "", ""]


# an exception in one process


class Picky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, CLASSES).double()

    def forward(self, x: Tensor) -> Tensor:
        if bool((x > 100).any()):
            raise RuntimeError("a value above 100")
        return self.layer(x)


def exceptions_of_one(rank: int) -> dict[str, str]:
    network = perceptron()
    model, picky = in_ddp(network.model), in_ddp(Picky())
    own = part_of(network.batches, rank, 2)
    x, y = normal(8, 4), integers(CLASSES, 8)
    errors: dict[str, str] = {}

    def broken_at(place: int) -> wc.Problem:
        def on_batch(count: int) -> None:
            if rank == 1 and count == place:
                raise OSError(f"file {place} is broken")

        return wc.Problem(model, network.loss, Watched(own, on_batch))

    calls: dict[str, Callable[[], Any]] = {
        "first look": lambda: wc.neurons(broken_at(1)),
        "product": lambda: wc.max_lr(broken_at(30)),
        "race": lambda: wc.suggest_lr(broken_at(12), steps=5, max_steps=20),
        "model": lambda: wc.max_lr(wc.Problem(picky, nn.CrossEntropyLoss(), [(x + 200 * rank, y)])),
        "not finite": lambda: wc.max_lr(wc.Problem(model, network.loss, [(x / (1 - rank), y)])),
        "none": lambda: wc.neurons(wc.Problem(model, network.loss, own)),
    }
    for name, call in calls.items():
        try:
            call()
            errors[name] = ""
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    return errors


@pytest.mark.slow
def test_an_exception_of_one_process_is_raised_in_all_and_the_next_call_works() -> None:
    first, second = outcomes(exceptions_of_one, 2, seconds=SOON)
    assert first.value is not None, first.trace
    assert first.value == second.value
    assert "rank 1: OSError: file 1 is broken" in first.value["first look"]
    assert "rank 1: OSError: file 30 is broken" in first.value["product"]
    assert "rank 1: OSError: file 12 is broken" in first.value["race"]
    assert "a value above 100" in first.value["model"]
    assert first.value["not finite"].startswith("NonFinite")
    assert first.value["none"] == ""
