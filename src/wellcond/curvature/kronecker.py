"""Kronecker factors Σx and Σ∇h of every layer, streamed over the batches."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wellcond.curvature.fisher import likelihood_of
from wellcond.curvature.ggn import tensor_outputs
from wellcond.errors import InvalidProblem
from wellcond.network.arithmetic import own_arithmetic
from wellcond.network.layers import ConvolutionRows, Rule, rule_for, uncovered, weighted_layers
from wellcond.network.taps import tapped
from wellcond.problem.arguments import check_problem
from wellcond.problem.evaluation import Evaluation
from wellcond.problem.problem import Problem
from wellcond.results import ByLayer, Cost, Row, quantities, text_table
from wellcond.results.text import WHOLE_MODEL, grouped

Labels = Literal["data", "sample", "model"]


@dataclass
class SecondMoment:
    """A sum of outer products and how many there were. Sums of two parts of the data add up to that of both."""

    total: Tensor | None = None
    count: int = 0

    def add(self, total: Tensor, count: int) -> None:
        total = total.double()
        self.total = total if self.total is None else self.total + total
        self.count += count

    @property
    def mean(self) -> Tensor | None:
        """E[rows rowsᵀ]: (groups, d, d), or (groups, d) where it is diagonal."""
        return None if self.total is None else self.total / self.count


@dataclass
class LayerFactors:
    """Σx and Σ∇h of one layer, uncentred.

    Attributes:
        kind: The layer's type.
        note: What a reader of its numbers must know, if anything.
        x: The second moment of what it receives.
        g: That of the gradient of the *per-term* loss at its output.
    """

    kind: str
    note: str
    x: SecondMoment = field(default_factory=SecondMoment)
    g: SecondMoment = field(default_factory=SecondMoment)


@dataclass(frozen=True)
class KroneckerFactors(ByLayer[LayerFactors]):
    """One entry per layer, in the order of the forward pass.

    Attributes:
        layers: The factors by layer.
        not_covered: What has none, and why.
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
            if (mean := moment.mean) is not None
            for quantity, value in ((names.dimension, float(mean.shape[-1])), (names.trace, _trace(mean)))
        ]

    def __str__(self) -> str:
        body = []
        for name, layer in self.layers.items():
            shapes = ["–" if m.mean is None else str(tuple(m.mean.shape)) for m in (layer.x, layer.g)]
            body.append([name or WHOLE_MODEL, layer.kind, *shapes])
        skipped = [f"not covered: {names}: {why}" for why, names in grouped(self.not_covered).items()]
        return "\n".join([text_table(["layer", "kind", "Σx", "Σ∇h"], body), *skipped, str(self.cost)])


def _trace(mean: Tensor) -> float:
    return float((mean if mean.dim() == 2 else mean.diagonal(dim1=-2, dim2=-1)).sum())


@own_arithmetic()
def kronecker_factors(
    problem: Problem, *, convolution: ConvolutionRows = "position", labels: Labels = "data", seed: int = 0
) -> KroneckerFactors:
    """Σx = E[x xᵀ] and Σ∇h = E[g gᵀ] of every layer, in one forward and backward pass over the data.

    x is what the layer receives, and g = ∂ℓ/∂h the gradient of the per-term loss at the layer's output (autograd's,
    times the number of terms of the mean). Rows are examples, tokens and, for convolutions, positions.

    Args:
        problem: The model, loss and data.
        convolution: What one row of a convolution is. `"position"`: Σx is C_in × C_in over all pixels (huang2020).
            `"patch"`: an im2col patch, in groups, for which the layer's Fisher matrix is about Σx ⊗ Σ∇h (times the
            number of positions).
        labels: Whose labels give g: the `"data"`'s, a `"sample"` of the model's, or the `"model"`'s in exact
            expectation, which takes one backward pass per class.
        seed: Of the labels that are drawn.

    Returns:
        The factors by layer, and which layers have none, and why.

    Example:
        >>> import wellcond as wc
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> problem = wc.Problem(nn.Sequential(nn.Linear(2, 1)), nn.MSELoss(), (x, torch.zeros(2, 1)))
        >>> wc.kronecker_factors(problem)["0"].x.mean[0]
        tensor([[0.5000, 0.0000],
                [0.0000, 2.0000]], dtype=torch.float64)
    """
    check_problem(problem)
    before = problem.cost
    modules = weighted_layers(problem.model)
    rules = {name: rule for name, module in modules.items() if (rule := rule_for(module)) is not None}
    layers: dict[str, LayerFactors] = {}
    gradient_scale = 1.0

    def on_call(name: str, module: nn.Module, x: Any, _output: Any) -> None:
        rule = rules[name]
        layer = layers.setdefault(name, LayerFactors(type(module).__name__, rule.note))
        layer.x.add(*rule.input_moment(module, x.detach(), convolution))

    def on_gradient(name: str, module: nn.Module, gradient: Tensor) -> None:
        total, count = _gradient_moment(rules[name], module, gradient.detach(), convolution)
        layers[name].g.add(total * gradient_scale, count)

    params = list(problem.params.values())
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        for index, batch in data:
            # the hooks come off before the backward pass, which calls checkpointed layers once more
            with tapped(modules, on_call, on_gradient):
                evaluation = problem.evaluate(index, batch)
            roots, cotangents, gradient_scale = _backward_passes(problem, evaluation, labels, seed)
            for i, cotangent in enumerate(cotangents):
                keep = i + 1 < len(cotangents)
                problem.gradient(roots, params, cotangent, retain_graph=keep, allow_unused=True)
    return KroneckerFactors(layers, _not_covered(problem.model, modules, layers), problem.cost - before)


def _gradient_moment(
    rule: Rule, module: nn.Module, gradient: Tensor, convolution: ConvolutionRows
) -> tuple[Tensor, int]:
    """Σ g gᵀ in float64; once more with g brought to order one where its squares leave the range of float32."""
    total, count = rule.gradient_moment(module, gradient, convolution)
    largest = float(total.diagonal(dim1=-2, dim2=-1).max())
    scale = 1.0 if 1e-25 < largest < 1e25 else float(gradient.abs().max())
    if scale not in (0.0, 1.0) and math.isfinite(scale):
        total, count = rule.gradient_moment(module, gradient / scale, convolution)
    return total.double() * scale**2, count


def _backward_passes(
    problem: Problem, evaluation: Evaluation, labels: Labels, seed: int
) -> tuple[Tensor, list[Tensor | None], float]:
    """What to differentiate, with which cotangents, and what turns the squared result into per-term gradients'."""
    if labels == "data":
        return evaluation.loss, [None], evaluation.terms**2
    outputs = tensor_outputs(evaluation)
    if labels == "sample":
        generator = torch.Generator().manual_seed(seed * 1_000_003 + evaluation.index)
        targets = likelihood_of(problem).sample(outputs.detach(), evaluation.targets, generator)
        return evaluation.loss_at(outputs, targets), [None], evaluation.terms**2
    if labels != "model":
        raise ValueError(f'labels is {labels!r}; write "data", "sample" or "model".')
    if problem.couples_examples:
        raise InvalidProblem(
            'labels="model" needs a backward pass for every example here, since batch statistics couple them. '
            'Use labels="sample", or Problem(..., batchnorm="running").'
        )
    factor = likelihood_of(problem).fisher_factor(outputs, evaluation.targets)
    # the factors' squares add up, but each pass counts the rows once more
    return outputs, list(factor), float(len(factor))


def _not_covered(model: nn.Module, modules: dict[str, nn.Module], layers: dict[str, LayerFactors]) -> dict[str, str]:
    missing = dict(uncovered(model))
    for name in modules:
        if name not in layers:
            missing[name] = "was not called in the forward pass"
        elif layers[name].g.count == 0:
            missing[name] = (
                "no gradient reaches its output: nothing before or in it is trainable, or its output is not used; "
                "Σx alone is given"
            )
    return missing
