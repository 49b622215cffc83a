"""Kronecker factors Σx and Σ∇h of every layer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from wellcond.curvature.fisher import Labels
from wellcond.curvature.kronecker.factor_pass import FactorPass, LayerFactors
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.layers import ConvolutionRows
from wellcond.problem.arguments import check_problem
from wellcond.problem.problem import Problem
from wellcond.results import ByLayer, Cost, Progress, Row, quantities, text_table
from wellcond.results.progress import shows_progress
from wellcond.results.text import WHOLE_MODEL, grouped


@dataclass(frozen=True)
class KroneckerFactors(ByLayer[LayerFactors]):
    """One entry per layer, in the order of the forward pass.

    Attributes:
        layers: Factors by layer.
        not_covered: Layers without factors, and why.
        cost: Passes over the data.
    """

    layers: dict[str, LayerFactors]
    not_covered: dict[str, str]
    cost: Cost

    def rows(self, step: int | None = None) -> list[Row]:
        """The dimension and the trace of each factor."""
        return [
            Row(step, name, quantity, value, "")
            for name, layer in self.layers.items()
            for names, moment in ((quantities.INPUT, layer.x), (quantities.GRADIENT, layer.g))
            if moment.count
            for quantity, value in ((names.dimension, float(moment.dimension)), (names.trace, moment.trace))
        ]

    def __str__(self) -> str:
        body = []
        for name, layer in self.layers.items():
            shapes = [str(m.shape) if m.count else "–" for m in (layer.x, layer.g)]
            body.append([name or WHOLE_MODEL, layer.kind, *shapes])
        skipped = [f"not covered: {names}: {why}" for why, names in grouped(self.not_covered).items()]
        return "\n".join([text_table(["layer", "kind", "Σx", "Σ∇h"], body), *skipped, str(self.cost)])


@shows_progress
@own_arithmetic()
def kronecker_factors(
    problem: Problem,
    *,
    layers: str | Collection[str] | None = None,
    convolution: ConvolutionRows = "position",
    labels: Labels = "data",
    seed: int = 0,
    progress: Progress | None = None,
) -> KroneckerFactors:
    """Σx = E[x xᵀ] and Σ∇h = E[g gᵀ] of every layer, in one forward and backward pass over the data.

    x is the layer's input, and g = ∂ℓ/∂h the gradient of the per-term loss at the layer's output (autograd's gradient
    times the number of terms of the mean). Rows are examples, tokens and, for convolutions, positions.

    Args:
        problem: The model, loss and data.
        layers: Names of layers to restrict to, or of modules that hold them. Nothing is stored for the others, and the
            backward pass ends at the first of these layers.
        convolution: What one row of a convolution is. `"position"`: Σx is C_in × C_in over all pixels (huang2020).
            `"patch"`: an im2col patch, in groups, for which the layer's Fisher matrix is about Σx ⊗ Σ∇h (times the
            number of positions).
        labels: Labels that give g: those of the `"data"`, a `"sample"` from the model, or the `"model"`'s in exact
            expectation, which takes one backward pass per class.
        seed: Seed of sampled labels.
        progress: Called as (current task, share of all work done).

    Returns:
        The factors by layer, and which layers have none, and why.

    Raises:
        UnknownLayer: A name is neither that of a layer nor of a module that holds one.

    Example:
        >>> import torch
        >>> import wellcond as wc
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> problem = wc.Problem(torch.nn.Linear(2, 1), torch.nn.MSELoss(), (x, torch.zeros(2, 1)))
        >>> wc.kronecker_factors(problem)[""].x.mean[0]
        tensor([[0.5000, 0.0000],
                [0.0000, 2.0000]], dtype=torch.float64)
    """
    check_problem(problem)
    before = problem.cost
    factors, not_covered = FactorPass(problem, layers, convolution, labels, seed).run(progress)
    return KroneckerFactors(factors, not_covered, problem.cost - before)
