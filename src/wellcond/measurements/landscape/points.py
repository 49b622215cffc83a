"""Other points of parameter space, visited in borrowed memory, and the loss and gradient there."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from wellcond.errors import NonFinite
from wellcond.network.isolation.isolation import parameters_kept
from wellcond.problem.problem import Problem


@contextlib.contextmanager
def buffers_lent(params: Iterable[nn.Parameter]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Let the model compute with buffers in place of its parameters' values until the block is left.

    One set of buffers serves a whole walk: write a point into them, evaluate, write the next.

    Yields:
        The parameters' own values, and the buffers, which start with the same values.
    """
    params = list(params)
    own = [p.data for p in params]
    buffers = [values.clone() for values in own]
    with parameters_kept(params):
        for p, buffer in zip(params, buffers, strict=True):
            p.data = buffer
        yield own, buffers


def loss_and_gradient(problem: Problem) -> tuple[Tensor, list[Tensor]]:
    """L (), and ∇L as one tensor per trainable parameter, zeros where it is unused; call it inside `measuring()`."""
    loss, gradients = problem.loss_and_gradients()
    return loss, [torch.zeros_like(p) if (g := gradients[name]) is None else g for name, p in problem.params.items()]


def norm(tensors: list[Tensor] | tuple[Tensor, ...]) -> float:
    """√Σ‖t‖², by one transfer from the device, however many tensors there are."""
    total = float(torch.stack(torch._foreach_norm(tensors)).double().norm())
    if 1e-15 < total < 1e15:
        return total
    # squares may have left the range of float32, as with a vanished gradient
    return float(torch.stack(torch._foreach_norm(tensors, 2, torch.float64)).norm())


def check_finite(problem: Problem, gradient: list[Tensor]) -> None:
    """Raise `NonFinite`, naming the parameter, for a gradient that is not finite although the loss is."""
    for name, part in zip(problem.params, gradient, strict=True):
        if not bool(torch.isfinite(part).all()):
            raise NonFinite(
                f"the gradient is NaN or inf at {name!r} although the loss is finite: the derivative does not exist "
                "there (a square root or norm at 0?), or it overflowed."
            )


def finite_range(values: Tensor) -> tuple[float, float]:
    """The smallest and the largest finite value; nan if there is none."""
    finite = values[torch.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (math.nan, math.nan)
