"""The mean loss and its gradient at the parameters' present values.

Call these inside `problem.measuring()`. A probe that looks at many points holds it open for all of them, because
isolating a model takes time.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from wellcond.isolation import parameters_kept
from wellcond.problem import Problem

Progress = Callable[[str, float], None]
"""Called as (what is being measured, share of all work done)."""


def mean_loss_and_gradients(problem: Problem) -> tuple[Tensor, list[Tensor]]:
    """L (), and ∇L as one tensor a trainable parameter (zeros where it is unused); one forward+backward pass.

    Batches count by their terms. `.grad` is neither read nor written.
    """
    params = list(problem.params.values())
    weight = 0.0
    mean: list[Tensor] = []
    with contextlib.closing(problem.data()) as data:
        for index, batch in data:
            evaluation = problem.evaluate(index, batch)
            found = torch.autograd.grad(evaluation.loss, params, allow_unused=True)
            gradients = [torch.zeros_like(p) if g is None else g for g, p in zip(found, params, strict=True)]
            weight += evaluation.terms
            mean = _mean([evaluation.loss.detach(), *gradients], mean, evaluation.terms / weight)
    return mean[0], mean[1:]


def mean_loss(problem: Problem) -> Tensor:
    """L (), by a forward pass alone, which builds no graph."""
    weight = 0.0
    mean: list[Tensor] = []
    with torch.no_grad(), contextlib.closing(problem.data()) as data:
        for index, batch in data:
            evaluation = problem.evaluate(index, batch)
            weight += evaluation.terms
            mean = _mean([evaluation.loss], mean, evaluation.terms / weight)
    return mean[0]


def _mean(new: list[Tensor], before: Sequence[Tensor], share: float) -> list[Tensor]:
    """The running mean with a batch of this share of the terms so far; one batch alone is not even copied."""
    return [b.lerp(n, share) for b, n in zip(before, new, strict=True)] if before else new


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


def norm(tensors: list[Tensor]) -> float:
    """√Σ‖t‖²; the one transfer from the device, however many tensors there are."""
    total = float(torch.stack(torch._foreach_norm(tensors)).double().norm())
    if 1e-15 < total < 1e15:
        return total
    # squares may have left the range of float32, as those of a vanished gradient do
    return float(torch.stack(torch._foreach_norm(tensors, 2, torch.float64)).norm())


@contextlib.contextmanager
def checked_if_it_moves(problem: Problem) -> Iterator[None]:
    """Check that the problem is the same on every pass, by `problem.check()`, but only where there is a doubt.

    A list of batches cannot change, and a model whose pass, run inside, draws no random numbers and writes to no buffer
    gives the same outputs again: then the two passes of a check are saved.
    """
    if not isinstance(problem.batches, (list, tuple)):
        problem.check()
    before = _moving_parts(problem)
    yield
    if _moving_parts(problem) != before:
        problem.check()


def _moving_parts(problem: Problem) -> list[object]:
    states = [torch.get_rng_state()]
    if problem.device.type == "cuda":
        states.append(torch.cuda.get_rng_state(problem.device))
    buffers = [(id(buffer), buffer._version) for buffer in problem.model.buffers()]
    of_numpy = [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()]
    return [random.getstate(), of_numpy, buffers, *(state.numpy().tobytes() for state in states)]
