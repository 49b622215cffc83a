"""Slices of the loss landscape: the loss on a line or a plane through the parameters."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.errors import NonFinite
from wellcond.measurements.landscape.directions import (
    Direction,
    DirectionChoice,
    check_direction,
    find_directions,
    name_of,
    scaled_to_filters,
)
from wellcond.measurements.landscape.points import buffers_lent, finite_range
from wellcond.network.checks import shared_memory_notes
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.problem.arguments import as_positive, as_whole, check_problem
from wellcond.problem.problem import Problem
from wellcond.results import Cost, Progress, Result, Row, number, quantities, text_table
from wellcond.results.progress import shows_progress


@dataclass(frozen=True)
class LossSlice(Result):
    """The loss on a grid. Tensors are float64, on the CPU.

    Attributes:
        coordinates: α of the first direction and β of the second, (points,).
        losses: Losses, (points,), or (points, points) with [i, j] at α_i and β_j; nan if the loss is not finite.
        directions: Names of the directions; "given" for a tensor.
        filter_normalized: Whether directions were scaled filter by filter.
        batchnorm: Statistics that BatchNorm used.
        cost: Passes over the data.
        notes: Remarks on the numbers.
    """

    coordinates: Tensor
    losses: Tensor
    directions: tuple[str, ...]
    filter_normalized: bool
    batchnorm: str
    cost: Cost
    notes: tuple[str, ...]

    def rows(self, step: int | None = None) -> list[Row]:
        least, greatest = finite_range(self.losses)
        return [
            Row(step, "", quantities.LOSS_LEAST, least, ""),
            Row(step, "", quantities.LOSS_GREATEST, greatest, ""),
            Row(step, "", quantities.COST, self.cost.u, "u"),
        ]

    def __str__(self) -> str:
        places = list(map(number, self.coordinates.tolist()))
        if self.losses.dim() == 1:
            table = text_table(["α", "loss"], zip(places, map(_loss, self.losses.tolist()), strict=True))
        else:
            body = [[place, *map(_loss, line)] for place, line in zip(places, self.losses.tolist(), strict=True)]
            table = text_table(["α \\ β", *places], body)
        scaled = "filter-normalized" if self.filter_normalized else "as they are"
        return "\n".join(
            [
                table,
                f"directions: {', '.join(self.directions)}, {scaled}; batchnorm={self.batchnorm!r}; {self.cost}",
                *(f"note: {note}" for note in self.notes),
            ]
        )


@shows_progress
@own_arithmetic()
def loss_slice(
    problem: Problem,
    directions: Sequence[DirectionChoice] = ("random",),
    *,
    extent: float = 1.0,
    points: int = 21,
    filter_normalized: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> LossSlice:
    """The loss along one direction, or on the plane of two, with the parameters in the middle.

        L(θ + α d₁)   or   L(θ + α d₁ + β d₂),   α, β ∈ linspace(−extent, extent, points)

    It only needs forward passes: points or points² of them, about a third of a u each. A loss that is not finite is
    nan, but at θ itself it is an error.

    Args:
        problem: The model, loss and data.
        directions: One or two of `"random"`, Gaussian, drawn with `seed` and independent of each other (in high
            dimension nearly orthogonal, by about 1/√P); `"gradient"`; `"eigenvector"`, of the Hessian's largest
            eigenvalue, a second one of the next; or a tensor (P,).
        extent: Half the side of the grid, in units of the directions.
        points: Points per direction; an odd number puts θ itself on the grid.
        filter_normalized: Scale every filter of a direction to the norm of the same filter of θ, and leave biases and
            norm parameters where they are, so that slices of different networks compare (Li et al. 2018). A step of 1
            then is as long as the weights. Otherwise directions are used as they are; eigenvectors have norm 1.
        seed: Seed of random directions.
        progress: Called as (current task, share of all work done).

    Returns:
        The losses on the grid.

    Raises:
        NonFinite: The loss is not finite at the parameters themselves.
        NotDeterministic: Two passes do not see the same problem.
        ValueError: An argument is out of range.

    Example:
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
    coordinates = extent * (2 * torch.arange(points, dtype=torch.float64, device="cpu") - (points - 1)) / (points - 1)
    before = problem.cost
    with problem.measuring():
        vectors, notes = find_directions(problem, directions, seed)
        if filter_normalized:
            vectors = [scaled_to_filters(problem, d) for d in vectors]
        losses, failures = _grid(problem, vectors, coordinates.tolist(), progress)
    return LossSlice(
        coordinates=coordinates,
        losses=losses,
        directions=tuple(map(name_of, directions)),
        filter_normalized=filter_normalized,
        batchnorm=problem.batchnorm,
        cost=problem.cost - before,
        notes=(*notes, *shared_memory_notes(problem.params).values(), *failures),
    )


def _grid(
    problem: Problem, vectors: Sequence[Direction], coordinates: Sequence[float], progress: Progress | None
) -> tuple[Tensor, list[str]]:
    """The losses, and the first reason why one is not finite."""
    losses = torch.full((len(coordinates),) * len(vectors), math.nan, dtype=torch.float64, device="cpu")
    failures: list[str] = []
    with contextlib.ExitStack() as first_pass, buffers_lent(problem.params.values()) as (theta, here):
        first_pass.enter_context(problem.checked_if_in_doubt())
        for i, place in enumerate(itertools.product(range(len(coordinates)), repeat=len(vectors))):
            if progress is not None:
                progress("loss slice", i / losses.numel())
            torch._foreach_copy_(here, theta)
            for index, d in zip(place, vectors, strict=True):
                torch._foreach_add_(here, d, alpha=coordinates[index])
            try:
                losses[place] = problem.mean_loss()
            except NonFinite as error:
                if not failures:
                    at = ", ".join(number(coordinates[index]) for index in place)
                    failures.append(f"the loss is not finite, first at ({at}): {error}")
                    torch._foreach_copy_(here, theta)
                    problem.mean_loss()  # raises if it is not finite at θ either
            first_pass.close()
    return losses, failures


def _loss(value: float) -> str:
    return f"{value:.6g}"
