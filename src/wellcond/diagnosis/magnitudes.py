"""The loss, and how large every layer's weights and gradients are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.errors import NonFinite
from wellcond.network.layers import weighted_layers
from wellcond.problem.problem import Problem


@dataclass(frozen=True)
class Gradients:
    """The mean loss over all examples and its gradient.

    Attributes:
        loss: Mean loss.
        norms: ‖∂L/∂θ‖ by layer.
    """

    loss: float
    norms: dict[str, float]

    @classmethod
    def of(cls, problem: Problem, loss: float, gradients: Mapping[str, Tensor | None]) -> Gradients:
        """The norms of known gradients.

        Raises:
            NonFinite: One is NaN or infinite.
        """
        norms = norms_by_layer(problem, gradients)
        broken = [layer for layer, norm in norms.items() if not norm < float("inf")]
        if broken:
            raise NonFinite(f"the gradient of layer {broken[-1]!r} is NaN or inf although the loss is finite.")
        return cls(loss, norms)


def gradients(problem: Problem) -> Gradients:
    """The loss and its gradient norms, in one forward and backward pass over the data.

    Raises:
        NonFinite: The loss or a gradient is NaN or infinite.
    """
    with problem.measuring():
        loss, by_parameter = problem.loss_and_gradients()
    return Gradients.of(problem, float(loss), by_parameter)


def weight_norms(problem: Problem) -> dict[str, float]:
    """‖θ‖ of each layer's trainable parameters."""
    return norms_by_layer(problem, problem.params)


def norms_by_layer(problem: Problem, tensors: Mapping[str, Tensor | None]) -> dict[str, float]:
    """Parameters belong to the measured layer around them, else to the module that owns them; None counts as zero."""
    layers = weighted_layers(problem.model)
    owners = [_layer_of(name, layers) for name in tensors]
    norms = [_norm(tensor, problem.device) for tensor in tensors.values()]
    squares = dict.fromkeys(owners, 0.0)
    for owner, norm in zip(owners, torch.stack(norms).tolist(), strict=True):  # one transfer for all
        squares[owner] += norm**2
    return {layer: square**0.5 for layer, square in squares.items()}


def _layer_of(parameter: str, layers: Collection[str]) -> str:
    """The innermost layer around a parameter, or the module that owns it."""
    owner = module = parameter.rpartition(".")[0]
    while module and module not in layers:
        module = module.rpartition(".")[0]
    return module if module in layers else owner


def _norm(tensor: Tensor | None, device: torch.device) -> Tensor:
    """The norm in float64, in which the squares of large numbers are finite."""
    if tensor is None:
        return torch.zeros((), dtype=torch.float64, device=device)
    values = tensor.detach().coalesce().values() if tensor.is_sparse else tensor.detach()
    norm: Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return norm
