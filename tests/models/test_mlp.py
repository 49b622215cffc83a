from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wellcond.models import mlp


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def first_weight(model: nn.Module) -> Tensor:
    return linear_layers(model)[0].weight.detach()


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
@pytest.mark.parametrize("depth", [1, 2, 8, 100])
def test_images_go_in_and_one_row_per_example_comes_out(norm: Any, depth: int) -> None:
    model = mlp([48] + [24] * (depth - 1) + [10], norm=norm, seed=0)
    assert model(torch.randn(5, 3, 4, 4)).shape == (5, 10)
    assert len(linear_layers(model)) == depth


@pytest.mark.parametrize(
    ("norm", "names"),
    [
        ("none", ["flatten", "fc1", "act1", "fc2", "act2", "fc3"]),
        ("batch", ["flatten", "fc1", "bn1", "act1", "fc2", "bn2", "act2", "fc3"]),
        ("layer", ["flatten", "fc1", "ln1", "act1", "fc2", "ln2", "act2", "fc3"]),
    ],
)
def test_the_norm_stands_between_linear_and_activation_of_hidden_layers(norm: Any, names: list[str]) -> None:
    assert [name for name, _ in mlp([4, 5, 6, 2], norm=norm).named_children()] == names


def test_norms_have_the_width_of_their_layer() -> None:
    batch, layer = mlp([4, 5, 6, 2], norm="batch"), mlp([4, 5, 6, 2], norm="layer")
    assert [m.num_features for m in batch.modules() if isinstance(m, nn.BatchNorm1d)] == [5, 6]
    assert [m.normalized_shape for m in layer.modules() if isinstance(m, nn.LayerNorm)] == [(5,), (6,)]


@pytest.mark.parametrize("bias", [True, False])
def test_the_parameters_are_the_weights_and_the_biases(bias: bool) -> None:
    model = mlp([7, 5, 3], bias=bias)
    assert sum(p.numel() for p in model.parameters()) == 7 * 5 + 5 * 3 + bias * (5 + 3)


def test_the_activation_is_the_one_asked_for() -> None:
    model = mlp([3, 4, 4, 2], activation=nn.Tanh)
    assert sum(isinstance(module, nn.Tanh) for module in model) == 2
    assert not any(isinstance(module, nn.ReLU) for module in model)


@pytest.mark.parametrize(
    ("init", "variance"),
    [("lecun", 1 / 300), ("he", 2 / 300), ("glorot", 2 / (300 + 500)), ("default", 1 / (3 * 300))],
)
def test_weights_have_mean_zero_and_the_stated_variance(init: Any, variance: float) -> None:
    weight = first_weight(mlp([300, 500], init=init, seed=0)).double()
    n = weight.numel()
    # Five standard errors of a sample mean, √(v/n), and of a sample variance, at most v √(2/n).
    assert abs(weight.mean().item()) < 5 * math.sqrt(variance / n)
    assert weight.var().item() == pytest.approx(variance, rel=5 * math.sqrt(2 / n))


@pytest.mark.parametrize(("init", "bound"), [("glorot", math.sqrt(6 / 800)), ("default", 1 / math.sqrt(300))])
def test_uniform_weights_fill_their_interval_and_stay_inside(init: Any, bound: float) -> None:
    largest = first_weight(mlp([300, 500], init=init, seed=0)).abs().max().item()
    # All 150 000 draws stay a thousandth away from the end with probability 0.999^150000 ≈ 1e-65.
    assert 0.999 * bound < largest <= bound * (1 + 1e-6)


def test_normal_weights_reach_beyond_three_standard_deviations() -> None:
    weight = first_weight(mlp([300, 500], init="lecun", seed=0))
    share = (weight.abs() > 3 / math.sqrt(300)).float().mean().item()
    # P(|z| > 3) = 0.0027; five standard errors of the share over 150 000 draws are 6.7e-4.
    assert share == pytest.approx(0.0027, abs=6.7e-4)


@pytest.mark.parametrize("init", ["lecun", "he", "glorot"])
def test_biases_start_at_zero(init: Any) -> None:
    assert not any(layer.bias.any() for layer in linear_layers(mlp([6, 5, 4], init=init, seed=0)))


def test_default_is_what_torch_draws() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        references = [nn.Linear(6, 5), nn.Linear(5, 4)]
    for layer, reference in zip(linear_layers(mlp([6, 5, 4], init="default", seed=3)), references, strict=True):
        assert torch.equal(layer.weight, reference.weight)
        assert torch.equal(layer.bias, reference.bias)


def test_layers_of_equal_shape_differ() -> None:
    first, second = linear_layers(mlp([5, 5, 5], seed=0))
    assert not torch.equal(first.weight, second.weight)


def test_the_default_device_and_dtype_are_honoured() -> None:
    with torch.device("meta"):
        assert all(p.is_meta for p in mlp([4, 3, 2], norm="batch", seed=0).parameters())
    torch.set_default_dtype(torch.float64)
    try:
        assert all(p.dtype == torch.float64 for p in mlp([4, 3, 2], norm="batch", seed=0).parameters())
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("sizes", [[], [3], [3, 0, 2], [-1, 2]])
def test_sizes_that_make_no_network_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="sizes must be"):
        mlp(sizes)


@pytest.mark.parametrize("wrong", [{"norm": "group"}, {"init": "xavier"}])
def test_unknown_choices_are_refused_with_the_known_ones(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        mlp([2, 2], **wrong)
