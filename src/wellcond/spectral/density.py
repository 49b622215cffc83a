"""The spectral density by stochastic Lanczos quadrature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wellcond.results import Row
from wellcond.spectral.lanczos import Lanczos, Operator


@dataclass(frozen=True)
class Density:
    """A smoothed density of eigenvalues: ∫ density = 1.

    grid, density, error: (points,); `error` is the standard error over the probes.
    nodes, weights: (probes, steps), the quadrature itself; the weights of a probe add up to 1.
    """

    grid: Tensor
    density: Tensor
    error: Tensor
    nodes: Tensor
    weights: Tensor
    width: float
    matvecs: int

    def moment(self, order: int) -> float:
        """Mean of λ^order over the spectrum; `moment(1) * n` estimates the trace."""
        return float((self.weights * self.nodes**order).sum(1).mean())

    def rows(self) -> list[Row]:
        points = zip(self.grid.tolist(), self.density.tolist(), strict=True)
        return [Row(None, "", f"density({x:.6g})", d, "1/eigenvalue") for x, d in points]

    def __str__(self) -> str:
        low, high = float(self.nodes.min()), float(self.nodes.max())
        return f"spectral density over [{low:.4g}, {high:.4g}], {len(self.nodes)} probes, {self.matvecs} products"


def density(
    operator: Operator,
    probes: int = 8,
    steps: int = 40,
    *,
    points: int = 400,
    width: float | None = None,
    seed: int = 0,
) -> Density:
    """The density of eigenvalues of a symmetric operator, smoothed by a Gaussian of standard deviation `width`.

    φ(t) = (1/n) Σ_i N(t; λ_i, width²), estimated by stochastic Lanczos quadrature: from a random start, `steps` of
    Lanczos give nodes θ and weights τ (squared first components of T's eigenvectors), and E Σ τ f(θ) = (1/n) tr f(A).
    Costs probes × steps products.

    width: by default 1 % of the spread of the nodes.

    >>> d = density(torch.diag(torch.tensor([1.0, 3.0])), probes=64, steps=2)
    >>> round(d.moment(2))                               # (1 + 9) / 2
    5
    """
    n = operator.shape[0]
    steps = min(steps, n)
    generator = torch.Generator().manual_seed(seed)
    nodes, weights = np.zeros((probes, steps)), np.zeros((probes, steps))
    matvecs = 0
    for probe in range(probes):
        process = Lanczos(operator, torch.randn(n, 1, generator=generator, dtype=torch.float64), generator)
        for _ in range(steps):
            process.step()
        values, vectors = np.linalg.eigh(process.projected())
        nodes[probe], weights[probe] = values, vectors[0] ** 2
        matvecs += process.matvecs
    spread = float(nodes.max() - nodes.min())
    if width is None:
        width = 0.01 * spread if spread > 0 else 1e-3 * max(abs(float(nodes.max())), 1.0)
    grid = np.linspace(nodes.min() - 5 * width, nodes.max() + 5 * width, points)
    bumps = np.exp(-0.5 * ((grid[:, None, None] - nodes) / width) ** 2) / (width * np.sqrt(2 * np.pi))
    per_probe = (bumps * weights).sum(-1)
    error = per_probe.std(1, ddof=1) / np.sqrt(probes) if probes > 1 else np.full(points, np.nan)
    t = torch.from_numpy
    return Density(t(grid), t(per_probe.mean(1)), t(error), t(nodes), t(weights), width, matvecs)
