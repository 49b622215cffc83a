"""Walks over the loss landscape: how far the gradient can be trusted (santurkar2018, section 3.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wellcond.errors import NonFinite
from wellcond.problem.arguments import as_pair, as_positive, as_whole, check_problem, shared_memory
from wellcond.problem.points import (
    Check,
    Progress,
    buffers_lent,
    checked_if_it_moves,
    forwards_of_failure,
    mean_loss_and_gradients,
    norm,
)
from wellcond.problem.problem import Problem
from wellcond.results import Row, number, text_table
from wellcond.surface.directions import Direction, Directions, Wanted, check_direction, find_directions, name_of
from wellcond.surface.walk_notes import caveats, failures

ROUNDED_STEP = 1e-3
"""Rounding of θ − a·d adds to the distance in squares: a thousandth of the step is less than a float32 resolves."""


@dataclass(frozen=True)
class Landscape:
    """The loss and its gradient along a line θ_a = θ − a·d. Tensors are (steps,), float64, on the CPU.

    step_lengths: a. losses: L(θ_a). gradient_changes: ‖∇L(θ) − ∇L(θ_a)‖. distances: ‖θ_a − θ‖ as it was walked,
        rounding included. Where the loss or the gradient is not finite, these are nan, and `notes` say why.
    loss, gradient_norm: L(θ) and ‖∇L(θ)‖.
    evaluations: forward+backward passes, one u each. products: with the Hessian, for an eigenvector; about 2 u each.
    forwards: forward passes alone, about a third of a u each: those that gave a loss which is not finite, those that
        then looked for the layer to blame, and those of `check`, which was needed to be sure of the problem.
    """

    step_lengths: Tensor
    losses: Tensor
    gradient_changes: Tensor
    distances: Tensor
    loss: float
    gradient_norm: float
    direction: str
    batchnorm: str
    evaluations: int
    products: int
    notes: tuple[str, ...]
    forwards: int = 0
    check: Check = field(default_factory=Check)

    @property
    def cost(self) -> float:
        """In u, one forward+backward pass; a forward pass is counted as a third of one."""
        return self.evaluations + 2 * self.products + self.forwards / 3

    @property
    def smoothness(self) -> Tensor:
        """‖∇L(θ) − ∇L(θ_a)‖/‖θ − θ_a‖ at every step, (steps,)."""
        return self.gradient_changes / self.distances

    @property
    def beta(self) -> float:
        """The effective β-smoothness: the largest of `smoothness` that is finite."""
        return _range(self.smoothness)[1]

    @property
    def loss_range(self) -> tuple[float, float]:
        """Loss variation: the least and the greatest finite loss of the walk."""
        return _range(self.losses)

    @property
    def gradient_change_range(self) -> tuple[float, float]:
        """Gradient predictiveness: the least and the greatest finite change of the gradient."""
        return _range(self.gradient_changes)

    def rows(self, step: int | None = None) -> list[Row]:
        """step: the training step at which the walk started."""
        named = {"loss": self.loss, "gradient_norm": self.gradient_norm, "beta": self.beta}
        named["loss_min"], named["loss_max"] = self.loss_range
        named["gradient_change_min"], named["gradient_change_max"] = self.gradient_change_range
        for name, values in {
            "step_length": self.step_lengths,
            "distance": self.distances,
            "loss": self.losses,
            "gradient_change": self.gradient_changes,
        }.items():
            named |= {f"{name}[{i}]": value for i, value in enumerate(values.tolist())}
        cost = Row(step, "", "cost", self.cost, "u")
        return [*(Row(step, "", quantity, value, "") for quantity, value in named.items()), cost]

    def __str__(self) -> str:
        columns = (self.step_lengths, self.distances, self.losses, self.gradient_changes, self.smoothness)
        body = [
            [number(a), number(distance), f"{loss:.6g}", number(change), number(ratio)]
            for a, distance, loss, change, ratio in zip(*(column.tolist() for column in columns), strict=True)
        ]
        table = text_table(["step length a", "‖θ_a − θ‖", "loss", "‖∇L − ∇L_a‖", "ratio"], body)
        cost = f"{self.evaluations} u"
        if self.products:
            cost += f" and {self.products} products with the Hessian, about 2 u each"
        if failed := self.forwards - self.check.forwards:
            cost += f" and {failed} forward passes where the loss is not finite"
        cost = ", ".join([cost, *self.check.words])
        return "\n".join(
            [
                table,
                f"from loss {self.loss:.6g}, ‖∇L‖ {number(self.gradient_norm)}; "
                f"effective β-smoothness {number(self.beta)}",
                f"direction: {self.direction}; batchnorm={self.batchnorm!r}; cost {cost} (u: a forward+backward pass)",
                *(f"note: {note}" for note in self.notes),
            ]
        )


def landscape(
    problem: Problem,
    lr: float = 0.1,
    span: tuple[float, float] = (0.5, 4.0),
    steps: int = 8,
    *,
    direction: Wanted = "gradient",
    seed: int = 0,
    progress: Progress | None = None,
) -> Landscape:
    """Walk away from the parameters and watch how the loss and its gradient change, always on the same batches.

        θ_a = θ − a·d,   a = lr·linspace(span₀, span₁, steps),   d = ∇L(θ)
        β = max_a ‖∇L(θ) − ∇L(θ_a)‖ / ‖θ − θ_a‖

    The smaller the ranges of the loss and of ‖∇L(θ) − ∇L(θ_a)‖, the better the gradient predicts what lies ahead.
    It costs 1 + steps forward+backward passes. A loader is read, and a model that draws random numbers or writes to its
    buffers is run, twice more, once a problem, to be sure that all passes see the same; a model that changes by what it
    counts in plain Python is not found out. In a training loop, `rows += wc.landscape(problem, lr).rows(step)`.

    lr: the learning rate in use, in whose units the span is. direction: "gradient"; "random", a Gaussian one drawn with
        `seed`; "eigenvector", that of the Hessian's largest eigenvalue, uphill; these two as long as the gradient, so
        that distances compare; or a tensor (P,), taken as it is.
    progress: called as (what is being measured, share of the work that is done).

    With L = 3/2 w² the gradient changes by 3 times the distance, whatever the step:

    >>> import wellcond as wc
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> model.weight.data = torch.tensor([[2.0]])
    >>> problem = wc.Problem(model, lambda f, y: 1.5 * (f - y).square().mean(), (torch.ones(1, 1), torch.zeros(1, 1)))
    >>> walk = landscape(problem, lr=0.1, span=(1, 3), steps=3)
    >>> round(walk.beta, 4), walk.losses.round(decimals=4).tolist()     # w = 1.4, 0.8, 0.2
    (3.0, [2.94, 0.96, 0.06])
    """
    check_problem(problem)
    lr, span, steps = as_positive("lr", lr), _checked(span), as_whole("steps", steps, 1)
    check_direction(problem, direction)
    lengths = lr * torch.linspace(*span, steps, dtype=torch.float64)
    with problem.measuring():
        with checked_if_it_moves(problem) as check:
            loss, gradient = mean_loss_and_gradients(problem)
        gradient_norm = norm(gradient)
        _check_gradient(problem, gradient, gradient_norm)
        found = Directions([gradient]) if _is(direction, "gradient") else find_directions(problem, [direction], seed)
        d = found.found[0]
        if _is(direction, "random", "eigenvector"):
            torch._foreach_mul_(d, gradient_norm / norm(d))
        if _is(direction, "eigenvector") and _inner(d, gradient) < 0:
            torch._foreach_neg_(d)
        length = norm(d)
        walked = _walk(problem, gradient, (d, length), lengths.tolist(), progress)
    losses, changes, distances, culprits, forwards = walked
    notes = [*found.notes, *shared_memory(problem).values(), *failures(lengths, losses, changes, culprits)]
    return Landscape(
        lengths,
        losses,
        changes,
        distances,
        float(loss),
        gradient_norm,
        name_of(direction),
        problem.batchnorm,
        1 + steps - len(culprits),
        found.products,
        (*notes, *caveats(lengths, changes, distances, gradient_norm, length, problem.dtype)),
        forwards + check.forwards,
        check,
    )


def _walk(
    problem: Problem,
    gradient: Direction,
    d_and_length: tuple[Direction, float],
    lengths: Sequence[float],
    progress: Progress | None,
) -> tuple[Tensor, Tensor, Tensor, list[str], int]:
    """L(θ_a), ‖∇L(θ) − ∇L(θ_a)‖ and ‖θ_a − θ‖ for every a; why losses are not finite, and the forward passes of these.

    One set of buffers holds the point, then the change of the gradient.
    """
    losses, changes, distances = torch.full((3, len(lengths)), math.nan, dtype=torch.float64)
    culprits, forwards = [], 0
    d, length = d_and_length
    smallest = torch.finfo(problem.dtype).eps / ROUNDED_STEP * norm([p.data for p in problem.params.values()])
    with buffers_lent(problem.params.values()) as (theta, here):
        for i, a in enumerate(lengths):
            if progress is not None:
                progress("landscape", (1 + i) / (1 + len(lengths)))
            for place, own, step in zip(here, theta, d, strict=True):
                torch.add(own, step, alpha=-a, out=place)
            distances[i] = norm(torch._foreach_sub(here, theta)) if a * length < smallest else a * length
            try:
                loss, moved = mean_loss_and_gradients(problem)
            except NonFinite as error:
                culprits.append(str(error))
                forwards += forwards_of_failure(problem)
                continue
            for place, new, old in zip(here, moved, gradient, strict=True):
                torch.sub(new, old, out=place)  # not in place: autograd may give two parameters one tensor
            losses[i], changes[i] = loss, norm(here)
    return losses, changes, distances, culprits, forwards


def _check_gradient(problem: Problem, gradient: Direction, gradient_norm: float) -> None:
    if math.isfinite(gradient_norm):
        return
    parts = zip(problem.params, gradient, strict=True)
    culprit = next(name for name, part in parts if not bool(torch.isfinite(part).all()))
    raise NonFinite(
        f"the gradient is NaN or inf at {culprit!r} although the loss is finite: the derivative does not exist there "
        "(a square root or norm at 0?), or it overflowed."
    )


def _checked(span: Any) -> tuple[float, float]:
    least, greatest = as_pair(span)
    if not 0 < least <= greatest < math.inf:
        raise ValueError(f"span is {span!r}; it must be (least, greatest) in units of lr, with 0 < least <= greatest.")
    return least, greatest


def _inner(first: Direction, second: Direction) -> float:
    return sum(float(torch.dot(a.reshape(-1), b.reshape(-1))) for a, b in zip(first, second, strict=True))


def _is(direction: Wanted, *names: str) -> bool:
    return isinstance(direction, str) and direction in names


def _range(values: Tensor) -> tuple[float, float]:
    finite = values[torch.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (math.nan, math.nan)
