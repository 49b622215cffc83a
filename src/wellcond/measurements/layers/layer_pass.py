"""The loss, its gradient, the conditioning of every layer and its ReLU units, all in one pass over the data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from wellcond.curvature.kronecker.factor_pass import FactorPass
from wellcond.measurements.layers.conditioning import SHARES, ConditioningTable, layer_conditioning
from wellcond.measurements.layers.neurons import NeuronTable, ReluUnits
from wellcond.problem.evaluation import Evaluation
from wellcond.problem.problem import Gradients, Problem, merged
from wellcond.results import Progress


@dataclass(frozen=True)
class LayerPass:
    """What one forward and backward pass over the data tells.

    Attributes:
        loss: The mean loss.
        gradients: Its gradient in every trainable parameter, as `Problem.loss_and_gradients` gives it.
        conditioning: As `conditioning` gives it.
        neurons: As `neurons` gives them.
    """

    loss: float
    gradients: Gradients
    conditioning: ConditioningTable
    neurons: NeuronTable


def layer_pass(
    problem: Problem, *, layers: str | Collection[str] | None = None, progress: Progress | None = None
) -> LayerPass:
    """What `loss_and_gradients`, `conditioning` and `neurons` give, at the price of `conditioning` alone.

    Args:
        problem: What is measured.
        layers: Names of layers, or of modules that hold them, to which the two tables are restricted.
        progress: Called as (what is being measured, share of all work done).

    Raises:
        NonFinite: The loss, a layer's input or a gradient is not finite. What can be had then, the separate functions
            give.
        UnknownLayer: A name is neither that of a layer nor of a module that holds one.
    """
    before = problem.cost
    units = ReluUnits(problem.model, layers)
    total = _Mean()
    halves = None if progress is None else (lambda what, share: progress(what, share / 2))
    watching = FactorPass(problem, layers, "position", "data", 0, spectra_only=True, see=total.add, watch=units.watched)
    factors, not_covered = watching.run(halves)
    cost = problem.cost - before
    found = layer_conditioning(factors, SHARES, problem.dtype, progress)
    table = ConditioningTable(found, not_covered, problem.batchnorm, "position", "data", cost)
    return LayerPass(total.loss, total.gradients, table, NeuronTable(units.by_layer(), total.examples, cost))


class _Mean:
    """The loss and its gradient, over batches that count by their weight."""

    def __init__(self) -> None:
        self.loss = self.weight = 0.0
        self.gradients: Gradients = {}
        self.examples = 0

    def add(self, evaluation: Evaluation, gradients: Gradients) -> None:
        self.weight += evaluation.weight
        self.examples += evaluation.examples
        share = evaluation.weight / self.weight
        new = float(evaluation.loss.detach())
        # of one batch nothing is rounded
        self.loss = new if not self.gradients else self.loss + share * (new - self.loss)
        values = (
            merged(list(self.gradients.values()), list(gradients.values()), share)
            if self.gradients
            else gradients.values()
        )
        self.gradients = dict(zip(gradients, values, strict=True))
