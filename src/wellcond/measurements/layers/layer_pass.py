"""The loss, its gradient, the conditioning of every layer and its ReLU units, all in one pass over the data."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from wellcond.measurements.layers.conditioning import ConditioningTable, conditioning_table
from wellcond.measurements.layers.neurons import NeuronTable, ReluUnits
from wellcond.problem.batch_losses import Gradients, merged
from wellcond.problem.evaluation import Evaluation
from wellcond.problem.problem import Problem
from wellcond.results import Progress


@dataclass(frozen=True)
class LayerPass:
    """What one forward and backward pass over the data measures.

    Attributes:
        loss: Mean loss.
        gradients: Gradient in every trainable parameter, the same as from `Problem.loss_and_gradients`.
        conditioning: The result of `conditioning`.
        neurons: The result of `neurons`.
    """

    loss: float
    gradients: Gradients
    conditioning: ConditioningTable
    neurons: NeuronTable


def layer_pass(
    problem: Problem,
    *,
    layers: str | Collection[str] | None = None,
    exact: int | None = None,
    progress: Progress | None = None,
) -> LayerPass:
    """The results of `loss_and_gradients`, `conditioning` and `neurons` for the price of `conditioning` alone.

    Args:
        problem: The model, loss and data.
        layers: Names of layers, or of modules that hold them, to which the two tables are restricted.
        exact: Longest side of a matrix whose eigenvalues are all computed, not only the largest; None: 4,096.
        progress: Called as (current task, share of all work done).

    Raises:
        NonFinite: The loss, a layer's input or a gradient is not finite. The separate functions may still work then.
        UnknownLayer: A name is neither that of a layer nor of a module that holds one.
    """
    units, total = ReluUnits(problem.model, layers), _Mean()
    table = conditioning_table(
        problem, layers=layers, exact=exact, on_batch=total.add, around=units.watched, progress=progress
    )
    relus = NeuronTable(units.by_layer(), total.examples, table.cost)
    return LayerPass(total.loss, total.gradients, table, relus)


class _Mean:
    """Mean of the loss and of its gradient over batches, each counted by its weight."""

    def __init__(self) -> None:
        self.loss = self.weight = 0.0
        self.gradients: Gradients = {}
        self.examples = 0

    def add(self, evaluation: Evaluation, gradients: Gradients) -> None:
        self.weight += evaluation.weight
        self.examples += evaluation.examples
        share = evaluation.weight / self.weight
        new = float(evaluation.loss.detach())
        # the numbers of a single batch are taken as they are, without rounding
        self.loss = new if not self.gradients else self.loss + share * (new - self.loss)
        values = (
            merged(list(self.gradients.values()), list(gradients.values()), share)
            if self.gradients
            else gradients.values()
        )
        self.gradients = dict(zip(gradients, values, strict=True))
