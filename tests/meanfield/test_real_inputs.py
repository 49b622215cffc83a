"""Predictions for real images, whose products are far from those of independent inputs, against measured λ_max."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp

from wellcond.data import cifar10, mnist
from wellcond.meanfield.gram import Gram
from wellcond.meanfield.moments import Moments
from wellcond.meanfield.prediction import contributions
from wellcond.meanfield.reader import read
from wellcond.meanfield.stages import Variant

DATA = os.environ.get("WELLCOND_DATA")
pytestmark = pytest.mark.skipif(
    DATA is None or not (Path(DATA) / "MNIST").exists(), reason="WELLCOND_DATA names no folder with MNIST and CIFAR-10"
)
WIDTH, EXAMPLES, DRAWS = 300, 100, 6


class DetachedNorm(nn.Module):
    """A BatchNorm whose statistics are constants to the gradient."""

    def forward(self, z: Tensor) -> Tensor:
        std, mean = torch.std_mean(z, 0, correction=0)
        return (z - mean.detach()) / std.detach()


def images(name: str, scale: str) -> Tensor:
    found = {"mnist": mnist, "cifar10": cifar10}[name](DATA, train=False)
    x = found.images[:EXAMPLES].flatten(1).double() / 255
    return (x - x.mean()) / x.std() if scale == "standardised" else x


def network(features: int, norm: str, seed: int) -> nn.Sequential:
    """784-300-300-300-1 with σ_w² = 2 and σ_b² = .5, as in wei2019; weights alone are trained."""
    layers: list[nn.Module] = []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for inputs, outputs in pairwise([features, WIDTH, WIDTH, WIDTH, 1]):
            layer = nn.Linear(inputs, outputs)
            nn.init.normal_(layer.weight, std=(2 / inputs) ** 0.5)
            nn.init.normal_(layer.bias, std=0.5**0.5).requires_grad_(False)
            norms: dict[str, nn.Module] = {
                "batch": nn.BatchNorm1d(outputs, affine=False, track_running_stats=False),
                "detached": DetachedNorm(),
                "layer": nn.LayerNorm(outputs, elementwise_affine=False),
            }
            layers += [layer, *([norms[norm]] if norm in norms else []), nn.ReLU()]
    return nn.Sequential(*layers[: -1 if norm == "none" else -2]).double()


def largest(model: nn.Module, x: Tensor) -> float:
    """λ_max of J Jᵀ/N by power iteration with products J v, Jᵀ v."""
    weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def outputs(weights: dict[str, Tensor]) -> Tensor:
        return functional_call(model, weights, (x,))[:, 0]

    _, pull = vjp(outputs, weights)
    v = torch.ones(len(x), dtype=x.dtype)
    for _ in range(15):
        v = v / v.norm()
        v = jvp(outputs, (weights,), (pull(v)[0],))[1]
    return float(v.norm()) / len(x)


def as_batchnorm(model: nn.Sequential) -> nn.Sequential:
    return nn.Sequential(
        *(nn.BatchNorm1d(WIDTH, affine=False) if isinstance(m, DetachedNorm) else m for m in model)
    ).double()


CASES = [
    ("mnist", "standardised", "none"),
    ("mnist", "standardised", "layer"),
    ("mnist", "standardised", "detached"),
    ("mnist", "standardised", "batch"),
    ("mnist", "in [0, 1]", "detached"),
    ("cifar10", "standardised", "detached"),
    ("cifar10", "standardised", "batch"),
    ("cifar10", "in [0, 1]", "none"),
    ("cifar10", "in [0, 1]", "detached"),
]


@pytest.mark.parametrize(("data", "scale", "norm"), CASES)
def test_lambda_max_of_real_images_is_predicted(data: str, scale: str, norm: str) -> None:
    """Means over six draws, each read from its own network, agree within 12 %; single draws differ by 20 %."""
    x = images(data, scale)
    models = [network(x.shape[1], norm, seed) for seed in range(DRAWS)]
    readings = [read(as_batchnorm(model), x) for model in models]
    variant: Variant = "detached" if norm == "detached" else "batch"
    predicted = [float(contributions(r.stages, r.input_moments, variant)[0]) for r in readings]
    assert sum(predicted) / DRAWS == pytest.approx(sum(largest(model, x) for model in models) / DRAWS, rel=0.12)


def test_two_numbers_of_the_inputs_are_not_enough_for_cifar10() -> None:
    """λ_max of a network with BatchNorm lies in the first layer there, where they have nothing."""
    x = images("cifar10", "standardised")
    model = network(x.shape[1], "batch", 0)
    measured = largest(model, x)
    reading = read(model)
    start = Moments(*(k.view(1, 1) for k in Gram.of(x).same_and_pair()))
    assert float(contributions(reading.stages, start, "batch")[0]) < 0.6 * measured
