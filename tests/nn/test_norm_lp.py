"""ℓ_p normalization against its formula, written out channel by channel."""

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
    assert_running_statistics,
    batch,
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
each_p = pytest.mark.parametrize("p", [1, inf])
each_shape = pytest.mark.parametrize("dims", SHAPES)


@each_p
@each_shape
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_values_are_divided_by_the_batch_or_the_running_norm(p: float, dims: str, mode: str) -> None:
    layer, x = VARIANTS[NAMES[p]].layer(dims, eps=0.01), batch(dims)
    fill_running(layer)
    mean, scale = per_channel(x, torch.mean), per_channel(x, STATISTIC[p])
    if mode == "eval":
        mean, scale = layer.running_mean, layer.get_buffer(BUFFERS[p])
    expected = with_affine(layer, (x - spread(mean, x)) / spread(scale + 0.01, x))
    assert_same(getattr(layer, mode)()(x), expected, 1e-12)


@each_p
@each_shape
@pytest.mark.parametrize("momentum", [0.3, None])
def test_running_statistics_average_the_norm_itself(p: float, dims: str, momentum: float | None) -> None:
    statistics = {"running_mean": (0.0, torch.mean), BUFFERS[p]: (1.0, STATISTIC[p])}
    assert_running_statistics(VARIANTS[NAMES[p]].layer(dims, momentum=momentum), dims, momentum, statistics)


@pytest.mark.parametrize("p", [1, 2, inf])
def test_the_output_does_not_feel_the_scale_of_the_input(p: float) -> None:
    layer, x = LpBatchNorm2d(CHANNELS, eps=0.0, p=p, dtype=torch.float64), batch("2d")
    assert_same(layer(7 * x + 3), layer(x), 1e-12)


@each_p
def test_a_constant_channel_gives_zero_and_a_finite_gradient(p: float) -> None:
    x = torch.full((4, 1), 5.0, requires_grad=True)
    y = LpBatchNorm1d(1, p=p)(x)
    y.sum().backward()
    assert (y == 0).all()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@each_p
def test_the_state_of_a_plain_batchnorm_does_not_load(p: float) -> None:
    layer, plain = LpBatchNorm2d(CHANNELS, p=p), PLAIN["2d"](CHANNELS)
    assert layer.running_var is None
    with pytest.raises(RuntimeError, match=BUFFERS[p]):
        layer.load_state_dict(plain.state_dict())
    with pytest.raises(RuntimeError, match="running_var"):
        plain.load_state_dict(layer.state_dict())


@pytest.mark.parametrize(("p", "q"), [(1, 2), (1, inf), (2, 1), (2, inf), (inf, 1), (inf, 2)])
def test_the_state_of_one_p_does_not_load_into_another(p: float, q: float) -> None:
    with pytest.raises(RuntimeError, match="Missing key"):
        LpBatchNorm2d(CHANNELS, p=q).load_state_dict(LpBatchNorm2d(CHANNELS, p=p).state_dict())
