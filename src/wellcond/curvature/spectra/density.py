"""The spectral density by stochastic Lanczos quadrature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wellcond.curvature.spectra.allowance import Allowance
from wellcond.curvature.spectra.lanczos import MEMORY, Lanczos, Matrix, noise, vectors_within
from wellcond.curvature.spectra.operators import Operator, as_operator, in_a_row
from wellcond.errors import Interrupted
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.problem.arguments import as_whole
from wellcond.results import Progress, Result, Row, quantities
from wellcond.results.progress import shows_progress


@dataclass(frozen=True)
class Density(Result):
    """A smoothed density of eigenvalues, whose integral is 1.

    Attributes:
        grid: Eigenvalues at which the density is computed, (points,).
        density: Density at these points, (points,).
        error: Standard error of the density over the probes, (points,).
        nodes: Nodes of the quadrature, (probes, iterations).
        weights: Weights of the nodes, (probes, iterations); those of one probe add up to 1.
        width: Standard deviation of the smoothing Gaussian.
        matvecs: Number of products.
        status: Whether all requested probes were made.
    """

    grid: Tensor
    density: Tensor
    error: Tensor
    nodes: Tensor
    weights: Tensor
    width: float
    matvecs: int
    status: str = "complete"

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

    def __str__(self) -> str:
        low, high = float(self.nodes.min()), float(self.nodes.max())
        word = "" if self.status == "complete" else f"; {self.status}"
        return f"spectral density over [{low:.4g}, {high:.4g}], {len(self.nodes)} probes, {self.matvecs} products{word}"


@shows_progress
@own_arithmetic()
def density(
    operator: Operator,
    *,
    probes: int = 8,
    iterations: int = 40,
    points: int = 400,
    width: float | None = None,
    budget: float | None = None,
    memory: float = MEMORY,
    seed: int = 0,
    progress: Progress | None = None,
) -> Density:
    """The density of eigenvalues of a symmetric operator, smoothed by a Gaussian.

        φ(t) = (1/n) Σ_i N(t; λ_i, width²)

    is estimated by stochastic Lanczos quadrature: from a random start, Lanczos gives nodes θ and weights τ (squared
    first components of T's eigenvectors), and E Σ τ f(θ) = (1/n) tr f(A). It costs probes × iterations products.

    Args:
        operator: Any operator of this library, or a symmetric tensor.
        probes: Number of random starts.
        iterations: Lanczos iterations per start.
        points: Points of the grid.
        width: Standard deviation of the Gaussian; by default 1 % of the spread of the nodes.
        budget: Seconds. A product that would end later is not started, except for the first one; the result then has
            fewer probes, or one of fewer iterations, and its status says so.
        memory: GiB for the vectors of one probe, in addition to the memory of a product. If they do not fit, the oldest
            are dropped: nodes may then appear twice, with the weight shared between them, and the density is the same.
        seed: Seed of the starts.
        progress: Called as (current task, share of all work done).

    Returns:
        The density on a grid with its standard error, and the nodes and weights that it is made of.

    Raises:
        Interrupted: On Ctrl-C, with the result so far as `.result`.

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
    most = vectors_within(memory, operator, 1)
    allowance = Allowance(probes * (iterations + 2), budget)  # a first product may be made three times
    rules: list[tuple[Matrix, Matrix]] = []
    part: Lanczos | None = None

    def result(status: str) -> Density:
        unfinished = [_rule(part)] if part and part.diagonal else []  # used if no probe is complete
        return _smoothed(rules or unfinished, points, width, allowance.spent, status)

    try:
        with in_a_row(operator):
            while len(rules) < probes and allowance.affordable:
                part = Lanczos(operator, noise(n, 1, generator, operator), generator, most)
                before = allowance.spent
                while len(part.diagonal) < iterations and allowance.affordable:
                    if progress is not None:
                        progress("spectral density", (len(rules) + len(part.diagonal) / iterations) / probes)
                    part.step()
                    allowance.charge(before + part.matvecs - allowance.spent)
                if len(part.diagonal) == iterations:
                    rules.append(_rule(part))
    except KeyboardInterrupt as interrupt:
        if not rules and not (part and part.diagonal):
            raise
        raise Interrupted(result(f"interrupted after {allowance.spent} products")) from interrupt
    return result("complete" if len(rules) == probes else allowance.why_stopped)


def _rule(process: Lanczos) -> tuple[Matrix, Matrix]:
    """Nodes and weights of the quadrature that belongs to a process."""
    nodes, vectors = np.linalg.eigh(process.projected())
    return nodes, vectors[0] ** 2


def _smoothed(
    rules: Sequence[tuple[Matrix, Matrix]], points: int, width: float | None, matvecs: int, status: str
) -> Density:
    nodes, weights = (np.stack(each) for each in zip(*rules, strict=True))
    spread = float(nodes.max() - nodes.min())
    if width is None:
        width = 0.01 * spread if spread > 0 else 1e-3 * (abs(float(nodes.max())) or 1.0)
    grid = np.linspace(nodes.min() - 5 * width, nodes.max() + 5 * width, points)
    bumps = np.exp(-0.5 * ((grid[:, None, None] - nodes) / width) ** 2) / (width * np.sqrt(2 * np.pi))
    per_probe = (bumps * weights).sum(-1)
    error = per_probe.std(1, ddof=1) / np.sqrt(len(rules)) if len(rules) > 1 else np.full(points, np.nan)
    t = torch.from_numpy
    return Density(t(grid), t(per_probe.mean(1)), t(error), t(nodes), t(weights), width, matvecs, status)
