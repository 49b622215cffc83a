"""Kronecker factors Σx and Σ∇h of every layer, streamed over the batches."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wellcond.curvature import coupling
from wellcond.curvature.fisher import likelihood_of
from wellcond.curvature.ggn import tensor_outputs
from wellcond.curvature.second_moment import SecondMoment
from wellcond.errors import InvalidProblem, TooLarge
from wellcond.network.arithmetic import own_arithmetic
from wellcond.network.layers import (
    ConvolutionRows,
    EmbeddingRule,
    described_forward,
    has_own_forward,
    rule_for,
    uncovered,
    weighted_layers,
)
from wellcond.network.taps import tapped
from wellcond.problem.arguments import check_problem
from wellcond.problem.evaluation import Evaluation
from wellcond.problem.likelihoods import Fields
from wellcond.problem.problem import Gradients, Problem
from wellcond.results import ByLayer, Cost, Row, quantities, text_table
from wellcond.results.text import WHOLE_MODEL, grouped

Labels = Literal["data", "sample", "model"]
MOST_PASSES = 10_000
"""Most backward passes of a batch that an expectation over labels takes."""


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
    x: SecondMoment
    g: SecondMoment


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
    checks = {name: _RuleCheck(problem, module) for name, module in modules.items() if has_own_forward(module)}
    layers: dict[str, LayerFactors] = {}
    gradient_scale = 1.0
    terms = weight = 0.0
    probed: dict[str, list[Tensor]] | None = None  # gradients of a pass that looks for coupled examples
    shared: dict[str, str] = {}

    @own_arithmetic()  # which a model's own autocast does not enter
    def on_call(name: str, module: nn.Module, x: Any, output: Any) -> Any:
        if name in checks and not checks[name].can_read(x, output):
            return None
        rule = rules[name]
        if name not in layers:
            x_moment, g_moment = (SecondMoment(f"{matrix} of layer {name!r}") for matrix in ("Σx", "Σ∇h"))
            layers[name] = LayerFactors(type(module).__name__, rule.note, x_moment, g_moment)
        if isinstance(rule, EmbeddingRule):
            layers[name].x.add_diagonal(rule.token_counts(module, x), x.numel())
        else:
            layers[name].x.add(rule.input_blocks(module, x.detach(), convolution))
        return x if name in checks else None

    @own_arithmetic()
    def on_gradient(name: str, module: nn.Module, x: Any, gradient: Tensor) -> None:
        if probed is not None:
            probed.setdefault(name, []).append(gradient.detach())
            return
        if name in layers and name not in shared:
            layers[name].g.add(rules[name].gradient_blocks(module, gradient.detach(), convolution), gradient_scale)
        if x is not None:
            checks[name].met(x, gradient)

    params = list(problem.params.values())
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        for index, batch in data:
            # the hooks come off before the backward pass, which calls checkpointed layers once more
            with tapped(modules, on_call, on_gradient):
                evaluation = problem.evaluate(index, batch)
            roots, cotangents, gradient_scale = _backward_passes(problem, evaluation, labels, seed)
            terms += evaluation.terms
            weight += evaluation.weight
            if labels == "model":
                passes: list[dict[str, list[Tensor]]] = []
                for probe in coupling.probe_pair(roots):
                    passes.append(probed := {})
                    problem.gradient(roots, params, probe, retain_graph=True, allow_unused=True)
                probed = None
                shared |= coupling.shared_outputs(passes, len(roots))
            for i, cotangent in enumerate(cotangents):
                keep = i + 1 < len(cotangents)
                gradients = problem.gradient(roots, params, cotangent, retain_graph=keep, allow_unused=True)
                for check in checks.values():
                    check.compare(dict(zip(problem.params, gradients, strict=True)))
    if labels == "data" and terms != weight:  # a weighted mean Σ aℓ / Σa: its terms are aℓ, where the mean of a is 1
        for layer in layers.values():
            layer.g.scale((terms / weight) ** 2)
    refused = {name: why for name, check in checks.items() if (why := check.why_not_believed)}
    believed = {name: layer for name, layer in layers.items() if name not in refused}
    missing = _not_covered(problem.model, modules, believed) | shared | refused
    return KroneckerFactors(believed, missing, problem.cost - before)


def _backward_passes(
    problem: Problem, evaluation: Evaluation, labels: Labels, seed: int
) -> tuple[Tensor, list[None] | Fields, float]:
    """What to differentiate, with which cotangents, and what turns the squared result into per-term gradients'."""
    if labels == "data":
        return evaluation.loss, [None], evaluation.weight**2
    outputs = tensor_outputs(evaluation)
    if labels == "sample":
        generator = torch.Generator().manual_seed(seed * 1_000_003 + evaluation.index)
        targets = likelihood_of(problem).sample(outputs.detach(), evaluation.targets, generator)
        return evaluation.loss_at(outputs, targets), [None], evaluation.weight**2
    if labels != "model":
        raise ValueError(f'labels is {labels!r}; write "data", "sample" or "model".')
    if problem.couples_examples:
        raise InvalidProblem(coupling.COUPLED.format("batch statistics couple them"))
    factor = likelihood_of(problem).fisher_factor(outputs, evaluation.targets)
    if len(factor) > MOST_PASSES:
        raise TooLarge(
            f'labels="model" takes a backward pass for every label of every position, {len(factor):,} a batch, above '
            f'{MOST_PASSES:,}. Use labels="sample".'
        )
    # the factors' squares add up, but each pass counts the rows once more
    return outputs, factor, float(len(factor))


def _not_covered(model: nn.Module, modules: dict[str, nn.Module], layers: dict[str, LayerFactors]) -> dict[str, str]:
    missing = dict(uncovered(model))
    for name in modules:
        if name not in layers:
            missing[name] = "was not called in the forward pass, or only under no_grad"
        elif reasons := _what_lacks(layers[name]):
            missing[name] = "; ".join(reasons)
    return missing


def _what_lacks(layer: LayerFactors) -> list[str]:
    x, g = layer.x, layer.g
    reasons = [moment.why_unknown for moment in (x, g) if moment.count and not moment.is_known]
    if not x.count:
        reasons.append("it received no rows" if x.dimension else "it has no inputs")
    if not g.count and g.groups:
        reasons.append("no rows came back" if g.dimension else "it has no outputs")
    elif not g.count:
        reasons.append(
            "no gradient reaches its output: nothing before or in it is trainable, or its output is not used; "
            "Σx alone is given"
        )
    return reasons


class _RuleCheck:
    """Compares autograd's gradient of a layer's weight with Σ_t g_t x_tᵀ, which the rule implies.

    Args:
        problem: What is measured.
        module: The layer.
    """

    def __init__(self, problem: Problem, module: nn.Module) -> None:
        self._module: Any = module
        self._weight = next((name for name, p in problem.params.items() if p is getattr(module, "weight", None)), None)
        self._calls: list[tuple[Tensor, Tensor]] = []  # since the last comparison
        self._is_confirmed = self._is_refuted = False

    def can_read(self, x: Any, output: Any) -> bool:
        """Whether torch's layer of this type takes the same input, and returns an output of the same shape."""
        try:
            with torch.no_grad():
                expected = self._as_described(x)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
            expected = None
        fits = isinstance(expected, Tensor) and isinstance(output, Tensor) and expected.shape == output.shape
        self._is_refuted |= not fits
        return fits

    def met(self, x: Any, gradient: Tensor) -> None:
        """The input of one call, and the gradient of its output."""
        if self._weight is not None and not self._is_refuted:
            self._calls.append((x.detach(), gradient.detach()))

    def compare(self, gradients: Gradients) -> None:
        """After a backward pass: do the calls explain the gradient of the weight that it gave?"""
        calls, self._calls = self._calls, []
        if self._weight is None or not calls or self._is_refuted:
            return
        weight, found = self._module.weight, gradients[self._weight]
        missing = torch.zeros_like(weight, dtype=torch.float64) if found is None else found.double()
        size = rounding = 0.0
        for x, g in calls:
            with torch.enable_grad():
                h = self._as_described(x)
            (implied,) = torch.autograd.grad(h, weight, g.to(h.dtype))
            missing = missing - implied
            size += float(implied.double().norm())
            # rows that cancel leave the rounding of their products
            rounding += torch.finfo(g.dtype).eps * float(g.double().norm()) * float(x.double().norm())
        eps = max(torch.finfo(t.dtype).eps for t in (weight, calls[0][1]))
        self._is_refuted = not float(missing.norm()) <= math.sqrt(eps) * size + 10 * rounding
        self._is_confirmed = True

    @property
    def why_not_believed(self) -> str:
        """Empty where all comparisons agree."""
        kind = type(self._module).__name__
        if self._is_refuted:
            return (
                f"{kind} has a forward of its own, and the gradient of its weight is not what its input and the "
                "gradient of its output make of it: it has no Σx ⊗ Σ∇h"
            )
        if self._is_confirmed:
            return ""
        return (
            f"{kind} has a forward of its own, which only a gradient of its weight can confirm, and there is none: it "
            "is frozen, parametrized or not used"
        )

    def _as_described(self, x: Tensor) -> Any:
        x = x.detach().to(self._module.weight.dtype) if x.is_floating_point() else x
        return described_forward(self._module)(self._module, x)
