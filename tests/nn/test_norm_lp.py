"""ℓ_p normalisation against its formula, written out channel by channel."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
import torch
from norm_references import (
    CHANNELS,
    PLAIN,
    SHAPES,
    VARIANTS,
    batch,
    exponential_average,
    fill_running,
    per_channel,
    spread,
    with_affine,
)
from references import assert_same
from torch import Tensor

from wellcond.nn import LpBatchNorm1d, LpBatchNorm2d

NAMES = {1: "l1", inf: "linf"}
BUFFERS = {1: "running_abs", inf: "running_max"}
STATISTIC: dict[float, Callable[[Tensor], Tensor]] = {
    1: lambda v: sum(abs(value - v.sum() / len(v)) for value in v) / len(v),
    inf: lambda v: max(abs(value - v.sum() / len(v)) for value in v),
}
"""mean |x − μ| and max |x − μ|."""


@pytest.mark.parametrize("p", [1, inf])
@pytest.mark.parametrize("dims", SHAPES)
def test_training_divides_by_the_average_norm(p: float, dims: str) -> None:
    layer, x = VARIANTS[NAMES[p]].layer(dims, eps=0.01), batch(dims)
    mean, scale = per_channel(x, torch.mean), per_channel(x, STATISTIC[p]) + 0.01
    assert_same(layer(x), with_affine(layer, (x - spread(mean, x)) / spread(scale, x)), 1e-12)


@pytest.mark.parametrize("p", [1, inf])
@pytest.mark.parametrize("dims", SHAPES)
@pytest.mark.parametrize("momentum", [0.3, None])
def test_running_statistics_average_the_norm_itself(p: float, dims: str, momentum: float | None) -> None:
    layer = VARIANTS[NAMES[p]].layer(dims, momentum=momentum)
    batches = [batch(dims, seed) for seed in range(3)]
    for x in batches:
        layer(x)
    means, scales = [per_channel(x, torch.mean) for x in batches], [per_channel(x, STATISTIC[p]) for x in batches]
    assert_same(layer.running_mean, exponential_average(0, means, momentum), 1e-12)
    assert_same(layer.get_buffer(BUFFERS[p]), exponential_average(1, scales, momentum), 1e-12)
    assert layer.num_batches_tracked.item() == 3


@pytest.mark.parametrize("p", [1, inf])
@pytest.mark.parametrize("dims", SHAPES)
def test_evaluation_divides_by_the_running_norm(p: float, dims: str) -> None:
    layer, x = VARIANTS[NAMES[p]].layer(dims, eps=0.01).eval(), batch(dims)
    fill_running(layer)
    scale = layer.get_buffer(BUFFERS[p]) + 0.01
    assert_same(layer(x), with_affine(layer, (x - spread(layer.running_mean, x)) / spread(scale, x)), 1e-12)


def test_the_largest_value_of_a_channel_is_one_under_the_maximum_norm() -> None:
    y = LpBatchNorm2d(CHANNELS, eps=0.0, p=inf, affine=False)(batch("2d"))
    assert_same(y.abs().amax((0, 2, 3)), torch.ones(CHANNELS), 1e-12)


@pytest.mark.parametrize("p", [1, 2, inf])
def test_the_output_does_not_feel_the_scale_of_the_input(p: float) -> None:
    x = batch("2d")
    layer = LpBatchNorm2d(CHANNELS, eps=0.0, p=p, dtype=torch.float64)
    assert_same(layer(7 * x + 3), layer(x), 1e-12)


@pytest.mark.parametrize("p", [1, inf])
def test_a_constant_channel_gives_zero_and_a_finite_gradient(p: float) -> None:
    x = torch.full((4, 1), 5.0, requires_grad=True)
    y = LpBatchNorm1d(1, p=p)(x)
    y.sum().backward()
    assert (y == 0).all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("p", [1, inf])
def test_the_state_of_a_plain_batchnorm_does_not_load(p: float) -> None:
    layer, plain = LpBatchNorm2d(CHANNELS, p=p), PLAIN["2d"](CHANNELS)
    assert layer.running_var is None
    with pytest.raises(RuntimeError, match=BUFFERS[p]):
        layer.load_state_dict(plain.state_dict())
    with pytest.raises(RuntimeError, match="running_var"):
        plain.load_state_dict(layer.state_dict())


def test_the_state_of_one_p_does_not_load_into_another() -> None:
    layers = {p: LpBatchNorm2d(CHANNELS, p=p) for p in (1, 2, inf)}
    for p, layer in layers.items():
        for q, other in layers.items():
            if p != q:
                with pytest.raises(RuntimeError, match="Missing key"):
                    other.load_state_dict(layer.state_dict())
