"""Directions in parameter space: random, along the gradient, along the Hessian's top eigenvectors, or a tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from wellcond.curvature.hessian import Hessian
from wellcond.curvature.spectra.eigenvalues import eigenvalues
from wellcond.measurements.landscape.points import loss_and_gradient
from wellcond.network.layers import EmbeddingRule, rule_for, weighted_layers
from wellcond.network.norms import is_norm
from wellcond.problem.problem import Problem
from wellcond.results import number

DirectionName = Literal["gradient", "random", "eigenvector"]
DirectionChoice = DirectionName | Tensor
"""A name, or a tensor (P,)."""
Direction = list[Tensor]
"""One tensor per trainable parameter."""


def find_directions(
    problem: Problem, choices: Sequence[DirectionChoice], seed: int
) -> tuple[list[Direction], list[str]]:
    """Directions by their names, unscaled: N(0, I), ∇L, unit eigenvectors; call it inside `problem.measuring()`.

    Args:
        problem: The model, loss and data.
        choices: Names or tensors. Every `"random"` is a draw of its own. The k-th `"eigenvector"` belongs to the k-th
            largest eigenvalue. A tensor (P,) is used as it is.
        seed: Seed of the draws, which are made on the CPU, so that a seed means the same on every device.

    Returns:
        The directions in the order of the choices, and notes on them.
    """
    generator = torch.Generator().manual_seed(seed)
    eigenvectors, notes = _top_eigenvectors(problem, list(map(name_of, choices)).count("eigenvector"), seed)
    directions = []
    for choice in choices:
        if isinstance(choice, Tensor):
            directions.append(_split(problem, choice))
        elif choice == "eigenvector":
            directions.append(eigenvectors.pop(0))
        elif choice == "gradient":
            directions.append(loss_and_gradient(problem)[1])
        else:
            options: Any = {"generator": generator, "dtype": problem.dtype, "device": "cpu"}
            drawn = [torch.randn(p.shape, **options) for p in problem.params.values()]
            directions.append([part.to(problem.device) for part in drawn])
    return directions, notes


def name_of(choice: DirectionChoice) -> str:
    """The name of a direction; "given" for a tensor."""
    return "given" if isinstance(choice, Tensor) else choice


def check_direction(problem: Problem, choice: DirectionChoice) -> None:
    """Raise `ValueError` unless it is a name or a finite tensor (P,)."""
    if not isinstance(choice, Tensor):
        if choice not in get_args(DirectionName):
            raise ValueError(f"direction is {choice!r}; write one of {get_args(DirectionName)} or pass a tensor (P,).")
        return
    if choice.shape != (problem.size,):
        raise ValueError(f"direction has shape {tuple(choice.shape)}; it must be (P,) = ({problem.size},).")
    if not bool(torch.isfinite(choice).all()):
        raise ValueError("direction holds NaN or inf; it must be finite.")


def scaled_to_filters(problem: Problem, direction: Direction) -> Direction:
    """Every filter scaled to the norm of the parameters' own: d_f ← d_f ‖θ_f‖/‖d_f‖ (Li et al. 2018, section 4).

    A filter holds the weights of one output: a row of a weight, and for layers that store (inputs, outputs), as
    transposed convolutions do, an output channel of a group. For an embedding it is the vector of a token. Biases and
    norm parameters, which have no filters, get d = 0.
    """
    input_major = _input_major_weights(problem)
    of_norms = {id(p) for m in problem.model.modules() if is_norm(m) for p in m.parameters(recurse=False)}
    scaled = []
    for p, d in zip(problem.params.values(), direction, strict=True):
        if p.dim() < 2 or id(p) in of_norms:
            scaled.append(torch.zeros_like(d))
            continue
        groups = input_major.get(id(p))
        # (filters, weights of one), or (groups, inputs, outputs, sites) if the outputs are in the middle
        shape = (len(p), 1, 1, -1) if groups is None else (groups, len(p) // groups, p.shape[1], -1)
        of_p, of_d = (
            torch.linalg.vector_norm(t.reshape(shape), dim=(1, 3), keepdim=True, dtype=torch.float64)
            for t in (p.detach(), d)
        )
        ratio = torch.where(of_d > 0, of_p / of_d, 0.0)
        scaled.append((d.reshape(shape) * ratio).to(d.dtype).reshape(d.shape))
    return scaled


def _input_major_weights(problem: Problem) -> dict[int, int]:
    """Ids of the weights stored as (inputs, outputs / groups, …), with their numbers of groups."""
    groups = {}
    for layer in weighted_layers(problem.model).values():
        rule = rule_for(layer)
        if rule is not None and rule.weight_is_input_major and not isinstance(rule, EmbeddingRule):
            groups[id(layer.weight)] = int(getattr(layer, "groups", 1))
    return groups


def _top_eigenvectors(problem: Problem, k: int, seed: int) -> tuple[list[Direction], list[str]]:
    if k == 0:
        return [], []
    top = eigenvalues(Hessian(problem), k, memory=math.inf, seed=seed)  # without a limit, to have the vectors
    pairs = reversed([f"{v:.4g} ± {number(e)}" for v, e in zip(top.values.tolist(), top.errors.tolist(), strict=True)])
    named = "the Hessian's largest eigenvalue is" if k == 1 else f"the Hessian's {k} largest eigenvalues are"
    note = f"{named} {', '.join(pairs)}{'' if top.converged else f'; {top.status}'}."
    return [_split(problem, vector) for vector in reversed(top.vectors.T.unbind())], [note]


def _split(problem: Problem, vector: Tensor) -> Direction:
    params = list(problem.params.values())
    parts = torch.split(vector.detach().to(problem.device, problem.dtype), [p.numel() for p in params])
    return [part.view_as(p) for part, p in zip(parts, params, strict=True)]
