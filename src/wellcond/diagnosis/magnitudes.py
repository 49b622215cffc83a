"""The loss, and how large every layer's weights and gradients are."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.errors import NonFinite
from wellcond.network.layers import weighted_layers
from wellcond.problem.problem import Problem
from wellcond.results import Row


@dataclass(frozen=True)
class Gradients:
    """The mean loss over all examples, and ‖∂L/∂θ‖ of each layer's parameters."""

    loss: float
    examples: int
    norms: dict[str, float]

    def network_rows(self) -> list[Row]:
        return [Row(None, "", "loss", self.loss, ""), Row(None, "", "examples", float(self.examples), "examples")]

    def layer_rows(self) -> list[Row]:
        return [Row(None, layer, "gradient_norm", norm, "") for layer, norm in self.norms.items()]


def gradients(problem: Problem) -> Gradients:
    """Loss and gradient norms, in one forward and backward pass over the data."""
    params = list(problem.params.values())
    total = [torch.zeros_like(p) for p in params]
    loss = terms = 0.0
    examples = 0
    with contextlib.closing(problem.evaluations()) as evaluations:
        for evaluation in evaluations:
            parts = torch.autograd.grad(evaluation.loss, params, allow_unused=True)
            for tensor, part in zip(total, parts, strict=True):
                if part is not None:
                    tensor.add_(part, alpha=evaluation.terms)
            loss += evaluation.terms * float(evaluation.loss.detach())
            terms += evaluation.terms
            examples += evaluation.examples
    means = {name: tensor / terms for name, tensor in zip(problem.params, total, strict=True)}
    norms = _norms_by_layer(problem, means)
    broken = [layer for layer, norm in norms.items() if not norm < float("inf")]
    if broken:
        raise NonFinite(f"the gradient of layer {broken[-1]!r} is NaN or inf although the loss is finite.")
    return Gradients(loss / terms, examples, norms)


def weight_norms(problem: Problem) -> dict[str, float]:
    """‖θ‖ of each layer's trainable parameters."""
    return _norms_by_layer(problem, problem.params)


def _norms_by_layer(problem: Problem, tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Parameters belong to the measured layer around them, else to the module that owns them."""
    layers = sorted(weighted_layers(problem.model), key=len, reverse=True)
    squares: dict[str, float] = {}
    for name, tensor in tensors.items():
        layer = next((each for each in layers if name.startswith(f"{each}.")), name.rpartition(".")[0])
        squares[layer] = squares.get(layer, 0.0) + float(tensor.detach().double().square().sum())
    return {layer: square**0.5 for layer, square in squares.items()}
