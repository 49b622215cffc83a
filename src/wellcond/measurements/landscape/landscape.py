"""Walks over the loss landscape: how far the gradient can be trusted (santurkar2018, section 3.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellcond.errors import NonFinite
from wellcond.measurements.landscape.directions import (
    Direction,
    DirectionChoice,
    check_direction,
    find_directions,
    name_of,
)
from wellcond.measurements.landscape.points import buffers_lent, check_finite, finite_range, loss_and_gradient, norm
from wellcond.network.calling import dtype_name
from wellcond.network.checks import shared_memory_notes
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.problem.arguments import as_positive, as_two_numbers, as_whole, check_problem
from wellcond.problem.problem import Problem
from wellcond.results import Cost, Progress, Result, Row, number, quantities, text_table
from wellcond.results.progress import shows_progress

ROUNDED_STEP = 1e-3
"""Relative rounding of a step above which the distance is measured: below, it changes the distance by at most 1e-6."""
ROUNDINGS = 10
"""A change of the gradient below this many rounding errors of its norm may be rounding alone."""


@dataclass(frozen=True)
class Landscape(Result):
    """The loss and its gradient along a line θ_a = θ − a·d. Tensors are (steps,), float64, on the CPU.

    If the loss or the gradient is not finite at a point, its entries are nan, and `notes` say why.

    Attributes:
        step_lengths: Step lengths a.
        losses: L(θ_a).
        gradient_changes: ‖∇L(θ) − ∇L(θ_a)‖.
        distances: ‖θ_a − θ‖ as it was walked, including rounding.
        loss: L(θ).
        gradient_norm: ‖∇L(θ)‖.
        direction: Name of d; "given" for a tensor.
        batchnorm: Statistics that BatchNorm used.
        cost: Passes over the data.
        notes: Remarks on the numbers.
    """

    step_lengths: Tensor
    losses: Tensor
    gradient_changes: Tensor
    distances: Tensor
    loss: float
    gradient_norm: float
    direction: str
    batchnorm: str
    cost: Cost
    notes: tuple[str, ...]

    @property
    def smoothness(self) -> Tensor:
        """‖∇L(θ) − ∇L(θ_a)‖/‖θ − θ_a‖ at every step, (steps,)."""
        return self.gradient_changes / self.distances

    @property
    def beta(self) -> float:
        """The effective β-smoothness: the largest finite value of `smoothness`."""
        return finite_range(self.smoothness)[1]

    @property
    def loss_range(self) -> tuple[float, float]:
        """Loss variation: the smallest and the largest finite loss of the walk."""
        return finite_range(self.losses)

    @property
    def gradient_change_range(self) -> tuple[float, float]:
        """Gradient predictiveness: the smallest and the largest finite change of the gradient."""
        return finite_range(self.gradient_changes)

    def rows(self, step: int | None = None) -> list[Row]:
        (loss_least, loss_greatest), (change_least, change_greatest) = self.loss_range, self.gradient_change_range
        values = {
            quantities.LOSS: self.loss,
            quantities.GRADIENT_NORM: self.gradient_norm,
            quantities.BETA: self.beta,
            quantities.LOSS_LEAST: loss_least,
            quantities.LOSS_GREATEST: loss_greatest,
            quantities.GRADIENT_CHANGE_LEAST: change_least,
            quantities.GRADIENT_CHANGE_GREATEST: change_greatest,
        }
        rows = [Row(step, "", quantity, value, "") for quantity, value in values.items()]
        return [*rows, Row(step, "", quantities.COST, self.cost.u, "u")]

    def __str__(self) -> str:
        columns = (self.step_lengths, self.distances, self.losses, self.gradient_changes, self.smoothness)
        body = [
            [number(a), number(distance), f"{loss:.6g}", number(change), number(ratio)]
            for a, distance, loss, change, ratio in zip(*(column.tolist() for column in columns), strict=True)
        ]
        return "\n".join(
            [
                text_table(["step length a", "‖θ_a − θ‖", "loss", "‖∇L − ∇L_a‖", "ratio"], body),
                f"from loss {self.loss:.6g}, ‖∇L‖ {number(self.gradient_norm)}; "
                f"effective β-smoothness {number(self.beta)}",
                f"direction: {self.direction}; batchnorm={self.batchnorm!r}; {self.cost}",
                *(f"note: {note}" for note in self.notes),
            ]
        )


@shows_progress
@own_arithmetic()
def landscape(
    problem: Problem,
    lr: float = 0.1,
    span: tuple[float, float] = (0.5, 4.0),
    steps: int = 8,
    *,
    direction: DirectionChoice = "gradient",
    seed: int = 0,
    progress: Progress | None = None,
) -> Landscape:
    """The loss and its gradient along a line that starts at the parameters, always on the same batches.

        θ_a = θ − a·d,   a = lr·linspace(span₀, span₁, steps),   d = ∇L(θ)
        β = max_a ‖∇L(θ) − ∇L(θ_a)‖ / ‖θ − θ_a‖

    The smaller the ranges of the loss and of ‖∇L(θ) − ∇L(θ_a)‖, the better the gradient predicts the loss ahead.
    It costs 1 + steps forward+backward passes. A loader, and a model that draws random numbers or writes to its
    buffers, are also checked once per problem, to make sure that all passes see the same data; counters that a model
    keeps in plain Python are not noticed. In a training loop, write `rows += wc.landscape(problem, lr).rows(step)`.

    Args:
        problem: The model, loss and data.
        lr: Learning rate in use; the span is in its units.
        span: Shortest and longest step.
        steps: Number of points.
        direction: `"gradient"`; `"random"`, a Gaussian one drawn with `seed`; `"eigenvector"`, that of the Hessian's
            largest eigenvalue, uphill; these two as long as the gradient, so that distances compare; or a tensor (P,),
            used as it is.
        seed: Seed of a random direction.
        progress: Called as (current task, share of all work done).

    Returns:
        Losses, gradient changes and distances along the walk.

    Raises:
        NonFinite: The loss or its gradient is not finite at the parameters themselves.
        NotDeterministic: Two passes do not see the same problem.
        ValueError: An argument is out of range.

    Example:
        With L = 3/2 w² the gradient changes by 3 times the distance, whatever the step:

        >>> import wellcond as wc
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> model.weight.data = torch.tensor([[2.0]])
        >>> batch = (torch.ones(1, 1), torch.zeros(1, 1))
        >>> problem = wc.Problem(model, lambda f, y: 1.5 * (f - y).square().mean(), batch)
        >>> walk = landscape(problem, lr=0.1, span=(1, 3), steps=3)
        >>> round(walk.beta, 4), walk.losses.round(decimals=4).tolist()     # w = 1.4, 0.8, 0.2
        (3.0, [2.94, 0.96, 0.06])
    """
    check_problem(problem)
    lr, span, steps = as_positive("lr", lr), _checked(span), as_whole("steps", steps, 1)
    check_direction(problem, direction)
    lengths = lr * torch.linspace(*span, steps, dtype=torch.float64, device="cpu")
    before = problem.cost
    with problem.measuring():
        with problem.checked_if_in_doubt():
            loss, gradient = loss_and_gradient(problem)
        gradient_norm = norm(gradient)
        if not math.isfinite(gradient_norm):
            check_finite(problem, gradient)
        name = name_of(direction)
        (d,), notes = ([gradient], []) if name == "gradient" else find_directions(problem, [direction], seed)
        if name in ("random", "eigenvector"):
            torch._foreach_mul_(d, gradient_norm / norm(d))
        if name == "eigenvector" and _inner(d, gradient) < 0:
            torch._foreach_neg_(d)
        length = norm(d)
        losses, changes, distances, failures = _walk(problem, gradient, d, length, lengths.tolist(), progress)
    notes += [*shared_memory_notes(problem.params).values(), *_failure_notes(lengths, losses, changes, failures)]
    notes += _caveats(lengths, changes, distances, gradient_norm, length, problem.dtype)
    return Landscape(
        step_lengths=lengths,
        losses=losses,
        gradient_changes=changes,
        distances=distances,
        loss=float(loss),
        gradient_norm=gradient_norm,
        direction=name,
        batchnorm=problem.batchnorm,
        cost=problem.cost - before,
        notes=tuple(notes),
    )


def _walk(
    problem: Problem,
    gradient: Direction,
    d: Direction,
    length: float,
    lengths: Sequence[float],
    progress: Progress | None,
) -> tuple[Tensor, Tensor, Tensor, list[str]]:
    """L(θ_a), ‖∇L(θ) − ∇L(θ_a)‖ and ‖θ_a − θ‖ for every a, and the reasons for losses that are not finite.

    One set of buffers holds the point, then the change of the gradient.
    """
    losses, changes, distances = torch.full((3, len(lengths)), math.nan, dtype=torch.float64, device="cpu")
    failures = []
    smallest = torch.finfo(problem.dtype).eps / ROUNDED_STEP * norm([p.data for p in problem.params.values()])
    with buffers_lent(problem.params.values()) as (theta, here):
        for i, a in enumerate(lengths):
            if progress is not None:
                progress("landscape", (1 + i) / (1 + len(lengths)))
            for place, own, step in zip(here, theta, d, strict=True):
                torch.add(own, step, alpha=-a, out=place)
            distances[i] = norm(torch._foreach_sub(here, theta)) if a * length < smallest else a * length
            try:
                loss, moved = loss_and_gradient(problem)
            except NonFinite as error:
                failures.append(str(error))
                continue
            for place, new, old in zip(here, moved, gradient, strict=True):
                torch.sub(new, old, out=place)  # not in place: two parameters may share one gradient tensor
            losses[i], changes[i] = loss, norm(here)
    return losses, changes, distances, failures


def _failure_notes(lengths: Tensor, losses: Tensor, changes: Tensor, failures: Sequence[str]) -> Iterator[str]:
    """Notes on the places where the gradient or the loss is not finite, with the reason of the first such place."""
    no_loss = losses.isnan()
    why = "the gradient is NaN or inf although the loss is finite."
    for failed, reason in ((~no_loss & ~changes.isfinite(), why), (no_loss, "".join(failures[:1]))):
        places = failed.nonzero().flatten().tolist()
        if places:
            first = float(lengths[places[0]])
            if len(places) == 1:
                where = f"at step length {first:g}"
            elif places == list(range(places[0], len(lengths))):
                where = f"from step length {first:g} on"
            else:
                where = f"at {len(places)} of {len(lengths)} step lengths, first at step length {first:g}"
            yield f"{where}, {reason}"


def _caveats(
    lengths: Tensor, changes: Tensor, distances: Tensor, gradient_norm: float, length: float, dtype: torch.dtype
) -> Iterator[str]:
    """Notes on why β is missing or unreliable, after a walk along a direction of this length."""
    if length == 0:
        zero = "gradient" if gradient_norm == 0 else "direction"
        yield f"the {zero} is zero, so the walk does not leave θ: β is undefined."
        return
    kind = dtype_name(dtype)
    if (stuck := lengths[distances == 0]).numel():
        yield (
            f"up to step length {float(stuck.max()):g}, θ − a·d rounds to θ in {kind}: "
            "take a larger lr, or measure model.double()."
        )
    ratios = (changes / distances).nan_to_num(-1.0, posinf=-1.0)
    top = int(ratios.argmax())
    if 0 < float(changes[top]) < ROUNDINGS * torch.finfo(dtype).eps * gradient_norm:
        yield (
            f"β comes from step length {float(lengths[top]):g}, where the gradient changes by little more than {kind} "
            "rounds: it may be rounding, not curvature. Take a larger lr, or measure model.double()."
        )


def _checked(span: Any) -> tuple[float, float]:
    least, greatest = as_two_numbers(span)
    if not 0 < least <= greatest < math.inf:
        raise ValueError(f"span is {span!r}; it must be (least, greatest) in units of lr, with 0 < least <= greatest.")
    return least, greatest


def _inner(first: Direction, second: Direction) -> float:
    return sum(float((a.double() * b.double()).sum()) for a, b in zip(first, second, strict=True))
