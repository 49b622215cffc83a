"""The spectral density by stochastic Lanczos quadrature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from wellcond.network.arithmetic import own_arithmetic
from wellcond.problem.arguments import as_whole
from wellcond.results import Progress, Result, Row, quantities
from wellcond.spectral.lanczos import Lanczos, Operator, as_operator, in_a_row

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Density(Result):
    """A smoothed density of eigenvalues, whose integral is 1.

    Attributes:
        grid: (points,), the eigenvalues at which it is given.
        density: (points,).
        error: (points,), its standard error over the probes.
        nodes: (probes, iterations), those of the quadrature.
        weights: (probes, iterations); the weights of a probe add up to 1.
        width: Standard deviation of the Gaussian that smooths it.
        matvecs: Products it took.
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

    def rows(self, step: int | None = None) -> list[Row]:
        named = {
            quantities.LAMBDA_MIN: float(self.nodes.min()),
            quantities.LAMBDA_MAX: float(self.nodes.max()),
            quantities.MEAN: self.moment(1),
        }
        rows = [Row(step, "", quantity, value, "") for quantity, value in named.items()]
        return [*rows, Row(step, "", quantities.MATVECS, float(self.matvecs), "products")]

    def figure(self) -> Figure:
        from wellcond.report.spectra import density_figure

        return density_figure({"": self})

    def __str__(self) -> str:
        low, high = float(self.nodes.min()), float(self.nodes.max())
        return f"spectral density over [{low:.4g}, {high:.4g}], {len(self.nodes)} probes, {self.matvecs} products"


@own_arithmetic()
def density(
    operator: Operator,
    *,
    probes: int = 8,
    iterations: int = 40,
    points: int = 400,
    width: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Density:
    """The density of eigenvalues of a symmetric operator, smoothed by a Gaussian.

        φ(t) = (1/n) Σ_i N(t; λ_i, width²)

    is estimated by stochastic Lanczos quadrature: from a random start, Lanczos gives nodes θ and weights τ (squared
    first components of T's eigenvectors), and E Σ τ f(θ) = (1/n) tr f(A). It costs probes × iterations products.

    Args:
        operator: Any operator of this library, or a symmetric tensor.
        probes: Random starts.
        iterations: Lanczos iterations from each.
        points: Of the grid.
        width: Standard deviation of the Gaussian; by default 1 % of the spread of the nodes.
        seed: Of the starts.
        progress: Called as (what is being done, share of all work done).

    Returns:
        The density on a grid with its standard error, and the nodes and weights that it is made of.

    Example:
        >>> d = density(torch.diag(torch.tensor([1.0, 3.0])), probes=64, iterations=2)
        >>> round(d.moment(2))                               # (1 + 9) / 2
        5
    """
    operator = as_operator(operator)
    n = operator.shape[0]
    probes, points = as_whole("probes", probes, 1), as_whole("points", points, 2)
    iterations = min(as_whole("iterations", iterations, 1), n)
    generator = torch.Generator().manual_seed(seed)
    nodes, weights = np.zeros((probes, iterations)), np.zeros((probes, iterations))
    matvecs = 0
    for probe in range(probes):
        if progress is not None:
            progress("spectral density", probe / probes)
        start = torch.randn(n, 1, generator=generator, dtype=torch.float64, device="cpu")
        process = Lanczos(operator, start, generator)
        with in_a_row(operator):
            for _ in range(iterations):
                process.step()
        values, vectors = np.linalg.eigh(process.projected())
        nodes[probe], weights[probe] = values, vectors[0] ** 2
        matvecs += process.matvecs
    spread = float(nodes.max() - nodes.min())
    if width is None:
        width = 0.01 * spread if spread > 0 else 1e-3 * (abs(float(nodes.max())) or 1.0)
    grid = np.linspace(nodes.min() - 5 * width, nodes.max() + 5 * width, points)
    bumps = np.exp(-0.5 * ((grid[:, None, None] - nodes) / width) ** 2) / (width * np.sqrt(2 * np.pi))
    per_probe = (bumps * weights).sum(-1)
    error = per_probe.std(1, ddof=1) / np.sqrt(probes) if probes > 1 else np.full(points, np.nan)
    t = torch.from_numpy
    return Density(t(grid), t(per_probe.mean(1)), t(error), t(nodes), t(weights), width, matvecs)
