"""Positions: the tokens of a sequence, or pixels of an image, that a loss averages over in addition to the examples.

Two tests by gradients: if outputs at some places change and ∂L/∂h at the others does not, the places belong to
different terms; and if the loss is a mean over places, its gradients grow when some are left out.

Example: the cross-entropy of (N, C, T) outputs, 2 examples of 3 classes at 4 tokens. Classes share a term, since the
softmax couples them; tokens do not, and without half of them the gradients of the others double. So dimension 2 is
averaged over, and a batch has 2 · 4 terms.

    >>> def cross_entropy(tensors, targets):
    ...     return torch.nn.functional.cross_entropy(tensors[0], targets)
    >>> batch = OutputBatch(cross_entropy, [torch.zeros(2, 3, 4)], torch.zeros(2, 4, dtype=torch.long))
    >>> averaged_dims(batch, batch.gradients())
    (2,)
    >>> round(growth_along(batch, batch.gradients(), dim=2, count=2, positions=(2,)), 6)
    2.0
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from wellcond.problem.loss.output_batches import OutputBatch, is_one, scaling, tolerance, waves


def averaged_dims(batch: OutputBatch, gradients: list[Tensor]) -> tuple[int, ...]:
    """The dimensions of the outputs, other than that of the examples, that the loss averages over."""
    (outputs, *others) = batch.tensors
    if others or outputs.dim() < 3:
        return ()
    apart = [dim for dim in range(1, outputs.dim()) if _is_apart(batch, gradients[0], dim)]
    if len(apart) == outputs.dim() - 1:  # squared errors and their like couple nothing: a term is an example,
        apart = _other_than_classes(batch, gradients[0])  # but for a loss that is linear in log-probabilities
    is_mean = all(_is_mean_along(batch, gradients, dim, apart) for dim in apart)
    return tuple(apart) if is_mean else ()


def _is_apart(batch: OutputBatch, gradient: Tensor, dim: int) -> bool:
    """Whether gradients stay the same when the outputs at every second place along a dimension change."""
    (outputs,) = batch.tensors
    moved = (torch.arange(outputs.shape[dim], device=outputs.device) % 2).bool()
    place = moved.view(-1, *[1] * (outputs.dim() - dim - 1))
    for other in (outputs + waves(outputs), outputs * (1 - 0.3 * waves(outputs).abs())):
        try:
            (moved_gradient,) = batch.at(torch.where(place, other, outputs)).gradients()
        except Exception:  # a loss of probabilities refuses other numbers
            continue
        if bool(torch.isfinite(moved_gradient).all()):
            change = torch.where(place, 0.0, moved_gradient - gradient)
            return float(change.norm()) <= tolerance(gradient) * float(gradient.norm())
    return False


def _other_than_classes(batch: OutputBatch, gradient: Tensor) -> list[int]:
    """The dimensions of (N, T, C) or (N, C, T, …) outputs that class indices among the targets have too."""
    labels = [t for t in tree_leaves(batch.targets) if isinstance(t, Tensor) and not t.is_floating_point()]
    dims_by_size: dict[float, list[int]] = {}
    for dim in (gradient.dim() - 1, 1):
        by_class = gradient.movedim(dim, -1)
        for t in labels:
            if t.dtype != torch.bool and t.numel() == by_class[..., 0].numel():
                index = t.reshape(by_class.shape[:-1]).clamp(0, by_class.shape[-1] - 1).long()
                size = float(by_class.gather(-1, index[..., None]).norm())
                dims_by_size[size] = [d for d in range(1, gradient.dim()) if d != dim]
    return dims_by_size[max(dims_by_size)] if dims_by_size else []


def _is_mean_along(batch: OutputBatch, gradients: list[Tensor], dim: int, positions: list[int]) -> bool:
    """Whether gradients grow when half of the places along a dimension are left out; those of a sum do not."""
    size = batch.tensors[0].shape[dim]
    if size < 2:
        return True
    r = growth_along(batch, gradients, dim, (size + 1) // 2, positions)
    return r is None or not is_one(r)


def growth_along(
    batch: OutputBatch, gradients: list[Tensor], dim: int, count: int, positions: Sequence[int]
) -> float | None:
    """Factor by which gradients grow when only the first places along a dimension are left; NaN if not uniform."""
    try:
        shortened = batch.shortened(dim, count, positions).gradients()
    except Exception:  # a user's loss that takes no other length may raise anything
        return None
    r = scaling(shortened, [gradients[0].narrow(dim, 0, count)])
    return math.nan if r is None else r


def places_with_gradient(batch: OutputBatch, gradients: list[Tensor], positions: tuple[int, ...]) -> Tensor:
    """(N, *positions): whether each has a gradient, at these or at other outputs (a hinge may be satisfied here)."""

    def has(gradients: list[Tensor]) -> Tensor:
        rows = [g for g in gradients if g.dim() and len(g) == batch.examples]
        if not rows:
            return torch.ones(1, dtype=torch.bool, device="cpu")
        first = 1 + len(positions)
        moved = [g.movedim((0, *positions), tuple(range(first))) for g in rows]
        return torch.stack([(g.abs() > 0).reshape(*g.shape[:first], -1).any(-1) for g in moved]).any(0)

    has_gradient = has(gradients)
    for sign in (3.0, -3.0):
        if not bool(has_gradient.all()):
            try:
                has_gradient = has_gradient | has(batch.at(*(sign * waves(t) for t in batch.tensors)).gradients())
            except Exception:  # a loss of probabilities refuses other numbers
                break
    return has_gradient
