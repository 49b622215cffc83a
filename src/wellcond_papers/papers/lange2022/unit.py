"""The Hessian of one output unit, plain and preconditioned (lange2022, Proposition 2 and Theorem 3)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from wellcond.curvature.spectra.condition import condition_number, numerical_rank
from wellcond.optim.bnp import BNP


class Preconditioner(NamedTuple):
    """P = U D with U = [[1, −μᵀ], [0, I]] and D = diag(1, σ)⁻¹ (eq. 12); μ and σ are (n,).

    A unit with σ = 0, such as a ReLU that is off for every image, has no inverse: D is 0 there.
    """

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, h: Tensor) -> Preconditioner:
        """The source's: μ_H and σ_H of the rows of h (N, n)."""
        return cls(h.mean(0), h.var(0, correction=0).sqrt())

    @classmethod
    def of_next_step(cls, bnp: BNP, layer: str, h: Tensor) -> Preconditioner:
        """BNP's for a layer once it has seen the mini-batch h: running μ and σ̃² = σ² + ε₁ max σ² + ε₂."""
        running, batch = bnp.layers[layer], cls.of(h)
        mean = running.mean.lerp(batch.mean, 1 - bnp.rho)
        variance = running.variance.lerp(batch.scale**2, 1 - bnp.rho)
        return cls(mean, (variance + bnp.eps1 * variance.max() + bnp.eps2).sqrt())

    def condition_number(self) -> float:
        """κ(D), over its nonzero entries."""
        entries = torch.cat([self.scale.new_ones(1), self.scale[self.scale > 0]])
        return float(entries.max() / entries.min())

    def applied_to(self, a: Tensor) -> Tensor:
        """A P for A (N, n + 1) whose first column is the bias's."""
        bias, weights = a[:, :1], a[:, 1:]
        inverse = torch.where(self.scale > 0, 1 / self.scale, 0.0)
        return torch.cat([bias, (weights - bias * self.mean) * inverse], 1)


def hessian_factor(h: Tensor, logits: Tensor, unit: int = 0) -> Tensor:
    """A = S^½ Ĥ, so that AᵀA is the Hessian of the mean cross-entropy for one output unit's [b, w].

    Proposition 2: ∇²L = Ĥᵀ S Ĥ, with Ĥ = [1, h] and S = diag(p(1 − p))/N, p the softmax of that unit.

    Args:
        h: The input of the last layer, (N, n).
        logits: Its outputs, (N, classes).
        unit: The index of the output.

    Returns:
        A, (N, n + 1).

    Example:
        >>> a = hessian_factor(torch.tensor([[2.0]]), torch.zeros(1, 2))    # p = ½, so S = ¼
        >>> (a.T @ a).tolist()
        [[0.25, 0.5], [0.5, 1.0]]
    """
    p = logits.softmax(1)[:, unit, None]
    return (p * (1 - p) / len(h)).sqrt() * torch.cat([torch.ones_like(p), h], 1)


def conditioning(a: Tensor) -> tuple[float, int]:
    """κ(AᵀA) over the nonzero singular values, and their number, from the singular values of A: κ(A)² loses nothing.

    Nonzero: above d·ε·σ_max, d the smaller side of A and ε the rounding of its dtype.

    Example:
        >>> conditioning(torch.diag(torch.tensor([3.0, 1.0, 0.0])))
        (9.0, 2)
    """
    values = torch.linalg.svdvals(a)
    rank = numerical_rank(values)
    return condition_number(values[:rank], p=1.0) ** 2, rank
