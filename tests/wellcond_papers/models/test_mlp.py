from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from wellcond_papers.models import mlp


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


@pytest.mark.parametrize(("norm", "prefix"), [("none", ""), ("batch", "bn"), ("layer", "ln")])
@pytest.mark.parametrize("depth", [1, 2, 3, 8, 100])
def test_hidden_layers_are_linear_norm_and_activation(norm: Any, prefix: str, depth: int) -> None:
    model = mlp([48, *range(24, 23 + depth), 10], norm=norm, activation=nn.Tanh, seed=0)
    hidden = [f"{part}{k}" for k in range(1, depth) for part in ("fc", prefix, "act") if part]
    assert [name for name, _ in model.named_children()] == ["flatten", *hidden, f"fc{depth}"]
    assert all(isinstance(module, nn.Tanh) for name, module in model.named_children() if name.startswith("act"))
    assert model(torch.randn(5, 3, 4, 4)).shape == (5, 10)


@pytest.mark.parametrize("bias", [True, False])
def test_the_parameters_are_the_weights_and_the_biases(bias: bool) -> None:
    model = mlp([5, 5, 5, 3], bias=bias, seed=0)
    assert sum(p.numel() for p in model.parameters()) == 5 * 5 + 5 * 5 + 5 * 3 + bias * (5 + 5 + 3)
    first, second, _ = linear_layers(model)
    assert not torch.equal(first.weight, second.weight)


@pytest.mark.parametrize(
    ("init", "variance", "bound"),
    [
        ("lecun", 1 / 300, None),
        ("he", 2 / 300, None),
        ("glorot", 2 / (300 + 500), math.sqrt(6 / 800)),
        ("default", 1 / (3 * 300), 1 / math.sqrt(300)),
    ],
)
def test_weights_have_the_stated_distribution(init: Any, variance: float, bound: float | None) -> None:
    layer = mlp([300, 500], init=init, seed=0)[1]
    weight = layer.weight.detach().double()
    n = weight.numel()
    # Five standard errors of a sample mean, √(v/n), and of a sample variance, at most v √(2/n).
    assert abs(weight.mean().item()) < 5 * math.sqrt(variance / n)
    assert weight.var().item() == pytest.approx(variance, rel=5 * math.sqrt(2 / n))
    if bound is None:
        # P(|z| > 3) = 0.0027; five standard errors of the share over 150 000 draws are 6.7e-4.
        assert (weight.abs() > 3 * math.sqrt(variance)).double().mean().item() == pytest.approx(0.0027, abs=6.7e-4)
    else:
        # All 150 000 draws stay a thousandth away from the end with probability 0.999^150000 ≈ 1e-65.
        assert 0.999 * bound < weight.abs().max().item() <= bound * (1 + 1e-6)
    assert bool(layer.bias.any()) == (init == "default")


def test_default_is_what_torch_draws() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        references = [nn.Linear(6, 5), nn.Linear(5, 4)]
    for layer, reference in zip(linear_layers(mlp([6, 5, 4], init="default", seed=3)), references, strict=True):
        assert torch.equal(layer.weight, reference.weight)
        assert torch.equal(layer.bias, reference.bias)
