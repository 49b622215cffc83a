"""Batch Renorm against its formula with r and d as plain numbers, and its schedule over steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from norm_references import (
    CHANNELS,
    PLAIN,
    SHAPES,
    Variant,
    assert_all_same,
    assert_running_statistics,
    batch,
    moments,
    per_channel,
    spread,
    unbiased,
    with_affine,
    with_gradients,
)
from references import assert_same
from torch import Tensor

from wellcond.nn import BatchRenorm1d, BatchRenorm2d

FLAT = {"r_ramp": (0, 1), "d_ramp": (0, 1)}
"""The limits are there from the second step on."""


def renorm(dims: str, steps: int = 1, **settings: Any) -> Any:
    """A layer after this many steps; statistics of `batch` are smaller than, equal to and larger than its own."""
    layer = Variant("BatchRenorm").layer(dims, **settings)
    layer.running_mean.copy_(torch.tensor([1.0, 0.1, 1.1, 0.0]))
    layer.running_var.copy_(torch.tensor([9.0, 4.0, 4.0, 4.0]))
    layer.num_batches_tracked.fill_(steps)
    return layer


def corrections(layer: Any, x: Tensor, r_max: float, d_max: float) -> tuple[Tensor, Tensor]:
    """r and d of each channel, without gradient, from the running statistics as they are now."""
    r, d = torch.zeros(CHANNELS, dtype=x.dtype), torch.zeros(CHANNELS, dtype=x.dtype)
    for c in range(CHANNELS):
        mean, var = (float(m) for m in moments(x[:, c].detach()))
        sigma_b, sigma = (var + layer.eps) ** 0.5, (float(layer.running_var[c]) + layer.eps) ** 0.5
        r[c] = min(max(sigma_b / sigma, 1 / r_max), r_max)
        d[c] = min(max((mean - float(layer.running_mean[c])) / sigma, -d_max), d_max)
    return r, d


def renormalized(layer: Any, x: Tensor, r: Tensor, d: Tensor) -> Tensor:
    """γ ((x − μ_B)/σ_B · r + d) + β."""
    mean = per_channel(x, lambda v: moments(v)[0])
    sigma = (per_channel(x, lambda v: moments(v)[1]) + layer.eps).sqrt()
    y = (x - spread(mean, x)) / spread(sigma, x) * spread(r, x) + spread(d, x)
    return with_affine(layer, y)


@pytest.mark.parametrize("dims", SHAPES)
@pytest.mark.parametrize(("r_max", "d_max"), [(1.3, 0.4), (3.0, 5.0), (1.0, 5.0), (3.0, 0.0)])
def test_a_batch_is_corrected_toward_statistics_from_before_the_step(dims: str, r_max: float, d_max: float) -> None:
    """Outputs and gradients, with r and d as numbers that have no gradient."""
    layer = renorm(dims, r_max=r_max, d_max=d_max, **FLAT)
    x = batch(dims).requires_grad_()
    r, d = corrections(layer, x, r_max, d_max)
    if r_max == 1.3:  # this case clips both on both sides, and leaves a value of each alone
        assert [float(m) for m in (r.min(), r.max(), d.min(), d.max())] == [1 / 1.3, 1.3, -0.4, 0.4]
        assert 1 / 1.3 < r[1] < 1.3
        assert -0.4 < d[1] < 0.4
    inputs = [x, layer.weight, layer.bias]
    expected = with_gradients(renormalized(layer, x, r, d), inputs)
    assert_all_same(with_gradients(layer(x), inputs), expected)


@pytest.mark.parametrize("momentum", [0.3, None])
def test_running_statistics_are_those_of_plain_batchnorm(momentum: float | None) -> None:
    layer = BatchRenorm2d(CHANNELS, momentum=momentum, dtype=torch.float64, **FLAT)
    statistics = {"running_mean": (0.0, torch.mean), "running_var": (1.0, unbiased)}
    assert_running_statistics(layer, "2d", momentum, statistics)


@pytest.mark.parametrize(
    ("step", "r_max", "d_max"),
    [
        (0, 1, 0),
        (4_999, 1, 0),
        (5_000, 1, 0),
        (5_001, 1 + 2 / 35_000, 5 / 20_000),
        (15_000, 1 + 2 * 10 / 35, 2.5),
        (25_000, 1 + 2 * 20 / 35, 5),
        (30_000, 1 + 2 * 25 / 35, 5),
        (40_000, 3, 5),
        (10_000_000, 3, 5),
    ],
)
def test_the_limits_follow_the_schedule_of_the_source_and_stay_at_its_end(
    step: int, r_max: float, d_max: float
) -> None:
    layer = renorm("2d", step)
    result = layer.limits()
    assert [float(limit) for limit in result] == pytest.approx([r_max, d_max], rel=1e-12)
    x = batch("2d")
    r, d = corrections(layer, x, r_max, d_max)
    assert_same(layer(x), renormalized(layer, x, r, d), 1e-12)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_without_running_statistics_it_is_plain_batchnorm(mode: str) -> None:
    settings = {"track_running_stats": False, "dtype": torch.float64}
    layer, plain = BatchRenorm1d(CHANNELS, **FLAT, **settings), PLAIN["1d"](CHANNELS, **settings)
    x = batch("1d")
    for _ in range(2):
        assert_same(getattr(layer, mode)()(x), getattr(plain, mode)()(x), 1e-12)
