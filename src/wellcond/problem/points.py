"""The mean loss and its gradient at the parameters' present values.

Call these inside `problem.measuring()`. A probe that looks at many points holds it open for all of them, because
isolating a model takes time.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from wellcond.network.isolation import generators_of, parameters_kept
from wellcond.problem.problem import Problem

Progress = Callable[[str, float], None]
"""Called as (what is being measured, share of all work done)."""


def mean_loss_and_gradients(problem: Problem) -> tuple[Tensor, list[Tensor]]:
    """L (), and ∇L as one tensor a trainable parameter (zeros where it is unused); one forward+backward pass."""
    params = list(problem.params.values())
    loss, gradients = mean_loss_and_gradients_of(problem, params)
    return loss, [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, params, strict=True)]


def mean_loss_and_gradients_of(problem: Problem, params: Sequence[nn.Parameter]) -> tuple[Tensor, list[Tensor | None]]:
    """L (), and its gradient with respect to these alone: autograd leaves out what lies before them.

    None where a parameter is unused, which an optimizer tells from a gradient of zero. Batches count by their terms.
    `.grad` is neither read nor written.
    """
    mean: list[Tensor | None] = []
    for loss, share in _losses(problem):
        found = torch.autograd.grad(loss, params, allow_unused=True)
        mean = _mean([loss.detach(), *found], mean, share)
    assert mean[0] is not None
    return mean[0], mean[1:]


def mean_loss(problem: Problem) -> Tensor:
    """L (), by a forward pass alone, which builds no graph."""
    mean: list[Tensor | None] = []
    with torch.no_grad():
        for loss, share in _losses(problem):
            mean = _mean([loss], mean, share)
    assert mean[0] is not None
    return mean[0]


def _losses(problem: Problem) -> Iterator[tuple[Tensor, float]]:
    """The loss of every batch, and the batch's share of the terms so far."""
    weight = 0.0
    with contextlib.closing(problem.data()) as data:
        for index, batch in data:
            if problem.is_one_batch:
                yield problem.loss_again(index, batch), 1.0
            else:
                evaluation = problem.evaluate(index, batch)
                weight += evaluation.terms
                yield evaluation.loss, evaluation.terms / weight


def _mean(new: list[Tensor | None], before: Sequence[Tensor | None], share: float) -> list[Tensor | None]:
    """The running mean with a batch of this share of the terms. None counts as zero; one batch is not rounded."""
    if not before:
        return new
    merged: list[Tensor | None] = []
    for b, n in zip(before, new, strict=True):
        if b is None or n is None:
            merged.append(b * (1 - share) if b is not None else n * share if n is not None else None)
        else:
            merged.append(b.lerp(n, share))
    return merged


@contextlib.contextmanager
def buffers_lent(params: Iterable[nn.Parameter]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """The parameters' own values, and buffers that the model computes with in their place until this is left.

    One set of buffers serves a whole walk: write a point into them, evaluate, write the next. What they hold at first
    is undefined.
    """
    params = list(params)
    own = [p.data for p in params]
    buffers = [torch.empty_like(values) for values in own]
    with parameters_kept(params):
        for p, buffer in zip(params, buffers, strict=True):
            p.data = buffer
        yield own, buffers


def norm(tensors: list[Tensor] | tuple[Tensor, ...]) -> float:
    """√Σ‖t‖²; the one transfer from the device, however many tensors there are."""
    total = float(torch.stack(torch._foreach_norm(tensors)).double().norm())
    if 1e-15 < total < 1e15:
        return total
    # squares may have left the range of float32, as those of a vanished gradient do
    return float(torch.stack(torch._foreach_norm(tensors, 2, torch.float64)).norm())


def forwards_of_failure(problem: Problem) -> int:
    """Forward passes that a loss which is not finite has taken, at the present values, of the batch that gave it.

    One, and one to find the layer to blame, unless a parameter itself is not finite.
    """
    return 1 + all(bool(torch.isfinite(p.detach()).all()) for p in problem.params.values())


@dataclass
class Check:
    """What it took to see that every pass sees the same problem.

    forwards: passes of the first batch. readings: of the data, without a pass.
    """

    forwards: int = 0
    readings: int = 0

    @property
    def words(self) -> list[str]:
        """For a line of costs; empty where nothing was in doubt."""
        words = [f"{self.forwards} forward passes of the first batch to check that the model stays the same"]
        words += [f"{self.readings} readings of the loader to check that its data do"]
        return [text for text, count in zip(words, (self.forwards, self.readings), strict=True) if count]


@contextlib.contextmanager
def checked_if_it_moves(problem: Problem) -> Iterator[Check]:
    """Check that the problem is the same on every pass, by `problem.check()`, but only where there is a doubt.

    A list of batches cannot change, and a model whose pass, run inside, draws no random numbers, neither from the
    global generators nor from one of its own, and writes to no buffer gives the same outputs again: then the two passes
    of a check are saved. What a model counts in plain Python cannot be seen.
    """
    check = Check()

    def make_sure() -> None:
        if not problem.is_checked:
            check.forwards += 0 if problem.dropout is not None else 2
            check.readings += 0 if isinstance(problem.batches, (list, tuple)) else 2
        problem.check()

    if not isinstance(problem.batches, (list, tuple)):
        make_sure()
    generators = generators_of(problem.model)
    before = _moving_parts(problem, generators)
    yield check
    if _moving_parts(problem, generators) != before:
        make_sure()


def _moving_parts(problem: Problem, generators: Iterable[torch.Generator]) -> list[object]:
    states = [torch.get_rng_state(), *(generator.get_state() for generator in generators)]
    if problem.device.type == "cuda":
        states.append(torch.cuda.get_rng_state(problem.device))
    buffers = [(id(buffer), buffer._version) for buffer in problem.model.buffers()]
    of_numpy = [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]
    return [random.getstate(), of_numpy, buffers, *(state.numpy().tobytes() for state in states)]
