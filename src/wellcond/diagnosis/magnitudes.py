"""The loss, and how large every layer's weights and gradients are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from wellcond.errors import NonFinite
from wellcond.network.layers import weighted_layers
from wellcond.problem.problem import Problem


@dataclass(frozen=True)
class Gradients:
    """The mean loss over all examples and its gradient.

    Attributes:
        loss: The mean loss.
        norms: ‖∂L/∂θ‖ by layer.
    """

    loss: float
    norms: dict[str, float]


def gradients(problem: Problem) -> Gradients:
    """The loss and its gradient norms, in one forward and backward pass over the data.

    Raises:
        NonFinite: The loss or a gradient is NaN or infinite.
    """
    with problem.measuring():
        loss, found = problem.loss_and_gradients()
    norms = _norms_by_layer(problem, found)
    broken = [layer for layer, norm in norms.items() if not norm < float("inf")]
    if broken:
        raise NonFinite(f"the gradient of layer {broken[-1]!r} is NaN or inf although the loss is finite.")
    return Gradients(float(loss), norms)


def weight_norms(problem: Problem) -> dict[str, float]:
    """‖θ‖ of each layer's trainable parameters."""
    return _norms_by_layer(problem, problem.params)


def _norms_by_layer(problem: Problem, tensors: Mapping[str, Tensor | None]) -> dict[str, float]:
    """Parameters belong to the measured layer around them, else to the module that owns them; None counts as zero."""
    layers = sorted(weighted_layers(problem.model), key=len, reverse=True)
    squares: dict[str, float] = {}
    for name, tensor in tensors.items():
        layer = next((each for each in layers if name.startswith(f"{each}.")), name.rpartition(".")[0])
        square = 0.0 if tensor is None else float(tensor.detach().double().square().sum())
        squares[layer] = squares.get(layer, 0.0) + square
    return {layer: square**0.5 for layer, square in squares.items()}
