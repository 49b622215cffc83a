"""What holds for all models: shapes, variances of convolutions, and what a seed decides."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import nn

from wellcond.models import mlp, resnet, vgg
from wellcond.models.mlp import Init

Build = Callable[..., nn.Sequential]
MODELS: dict[str, Build] = {
    **{init: lambda seed=None, init=init: mlp([6, 5, 4], init=init, seed=seed) for init in get_args(Init)},
    "resnet": lambda seed=None: resnet(8, seed=seed),
    "vgg": lambda seed=None: vgg(11, seed=seed),
}
models = pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)


def last_weight(model: nn.Sequential) -> torch.Tensor:
    """Of the layer that is filled last, so that it also tells whether as much was drawn before it."""
    return model[-1].weight.detach()


@models
def test_a_seed_fixes_the_weights_and_leaves_the_global_generator_alone(build: Build) -> None:
    before = torch.get_rng_state()
    first, second, other = (build(seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert not torch.equal(last_weight(first), last_weight(other))


@models
def test_without_a_seed_the_global_generator_decides(build: Build) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        first, second = build(), build()
    assert torch.equal(last_weight(first), last_weight(build(5)))
    assert not torch.equal(last_weight(first), last_weight(second))


@pytest.mark.parametrize("model", [lambda: resnet(20, seed=0), lambda: vgg(11, seed=0)], ids=["resnet", "vgg"])
def test_convolution_weights_have_variance_two_over_nine_c_out(model: Callable[[], nn.Module]) -> None:
    for conv in (module for module in model().modules() if isinstance(module, nn.Conv2d)):
        weight = conv.weight.detach().double()
        # five standard errors of a sample variance
        tolerance = 5 * math.sqrt(2 / weight.numel())
        assert weight.var().item() == pytest.approx(2 / (9 * conv.out_channels), rel=tolerance)


def test_a_vgg_takes_images_and_gives_one_row_per_example() -> None:
    assert vgg(11, classes=7, seed=0)(torch.randn(2, 3, 32, 32)).shape == (2, 7)
