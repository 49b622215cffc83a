"""What a call holds on a GPU: at most half of what is free, or twice its training step if that is more.

What is differentiated twice holds several times the memory of a training step in the same precision, and a script may
train in half of it. So the memory is measured before the work: that of a step, and of the work on a few examples. If
the whole does not fit, batches are measured in pieces one after the other; where the examples of a batch depend on each
other, as in a BatchNorm, what its graph holds waits in the host's memory. Both give the numbers of the whole, and take
two to seven times as long on an H200: what fits is not cut.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from wellcond.network.isolation.arithmetic import attention_of_training
from wellcond.problem.batches import Batch, examples_in, first_examples
from wellcond.problem.pieces import adds_up, in_pieces
from wellcond.problem.problem import Problem
from wellcond.results import Cost

OVER_STEP = 2.0
"""Memory of a call next to that of a training step, which it may take however little is free."""
PLANNED = 0.95
"""Share of it that is planned: workspaces of libraries and estimates of graphs took up to 4 % more on an H200."""
OF_FREE = 0.5
"""Share of the free memory that it may take: fragments take some too."""
TRIED = 8
"""One example in this number is measured first."""
KEPT = 1.4
"""Memory of a graph for several products over that of one which is freed on the way: 1.3 to 1.36 for ResNet, ViT and
GPT-2."""
IN_WORK = 2
"""Vectors of all parameters that the work holds however few its examples are: gradients and a product."""
FEWEST_NORMALIZED = 8
"""Fewest examples that are tried where a BatchNorm takes their statistics."""

CUT = "each batch of {size} examples is measured in pieces of at most {examples}, to hold at most {most}"
ON_HOST = (
    "what the graph of a batch holds, about {needed} GiB, waits in the host's memory, to hold at most {most}, as {why}"
)


@dataclass(frozen=True)
class Planned:
    """How a problem is measured within the memory of its device.

    Attributes:
        problem: The problem, or the same in pieces, or with graphs that wait on the host.
        examples: Most examples of a piece; None: batches are whole.
        pieces: Number of pieces of a batch.
        basis: Bytes that are left for stored vectors.
        seconds: Seconds of the work on one batch.
        text: What is planned, in words; "" on a device without a limit.
        notes: What the result has to say of it.
    """

    problem: Problem
    examples: int | None = None
    pieces: int = 1
    basis: float = math.inf
    seconds: float = 0.0
    text: str = ""
    notes: tuple[str, ...] = ()

    def of(self, problem: Problem) -> Problem:
        """Another problem with batches of the same size, measured in the same way."""
        if self.problem.waits_on_host:
            return _waiting(problem)
        return problem if self.examples is None else in_pieces(problem, self.examples)

    def in_batches(self, cost: Cost) -> Cost:
        """The cost of what was measured in this way, in passes over whole batches."""
        return cost / self.pieces


def planned(
    problem: Problem,
    work: Callable[[Problem], Any],
    *,
    vectors: int,
    basis: float = 0.0,
    besides: Callable[[float], float] = lambda _: 0.0,
    optimizer: Optimizer | None = None,
) -> Planned:
    """Measure a training step and the work on a few examples, and choose how many fit.

    Args:
        problem: The problem. Its memory is limited.
        work: Does the work once on every batch of a problem.
        vectors: Vectors of all parameters that are held besides.
        basis: Bytes of further vectors that it would like to store.
        besides: Called after the work on a few examples with the number of all over theirs; returns the
            bytes of what the work on all has stored at its end.
        optimizer: Optimizer of the step; None: one like Adam.
    """
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        _, batch = next(data)
    size = examples_in(batch)
    vector = sum(p.numel() * p.element_size() for p in problem.params.values())
    with problem.as_trained():
        _, activations = passed(problem, attention_of_training)
    states, held = states_of(optimizer)
    step = (1 + states) * vector + max(activations, 2 * vector)  # at its end: gradients, and what it is computed with
    by_step = PLANNED * OVER_STEP * step - (1 + held + vectors) * vector
    by_free = OF_FREE * free_of(problem.device) - vectors * vector
    room = max(by_step, by_free)
    tried = min(max(size // TRIED, FEWEST_NORMALIZED if problem.couples_examples else 1), size)
    can_be_cut = tried < size and problem.runs_on_part(batch)
    tried = tried if can_be_cut else size
    seconds, needed = _tried(problem, work, batch, tried)
    of_example = max(needed - IN_WORK * vector, needed / 4) / tried
    basis = min(basis, max(4 * vector, room / 3))
    room -= besides(problem.batch_count * size / tried)
    graphs = KEPT if problem.is_one_batch else 1.0
    whole = of_example * size * graphs + IN_WORK * vector
    most = f"{OVER_STEP * step / 2**30:.3g} GiB on the GPU, {OVER_STEP:g} times a training step"
    if by_free > by_step:
        most = f"{OF_FREE * free_of(problem.device) / 2**30:.3g} GiB more on the GPU, half of what is free"
    examples = size
    if whole > room - basis:
        if not can_be_cut or problem.couples_examples:
            why = "a BatchNorm takes the statistics of all its examples" if can_be_cut else "it cannot be cut"
            return _on_host(problem, basis, seconds * size / tried, whole, most, why)
        examples = min(max(int((room - basis - IN_WORK * vector) / of_example), 1), size - 1)
    if examples != tried:
        seconds, needed = _tried(problem, work, batch, examples)
        needed *= graphs if examples == size else 1.0
        if needed > room - basis and can_be_cut:  # it does not grow as the examples do
            examples = min(max(int(examples * (room - basis) / needed), 1), size - 1)
            whole = max(whole, needed)
    if examples == size:
        return Planned(problem, basis=basis, seconds=seconds, text=f"at most {most}")
    if problem.couples_examples or not adds_up(problem, batch, examples):
        return _on_host(problem, basis, seconds * size / examples, whole, most, "its examples depend on each other")
    pieces = math.ceil(size / examples)
    return Planned(
        in_pieces(problem, examples),
        examples,
        pieces,
        basis,
        seconds * pieces,
        f"at most {most}, by pieces of {examples} examples",
        (CUT.format(size=size, examples=examples, most=most),),
    )


def passed(
    problem: Problem, around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
) -> tuple[float, float]:
    """Seconds of a training step's passes, and the bytes that they hold at their peak above those before.

    Args:
        problem: The problem.
        around: Context to enter around its passes.
    """

    def passes() -> None:
        with problem.measuring(), around(), contextlib.closing(problem.data()) as data:
            index, batch = next(data)
            loss = problem.training_loss(index, batch)
            problem.gradient(loss, [*problem.params.values()], allow_unused=True)

    return peak_of(problem.device, passes)


def peak_of(device: torch.device, work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of some work on a GPU, and the bytes that it holds at its peak above those before."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before, began = torch.cuda.memory_allocated(device), time.perf_counter()
    work()
    torch.cuda.synchronize(device)
    return time.perf_counter() - began, torch.cuda.max_memory_allocated(device) - before


def free_of(device: torch.device) -> float:
    """Bytes of a GPU that nobody uses; torch keeps some of them for itself."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + unused)


def states_of(optimizer: Optimizer | None) -> tuple[int, int]:
    """Vectors of all parameters that an optimizer keeps as its state, and how many of them are there already."""
    states = 2
    if isinstance(optimizer, SGD):
        states = max(int(group["momentum"] > 0) for group in optimizer.param_groups)
    return states, states if optimizer is not None and optimizer.state else 0


def _tried(problem: Problem, work: Callable[[Problem], Any], batch: Batch, examples: int) -> tuple[float, float]:
    """Seconds and bytes of the work on the first examples of a batch."""
    size = examples_in(batch)
    part = batch if examples == size else first_examples(batch, examples)
    first = Problem(problem.model, problem.loss, [part], problem.batchnorm, dropout=problem.dropout)
    once = in_pieces(first, examples)  # which are read anew for every product: no graph is kept
    measured = peak_of(problem.device, lambda: work(once))
    spent = once.cost / (size / examples)
    problem.count_copies(Cost(spent.forwards, spent.backwards, 0, spent.product_passes))
    return measured


def _on_host(problem: Problem, basis: float, seconds: float, needed: float, most: str, why: str) -> Planned:
    note = ON_HOST.format(needed=f"{needed / 2**30:.3g}", most=most, why=why)
    return Planned(_waiting(problem), basis=basis, seconds=seconds, text=note, notes=(note,))


def _waiting(problem: Problem) -> Problem:
    """The problem, with what its graphs hold in the host's memory."""
    waiting = Problem(problem.model, problem.loss, problem.source, problem.batchnorm, dropout=problem.dropout)
    waiting.waits_on_host = True
    return waiting
