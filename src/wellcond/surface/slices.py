"""Slices of the loss landscape: the loss on a line or a plane through the parameters."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wellcond.errors import NonFinite
from wellcond.problem.arguments import as_positive, as_whole, check_problem, shared_memory
from wellcond.problem.points import Check, Progress, buffers_lent, checked_if_it_moves, forwards_of_failure, mean_loss
from wellcond.problem.problem import Problem
from wellcond.results import Row, number, text_table
from wellcond.surface.directions import Direction, Wanted, check_direction, find_directions, name_of, scaled_to_filters


@dataclass(frozen=True)
class LossSlice:
    """The loss on a grid. Tensors are float64, on the CPU.

    coordinates: (points,), the α of the first direction and the β of the second.
    losses: (points,), or (points, points) with [i, j] at α_i and β_j; nan where the loss is NaN or infinite.
    forwards: forward passes. A loss that is not finite takes one more, to find the layer to blame, and the first such
        another, at θ. Those of `check`, to be sure of the problem, are among them.
    evaluations, products: for the directions, as in `Landscape`.
    """

    coordinates: Tensor
    losses: Tensor
    directions: tuple[str, ...]
    filter_normalised: bool
    batchnorm: str
    forwards: int
    evaluations: int
    products: int
    notes: tuple[str, ...]
    check: Check = field(default_factory=Check)

    @property
    def cost(self) -> float:
        """In u, one forward+backward pass; a forward pass is counted as a third of one, and may take up to half."""
        return self.forwards / 3 + self.evaluations + 2 * self.products

    def rows(self, step: int | None = None) -> list[Row]:
        places = itertools.product(range(len(self.coordinates)), repeat=self.losses.dim())
        named = {f"coordinate[{i}]": value for i, value in enumerate(self.coordinates.tolist())}
        named |= {f"loss[{','.join(map(str, place))}]": float(self.losses[place]) for place in places}
        rows = [Row(step, "", quantity, value, "") for quantity, value in named.items()]
        return [*rows, Row(step, "", "cost", self.cost, "u")]

    def __str__(self) -> str:
        places = list(map(number, self.coordinates.tolist()))
        if self.losses.dim() == 1:
            table = text_table(["α", "loss"], zip(places, map(_loss, self.losses.tolist()), strict=True))
        else:
            body = [[place, *map(_loss, line)] for place, line in zip(places, self.losses.tolist(), strict=True)]
            table = text_table(["α \\ β", *places], body)
        cost = f"{self.forwards} forward passes, about {number(self.forwards / 3)} u"
        if self.evaluations:
            cost += f", and {self.evaluations} u for the gradient"
        if self.products:
            cost += f", and {self.products} products with the Hessian, about 2 u each"
        cost = ", ".join([cost, *(f"with {words}" for words in self.check.words)])
        scaled = "filter-normalised" if self.filter_normalised else "as they are"
        return "\n".join(
            [
                table,
                f"directions: {', '.join(self.directions)}, {scaled}; batchnorm={self.batchnorm!r}; "
                f"cost {cost} (u: a forward+backward pass)",
                *(f"note: {note}" for note in self.notes),
            ]
        )


def loss_slice(
    problem: Problem,
    directions: Sequence[Wanted] = ("random",),
    *,
    extent: float = 1.0,
    points: int = 21,
    filter_normalised: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> LossSlice:
    """The loss along one direction, or on the plane of two, with the parameters in the middle.

        L(θ + α d₁)   or   L(θ + α d₁ + β d₂),   α, β ∈ linspace(−extent, extent, points)

    It needs forward passes alone: points or points² of them, about a third of a u each. An odd number of points puts θ
    itself on the grid. A loss that is not finite is nan, but at θ itself it is an error.

    directions: one or two of "random", Gaussian, drawn with `seed` and independent of each other (in high dimension
        nearly orthogonal, by about 1/√P); "gradient"; "eigenvector", of the Hessian's largest eigenvalue, a second one
        of the next; or a tensor (P,).
    filter_normalised: scale every filter of a direction to the norm of the same filter of θ, and leave biases and norm
        parameters where they are, so that slices of different networks compare (Li et al. 2018). A step of 1 then is
        as long as the weights. Otherwise directions are used as they are; eigenvectors have norm 1.
    progress: called as (what is being measured, share of the work that is done).

    >>> import wellcond as wc
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> model.weight.data = torch.tensor([[2.0]])
    >>> problem = wc.Problem(model, torch.nn.MSELoss(), (torch.ones(1, 1), torch.zeros(1, 1)))
    >>> loss_slice(problem, ["gradient"], points=3).losses.tolist()      # w = 0, 2, 4
    [0.0, 4.0, 16.0]
    """
    check_problem(problem)
    if isinstance(directions, (str, Tensor)) or len(directions) not in (1, 2):
        raise ValueError(f"directions is {directions!r}; write a list of one or two.")
    for direction in directions:
        check_direction(problem, direction)
    extent, points = as_positive("extent", extent), as_whole("points", points, 2)
    # from whole numbers, so that the middle is exactly zero
    coordinates = extent * (2 * torch.arange(points, dtype=torch.float64) - (points - 1)) / (points - 1)
    with problem.measuring():
        axes = find_directions(problem, directions, seed)
        vectors = [scaled_to_filters(problem, d) for d in axes.found] if filter_normalised else axes.found
        losses, forwards, failures, check = _grid(problem, vectors, coordinates.tolist(), progress)
    return LossSlice(
        coordinates,
        losses,
        tuple(map(name_of, directions)),
        filter_normalised,
        problem.batchnorm,
        forwards + check.forwards,
        axes.evaluations,
        axes.products,
        (*axes.notes, *shared_memory(problem).values(), *failures),
        check,
    )


def _grid(
    problem: Problem, vectors: Sequence[Direction], coordinates: Sequence[float], progress: Progress | None
) -> tuple[Tensor, int, list[str], Check]:
    """The losses, the passes they took, the first reason why one is not finite, and what the check took."""
    losses = torch.full((len(coordinates),) * len(vectors), math.nan, dtype=torch.float64)
    failures: list[str] = []
    forwards = 0
    with contextlib.ExitStack() as first_pass, buffers_lent(problem.params.values()) as (theta, here):
        check = first_pass.enter_context(checked_if_it_moves(problem))
        for i, place in enumerate(itertools.product(range(len(coordinates)), repeat=len(vectors))):
            if progress is not None:
                progress("loss slice", i / losses.numel())
            torch._foreach_copy_(here, theta)
            for index, d in zip(place, vectors, strict=True):
                torch._foreach_add_(here, d, alpha=coordinates[index])
            try:
                losses[place] = mean_loss(problem)
                forwards += 1
            except NonFinite as error:
                forwards += forwards_of_failure(problem)
                if not failures:
                    at = ", ".join(number(coordinates[index]) for index in place)
                    failures.append(f"the loss is not finite, first at ({at}): {error}")
                    torch._foreach_copy_(here, theta)
                    forwards += 1
                    mean_loss(problem)  # which raises where it is not finite at θ either
            first_pass.close()
    return losses, forwards, failures, check


def _loss(value: float) -> str:
    return f"{value:.6g}"
