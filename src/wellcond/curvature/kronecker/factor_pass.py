"""The pass over the data that gathers the Kronecker factors of every layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.curvature import coupling
from wellcond.curvature.fisher import Labels, likelihood_of
from wellcond.curvature.ggn import tensor_outputs
from wellcond.curvature.kronecker import second_moment
from wellcond.curvature.kronecker.rows import TOGETHER, Workspace
from wellcond.curvature.kronecker.rule_check import RuleCheck
from wellcond.curvature.kronecker.second_moment import SecondMoment, compute_eigenvalues
from wellcond.errors import InvalidProblem, TooLarge
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.layers import (
    ConvolutionRows,
    EmbeddingRule,
    chosen_layers,
    has_own_forward,
    rule_for,
    uncovered,
)
from wellcond.network.taps import tapped
from wellcond.problem.batch_losses import Gradients
from wellcond.problem.evaluation import Evaluation
from wellcond.problem.loss.likelihoods import Fields
from wellcond.problem.problem import Problem
from wellcond.results import Progress

MOST_LABEL_PASSES = 10_000
"""Most backward passes per batch for an exact expectation over labels."""


@dataclass
class LayerFactors:
    """Σx and Σ∇h of one layer, uncentered.

    Attributes:
        kind: Type of the layer.
        note: Remark on the layer's numbers, or "".
        x: Second moment of the layer's inputs.
        g: Second moment of the gradient of the *per-term* loss at the layer's output.
    """

    kind: str
    note: str
    x: SecondMoment
    g: SecondMoment


class FactorPass:
    """One forward and backward pass over the data that gathers the factors; other measurements can watch it.

    Args:
        problem: The model, loss and data.
        layers: Layers to restrict to, as in `kronecker_factors`, like the next three.
        convolution: What one row of a convolution is.
        labels: Labels that give g.
        seed: Seed of sampled labels.
        exact: Longest side of a matrix whose eigenvalues are all computed; None: `EXACT`.
        spectra_only: Whether the factors may be reduced to their eigenvalues as soon as they are complete.
        on_batch: Called with every batch's evaluation and the gradient of its loss in all parameters.
        around: Context to enter around every forward pass, without the loss.
    """

    def __init__(
        self,
        problem: Problem,
        layers: str | Collection[str] | None,
        convolution: ConvolutionRows,
        labels: Labels,
        seed: int,
        *,
        exact: int | None = None,
        spectra_only: bool = False,
        on_batch: Callable[[Evaluation, Gradients], None] | None = None,
        around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self.problem, self.convolution, self.labels, self.seed = problem, convolution, labels, seed
        self.modules = chosen_layers(problem.model, layers)
        self.is_restricted = layers is not None
        self.on_batch, self.around = on_batch, around
        self._exact = second_moment.EXACT if exact is None else exact
        self._rules = {name: rule for name, module in self.modules.items() if (rule := rule_for(module)) is not None}
        self._checks = {
            name: RuleCheck(problem, module) for name, module in self.modules.items() if has_own_forward(module)
        }
        self._layers: dict[str, LayerFactors] = {}
        self._workspace = Workspace()
        self._reduces = spectra_only and problem.is_one_batch and labels != "model"
        self._awaited: dict[str, int] = {}  # calls of a layer whose gradients have not arrived yet
        self._gradient_scale = 1.0
        self._probed: dict[str, list[Tensor]] | None = None  # gradients of a pass that looks for coupled examples
        self._shared: dict[str, str] = {}

    def run(self, progress: Progress | None = None) -> tuple[dict[str, LayerFactors], dict[str, str]]:
        """Pass over the data once. Returns the factors by layer, and the reason for each layer that has none."""
        problem = self.problem
        params = self._differentiated()
        terms = weight = 0.0
        batches = length_hint(problem.batches, 0)
        with problem.measuring(), contextlib.closing(problem.data()) as data:
            for index, batch in data:
                # the hooks are removed before the backward pass, which calls checkpointed layers once more
                with tapped(self.modules, self._on_call, self._on_gradient):
                    with self.around():
                        outputs = problem.forward(index, batch[0])
                    evaluation = problem.evaluate_outputs(index, batch, outputs)
                if self._reduces:
                    compute_eigenvalues(layer.x for layer in self._layers.values())
                roots, cotangents, self._gradient_scale = _backward_passes(problem, evaluation, self.labels, self.seed)
                terms += evaluation.terms
                weight += evaluation.weight
                if self.labels == "model":
                    self._look_for_coupling(roots, params)
                for i, cotangent in enumerate(cotangents):
                    if progress is not None:
                        done = (index + (i + 1) / len(cotangents)) / max(batches, index + 1)
                        progress(f"passing over batch {index + 1}", min(done, 1.0))
                    keep = i + 1 < len(cotangents)
                    by_parameter = problem.gradient(
                        roots, list(params.values()), cotangent, retain_graph=keep, allow_unused=True
                    )
                    gradients = dict(zip(params, by_parameter, strict=True))
                    for check in self._checks.values():
                        check.compare(gradients)
                    if self.on_batch is not None:
                        self.on_batch(evaluation, gradients)
                self._workspace.multiply()
        if self.labels == "data" and terms != weight:  # a weighted mean Σ aℓ / Σa has terms aℓ, with mean 1 of a
            for layer in self._layers.values():
                layer.g.scale((terms / weight) ** 2)
        refused = {name: why for name, check in self._checks.items() if (why := check.why_not_believed)}
        believed = {name: layer for name, layer in self._layers.items() if name not in refused}
        missing = _not_covered(self.modules, believed) | self._shared | refused
        others = {} if self.is_restricted else dict(uncovered(problem.model))
        return believed, others | missing

    def _differentiated(self) -> dict[str, nn.Parameter]:
        """Parameters whose gradients take a backward pass to all chosen layers."""
        own = {name: {id(p) for p in module.parameters() if p.requires_grad} for name, module in self.modules.items()}
        if not self.is_restricted or self.on_batch is not None or not all(own.values()):
            return self.problem.params
        chosen = set().union(*own.values())
        return {name: p for name, p in self.problem.params.items() if id(p) in chosen}

    @own_arithmetic()  # which a model's own autocast does not enter
    def _on_call(self, name: str, module: nn.Module, x: Any, output: Any) -> Any:
        if name in self._checks and not self._checks[name].can_read(x, output):
            return None
        rule = self._rules[name]
        if name not in self._layers:
            moments = (
                SecondMoment(f"{matrix} of layer {name!r}", name, self._workspace, self._exact)
                for matrix in ("Σx", "Σ∇h")
            )
            self._layers[name] = LayerFactors(type(module).__name__, rule.note, *moments)
        if isinstance(rule, EmbeddingRule):
            self._layers[name].x.add_diagonal(rule.token_counts(module, x), x.numel())
        else:
            self._layers[name].x.add(rule.input_blocks(module, x.detach(), self.convolution))
        self._awaited[name] = self._awaited.get(name, 0) + 1
        return x if name in self._checks else None

    @own_arithmetic()
    def _on_gradient(self, name: str, module: nn.Module, x: Any, gradient: Tensor) -> None:
        if self._probed is not None:
            self._probed.setdefault(name, []).append(gradient.detach())
            return
        if name in self._layers and name not in self._shared:
            rows = self._rules[name].gradient_blocks(module, gradient.detach(), self.convolution)
            self._layers[name].g.add(rows, self._gradient_scale)
            self._awaited[name] -= 1
            if self._reduces and self._workspace.held > TOGETHER // 2:
                compute_eigenvalues(layer.g for other, layer in self._layers.items() if not self._awaited[other])
        if x is not None:
            self._checks[name].add_call(x, gradient)

    def _look_for_coupling(self, outputs: Tensor, params: dict[str, nn.Parameter]) -> None:
        passes: list[dict[str, list[Tensor]]] = []
        for probe in coupling.probe_pair(outputs):
            self._probed = {}
            passes.append(self._probed)
            self.problem.gradient(outputs, list(params.values()), probe, retain_graph=True, allow_unused=True)
        self._probed = None
        self._shared |= coupling.shared_outputs(passes, len(outputs))


def _backward_passes(
    problem: Problem, evaluation: Evaluation, labels: Labels, seed: int
) -> tuple[Tensor, list[None] | Fields, float]:
    """What to differentiate, with which cotangents, and the factor from squared results to squared per-term ones."""
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
    if len(factor) > MOST_LABEL_PASSES:
        raise TooLarge(
            f'labels="model" takes a backward pass for every label of every position, {len(factor):,} per batch, above '
            f'{MOST_LABEL_PASSES:,}. Use labels="sample".'
        )
    # the factors' squares add up, but each pass adds the number of rows once more
    return outputs, factor, float(len(factor))


def _not_covered(modules: dict[str, nn.Module], layers: dict[str, LayerFactors]) -> dict[str, str]:
    missing = {}
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
            "only Σx is available"
        )
    return reasons
