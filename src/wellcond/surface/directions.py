"""Directions in parameter space: random, along the gradient, along the Hessian's top eigenvectors, or given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from wellcond.curvature.hessian import Hessian
from wellcond.network.layers import EmbeddingRule, rule_for, weighted_layers
from wellcond.network.norms import is_norm
from wellcond.problem.points import mean_loss_and_gradients
from wellcond.problem.problem import Problem
from wellcond.results import number
from wellcond.spectral.eigenvalues import eigenvalues

Name = Literal["gradient", "random", "eigenvector"]
Wanted = Name | Tensor
Direction = list[Tensor]
"""One tensor a trainable parameter."""


@dataclass
class Directions:
    """What was asked for, in that order, and what it cost.

    evaluations: forward+backward passes. products: matrix-vector products with the Hessian, about two of them each.
    """

    found: list[Direction] = field(default_factory=list)
    evaluations: int = 0
    products: int = 0
    notes: list[str] = field(default_factory=list)


def find_directions(problem: Problem, wanted: Sequence[Wanted], seed: int) -> Directions:
    """The directions by their names, unscaled: N(0, I), ∇L, unit eigenvectors; a tensor (P,) is used as it is.

    Every "random" is a draw of its own, drawn on the CPU, so that a seed means the same on every device. The k-th
    "eigenvector" is that of the k-th largest eigenvalue. Call it inside `problem.measuring()`.
    """
    result = Directions()
    generator = torch.Generator().manual_seed(seed)
    curved = _top_eigenvectors(problem, list(map(name_of, wanted)).count("eigenvector"), seed, result)
    for direction in wanted:
        if isinstance(direction, Tensor):
            result.found.append(_split(problem, direction))
        elif direction == "eigenvector":
            result.found.append(curved.pop(0))
        elif direction == "gradient":
            result.found.append(mean_loss_and_gradients(problem)[1])
            result.evaluations += 1
        else:
            drawn = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in problem.params.values()]
            result.found.append([part.to(problem.device) for part in drawn])
    return result


def name_of(direction: Wanted) -> str:
    return "given" if isinstance(direction, Tensor) else direction


def check_direction(problem: Problem, direction: Wanted) -> None:
    """Raise `ValueError` for what is neither a name nor a finite tensor (P,)."""
    if not isinstance(direction, Tensor):
        if direction not in get_args(Name):
            raise ValueError(f"direction is {direction!r}; write one of {get_args(Name)} or pass a tensor (P,).")
        return
    if direction.shape != (problem.size,):
        raise ValueError(f"direction has shape {tuple(direction.shape)}; it must be (P,) = ({problem.size},).")
    if not bool(torch.isfinite(direction).all()):
        raise ValueError("direction holds NaN or inf; it must be finite.")


def scaled_to_filters(problem: Problem, direction: Direction) -> Direction:
    """Every filter scaled to the norm of the parameters' own: d_f ← d_f ‖θ_f‖/‖d_f‖ (Li et al. 2018, section 4).

    A filter is what makes one output: a row of a weight, and for layers that store (inputs, outputs), as transposed
    convolutions do, an output channel of a group. Of an embedding it is the vector of a token. Biases and norm
    parameters, which have no filters, get d = 0.
    """
    input_major = _input_major_weights(problem)
    of_norms = {id(p) for m in problem.model.modules() if is_norm(m) for p in m.parameters(recurse=False)}
    scaled = []
    for p, d in zip(problem.params.values(), direction, strict=True):
        if p.dim() < 2 or id(p) in of_norms:
            scaled.append(torch.zeros_like(d))
            continue
        groups = input_major.get(id(p))
        # (filters, weights of one), as (groups, inputs, outputs, sites) where the outputs are in the middle
        shape = (len(p), 1, 1, -1) if groups is None else (groups, len(p) // groups, p.shape[1], -1)
        of_p, of_d = (
            torch.linalg.vector_norm(t.reshape(shape), dim=(1, 3), keepdim=True, dtype=torch.float64)
            for t in (p.detach(), d)
        )
        ratio = torch.where(of_d > 0, of_p / of_d, 0.0)
        scaled.append((d.reshape(shape) * ratio).to(d.dtype).reshape(d.shape))
    return scaled


def _input_major_weights(problem: Problem) -> dict[int, int]:
    """The weights stored as (inputs, outputs / groups, …), by their id, with their groups."""
    found = {}
    for layer in weighted_layers(problem.model).values():
        rule = rule_for(layer)
        if rule is not None and rule.weight_is_input_major and not isinstance(rule, EmbeddingRule):
            found[id(layer.weight)] = int(getattr(layer, "groups", 1))
    return found


def _top_eigenvectors(problem: Problem, k: int, seed: int, result: Directions) -> list[Direction]:
    if k == 0:
        return []
    top = eigenvalues(Hessian(problem), k, seed=seed)
    result.products = top.matvecs
    known = reversed([f"{v:.4g} ± {number(e)}" for v, e in zip(top.values.tolist(), top.errors.tolist(), strict=True)])
    named = "the Hessian's largest eigenvalue is" if k == 1 else f"the Hessian's {k} largest eigenvalues are"
    result.notes.append(f"{named} {', '.join(known)}{'' if top.converged else f'; {top.status}'}.")
    return [_split(problem, vector) for vector in reversed(top.vectors.T.unbind())]


def _split(problem: Problem, vector: Tensor) -> Direction:
    params = list(problem.params.values())
    parts = torch.split(vector.detach().to(problem.device, problem.dtype), [p.numel() for p in params])
    return [part.view_as(p) for part, p in zip(parts, params, strict=True)]
