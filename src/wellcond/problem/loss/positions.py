"""Positions: the tokens of a sequence, or pixels of an image, that a loss averages over beside the examples.

What ∂L/∂h does not change when the outputs elsewhere do belongs to other terms; and a mean over fewer positions has
larger gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from wellcond.problem.loss.output_batches import OutputBatch, is_one, scaling, tolerance, waves


def averaged_dims(batch: OutputBatch, gradients: list[Tensor]) -> tuple[int, ...]:
    """The dimensions of the outputs, the examples' aside, that the loss averages over."""
    (outputs, *others) = batch.tensors
    if others or outputs.dim() < 3:
        return ()
    apart = [dim for dim in range(1, outputs.dim()) if _is_apart(batch, gradients[0], dim)]
    if len(apart) == outputs.dim() - 1:  # squared errors and their like couple nothing: a term is an example,
        apart = _beside_the_classes(batch, gradients[0])  # but for a loss that is linear in log-probabilities
    is_mean = all(_is_mean_along(batch, gradients, dim, apart) for dim in apart)
    return tuple(apart) if is_mean else ()


def _is_apart(batch: OutputBatch, gradient: Tensor, dim: int) -> bool:
    """Whether gradients stay when the outputs at every other place along a dimension change."""
    (outputs,) = batch.tensors
    moved = (torch.arange(outputs.shape[dim], device=outputs.device) % 2).bool()
    place = moved.view(-1, *[1] * (outputs.dim() - dim - 1))
    for other in (outputs + waves(outputs), outputs * (1 - 0.3 * waves(outputs).abs())):
        try:
            (found,) = batch.at(torch.where(place, other, outputs)).gradients()
        except Exception:  # a loss of probabilities refuses other numbers
            continue
        if bool(torch.isfinite(found).all()):
            same = torch.where(place, 0.0, found - gradient)
            return float(same.norm()) <= tolerance(gradient) * float(gradient.norm())
    return False


def _beside_the_classes(batch: OutputBatch, gradient: Tensor) -> list[int]:
    """The dimensions that class indices among the targets have, of (N, T, C) or (N, C, T, …) outputs."""
    labels = [t for t in tree_leaves(batch.targets) if isinstance(t, Tensor) and not t.is_floating_point()]
    found: dict[float, list[int]] = {}
    for dim in (gradient.dim() - 1, 1):
        by_class = gradient.movedim(dim, -1)
        for t in labels:
            if t.dtype != torch.bool and t.numel() == by_class[..., 0].numel():
                index = t.reshape(by_class.shape[:-1]).clamp(0, by_class.shape[-1] - 1).long()
                size = float(by_class.gather(-1, index[..., None]).norm())
                found[size] = [d for d in range(1, gradient.dim()) if d != dim]
    return found[max(found)] if found else []


def _is_mean_along(batch: OutputBatch, gradients: list[Tensor], dim: int, positions: list[int]) -> bool:
    """Whether gradients grow when half of the places along a dimension are left out; those of a sum stay."""
    size = batch.tensors[0].shape[dim]
    if size < 2:
        return True
    r = growth_along(batch, gradients, dim, (size + 1) // 2, positions)
    return r is None or not is_one(r)


def growth_along(
    batch: OutputBatch, gradients: list[Tensor], dim: int, count: int, positions: Sequence[int]
) -> float | None:
    """By how much gradients grow when only the first places along a dimension are left; NaN if not all by as much."""
    try:
        found = batch.shortened(dim, count, positions).gradients()
    except Exception:  # a user's loss that takes no other length may raise anything
        return None
    r = scaling(found, [gradients[0].narrow(dim, 0, count)])
    return math.nan if r is None else r


def places_with_gradient(batch: OutputBatch, gradients: list[Tensor], positions: tuple[int, ...]) -> Tensor:
    """(N, *positions): which have a gradient, here or at other outputs (a hinge may be satisfied here)."""

    def has(gradients: list[Tensor]) -> Tensor:
        rows = [g for g in gradients if g.dim() and len(g) == batch.examples]
        if not rows:
            return torch.ones(1, dtype=torch.bool, device="cpu")
        first = 1 + len(positions)
        moved = [g.movedim((0, *positions), tuple(range(first))) for g in rows]
        return torch.stack([(g.abs() > 0).reshape(*g.shape[:first], -1).any(-1) for g in moved]).any(0)

    found = has(gradients)
    for sign in (3.0, -3.0):
        if not bool(found.all()):
            try:
                found = found | has(batch.at(*(sign * waves(t) for t in batch.tensors)).gradients())
            except Exception:  # a loss of probabilities refuses other numbers
                break
    return found
