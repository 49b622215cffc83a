"""Algorithms 2 and 3 of lange2022, step by step, on plain tensors.

Legend: Ĥ has one column per feature, input channel or kernel entry that a layer receives; μ and σ² are the running mean
and variance of its columns, μ_H and σ_H² those of one batch; G_w and G_b are the gradients of weight and bias.

    1.  μ_H, σ_H²   mean and variance of the batch
    2.  μ  ← ρμ + (1−ρ)μ_H,   σ² ← ρσ² + (1−ρ)σ_H²
    3.  σ̃² = σ² + ε₁ max σ² + ε₂
    4.  G_w ← (G_w − G_b μᵀ)/(q² σ̃²)
    5.  G_b ← G_b/q² − G_w μ

`kernels.c` and `triton_kernels.py` compute the same numbers in fewer passes over memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wellcond.optim.input_statistics import InputStatistics


def variance_of(batch: InputStatistics, running_mean: Tensor) -> Tensor:
    """Step 1: σ_H². For a single row, the squared distance from the running mean before this step."""
    return (batch.mean - running_mean) ** 2 if batch.rows == 1 else batch.variance


def update_moments_(moments: Tensor, batch: Tensor, weight: Tensor | float, skipped: Tensor | None) -> None:
    """Step 2, in place: μ ← ρμ + (1−ρ)μ_H, and σ² likewise.

    Args:
        moments: μ and σ² of all columns, (2, columns).
        batch: μ_H and σ_H², of the same shape.
        weight: 1 − ρ, for all columns or for each.
        skipped: A number that is not 0 if the optimizer will skip this step: the moments stay.
    """
    if skipped is None:
        moments.lerp_(batch, weight)
    else:
        moments.copy_(torch.where(skipped == 0, torch.lerp(moments, batch, weight), moments))


def write_scales_(
    scale: Tensor,
    variance: Tensor,
    eps1: float,
    q2: Tensor,
    q2_eps2: Tensor,
    *,
    group: Tensor,
    zeros: Tensor,
    by_group: Sequence[tuple[Tensor, Tensor]],
) -> None:
    """Step 3: 1/(q² σ̃²) with σ̃² = σ² + ε₁ max σ² + ε₂, the maximum over a layer, or a group of a convolution.

    Args:
        scale: Space for the result, (columns,).
        variance: σ², (columns,).
        eps1: ε₁.
        q2: q² of every column.
        q2_eps2: q² ε₂ of every column.
        group: Index of the group of every column, for a GPU.
        zeros: A zero for every group, for a GPU.
        by_group: Views of variance and scale as (groups, columns of a group) for every layer, for a CPU.
    """
    if scale.is_cuda:  # two kernels for all layers
        largest = torch.scatter_reduce(zeros, 0, group, variance, "amax").index_select(0, group)
        torch.add(variance, largest, alpha=eps1, out=scale)
    else:  # a core is faster without the indices
        for part, damped in by_group:
            torch.add(part, part.amax(1, keepdim=True), alpha=eps1, out=damped)
    torch.addcmul(q2_eps2, scale, q2, out=scale).reciprocal_()


def precondition_(weight: Tensor, biases: Sequence[Tensor], mean: Tensor, scale: Tensor, q2: float) -> None:
    """Steps 4 and 5: replace gradients by (1/q²) P Pᵀ ∇, in place.

        G_w ← (G_w − G_b μᵀ) · scale,   G_b ← G_b/q² − G_w μ

    With o outputs and c columns, in each of g groups if there are groups:

    Args:
        weight: G_w, (o, c) or (g, o, c).
        biases: G_b, each (o, 1) or (g, o, 1). Without a bias G_w is scaled and not centered; several biases share a
            tied weight.
        mean: μ, (1, c) or (g, 1, c).
        scale: 1/(q² σ̃²), of the same shape.
        q2: q².

    Example:
        >>> weight, bias = torch.tensor([[2.0]]), torch.tensor([[1.0]])
        >>> precondition_(weight, [bias], mean=torch.tensor([[0.5]]), scale=torch.tensor([[0.25]]), q2=1.0)
        >>> weight.item(), bias.item()         # (2 − 1·½)/4 and 1 − ⅜·½
        (0.375, 0.8125)
    """
    for bias in biases:
        weight.addcmul_(bias, mean, value=-1)
    weight.mul_(scale)
    for bias in biases:
        add_product = bias.addmm_ if bias.dim() == 2 else bias.baddbmm_
        add_product(weight, mean.mT, beta=1 / q2, alpha=-1)
