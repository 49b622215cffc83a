"""One unit of a network: its inputs H, its ŵ = [b, w], the curvature S of what follows, and its Hessian by autograd."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.functional import hessian
from torch.func import functional_call
from zoo import CLASSES, integers, normal, seeded

import wellcond as wc
from wellcond.network.layers import rule_for

Data = tuple[Tensor, Tensor]


def perceptron(activation: type[nn.Module]) -> nn.Sequential:
    return seeded(
        lambda: nn.Sequential(
            nn.Linear(4, 6), activation(), nn.Linear(6, 5), activation(), nn.Linear(5, CLASSES)
        )
    )  # fmt: skip


def labeled(*shape: int, seed: int) -> Data:
    """Inputs with unequal means and scales, so that every part of P matters."""
    scale = torch.linspace(0.3, 2.0, shape[1], dtype=torch.float64).view(1, -1, *[1] * (len(shape) - 2))
    return scale * (normal(*shape, seed=seed) + 0.7), integers(CLASSES, shape[0], seed=seed)


def with_unit(model: nn.Sequential, layer: int, unit: int, w_hat: Tensor) -> dict[str, Tensor]:
    """The layer's parameters, with ŵ = [b, w] in place of one unit's."""
    weight, bias = model[layer].weight.detach(), model[layer].bias.detach()
    chosen = torch.arange(len(bias)) == unit
    row = w_hat[1:].view_as(weight[unit])
    new = torch.where(chosen.view(-1, *[1] * (weight.dim() - 1)), row, weight)
    return {f"{layer}.weight": new, f"{layer}.bias": torch.where(chosen, w_hat[0], bias)}


def unit_parameters(model: nn.Sequential, layer: int, unit: int) -> Tensor:
    return torch.cat([model[layer].bias[unit : unit + 1], model[layer].weight[unit].reshape(-1)]).detach()


def autograd_hessian(model: nn.Sequential, layer: int, unit: int, data: Data, P: Tensor | None = None) -> Tensor:
    """∇² of the mean loss in ŵ; given P, in z with ŵ = P z."""
    start = unit_parameters(model, layer, unit)
    P = torch.eye(len(start)).double() if P is None else P

    def loss(z: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, with_unit(model, layer, unit, P @ z), data[0]), data[1])

    return hessian(loss, torch.linalg.solve(P, start))


def loss_after(model: nn.Sequential, layer: int, unit: int, data: Data, v: Tensor) -> Tensor:
    """The mean loss as a function of v, all pre-activations of one unit."""
    a = model[: layer + 1](data[0]).detach()
    chosen = (torch.arange(a.shape[1]) == unit).view(1, -1, *[1] * (a.dim() - 2))
    a = torch.where(chosen, v.view_as(a[:, :1]), a)
    return F.cross_entropy(model[layer + 1 :](a), data[1])


def pre_activations(model: nn.Sequential, layer: int, unit: int, x: Tensor) -> Tensor:
    return model[: layer + 1](x)[:, unit].detach().reshape(-1)


def curvature(model: nn.Sequential, layer: int, unit: int, data: Data) -> Tensor:
    """S: one block ∂²L/∂v² an example, L the loss of that example alone; 1×1 for a dense layer. Over N."""
    blocks = []
    for x, y in zip(*data, strict=True):
        one = x[None], y[None]
        v = pre_activations(model, layer, unit, one[0])
        blocks.append(hessian(lambda v, one=one: loss_after(model, layer, unit, one, v), v))
    return torch.block_diag(*blocks) / len(data[0])


def joint_curvature(model: nn.Sequential, layer: int, unit: int, data: Data) -> Tensor:
    """∂²/∂v² of the mean loss, v the pre-activations of all examples: nothing is taken for 0."""
    return hessian(lambda v: loss_after(model, layer, unit, data, v), pre_activations(model, layer, unit, data[0]))


def rows(model: nn.Sequential, layer: int, unit: int, x: Tensor) -> Tensor:
    """H, through the library: features of a dense layer, exact im2col of the unit's group for a convolution."""
    module: Any = model[layer]
    groups = rule_for(module).input_rows(module, model[:layer](x).detach(), "patch")
    return groups[unit * len(groups) // len(module.weight)]


def library_hessian(model: nn.Sequential, layer: int, unit: int, data: Data) -> Tensor:
    """The unit's block of wc.Hessian."""
    weight, bias = model[layer].weight, model[layer].bias
    fan_in = weight[0].numel()
    dense = wc.Hessian(wc.Problem(model, nn.CrossEntropyLoss(), data), layers=[str(layer)]).dense()
    index = torch.cat([torch.tensor([weight.numel() + unit]), torch.arange(unit * fan_in, (unit + 1) * fan_in)])
    assert dense.shape[0] == weight.numel() + bias.numel()
    return dense[index][:, index]


CONVOLUTIONS = {
    "same": {"padding": "same"},
    "valid": {},
    "stride": {"stride": 2, "padding": 1},
    "dilation": {"dilation": 2, "padding": 1},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "groups": {"padding": 1, "groups": 2},
}
TAILS: dict[str, Any] = {
    "ReLU, pooled": lambda: [nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(), nn.LazyLinear(CLASSES)],
    "tanh, averaged": lambda: [nn.Tanh(), nn.Conv2d(4, CLASSES, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()],
}


def convolutional(settings: dict[str, Any], tail: str) -> nn.Sequential:
    def build() -> nn.Sequential:
        model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Tanh(), nn.Conv2d(2, 4, 3, **settings), *TAILS[tail]())
        model(torch.zeros(1, 1, 5, 4))
        return model

    return seeded(build)
