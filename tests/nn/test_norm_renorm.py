"""Batch Renorm against its formula with r and d as plain numbers, and its schedule over steps and resumes."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from norm_references import (
    CHANNELS,
    PLAIN,
    SHAPES,
    Variant,
    assert_all_same,
    assert_layers_agree,
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
    """A layer after so many steps; beside its statistics those of `batch` are smaller, alike and larger."""
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


def renormalised(layer: Any, x: Tensor, r: Tensor, d: Tensor) -> Tensor:
    """γ ((x − μ_B)/σ_B · r + d) + β."""
    mean = per_channel(x, lambda v: moments(v)[0])
    sigma = (per_channel(x, lambda v: moments(v)[1]) + layer.eps).sqrt()
    y = (x - spread(mean, x)) / spread(sigma, x) * spread(r, x) + spread(d, x)
    return with_affine(layer, y)


@pytest.mark.parametrize("dims", SHAPES)
@pytest.mark.parametrize(("r_max", "d_max"), [(1.3, 0.4), (3.0, 5.0), (1.0, 5.0), (3.0, 0.0)])
def test_a_training_batch_is_corrected_towards_statistics_from_before_the_step(
    dims: str, r_max: float, d_max: float
) -> None:
    """Outputs and gradients, with r and d as numbers that have no gradient."""
    layer = renorm(dims, r_max=r_max, d_max=d_max, **FLAT)
    x = batch(dims).requires_grad_()
    r, d = corrections(layer, x, r_max, d_max)
    if r_max == 1.3:  # this case clips both on both sides, and leaves a value of each alone
        assert [float(m) for m in (r.min(), r.max(), d.min(), d.max())] == [1 / 1.3, 1.3, -0.4, 0.4]
        assert 1 / 1.3 < r[1] < 1.3
        assert -0.4 < d[1] < 0.4
    inputs = [x, layer.weight, layer.bias]
    expected = with_gradients(renormalised(layer, x, r, d), inputs)
    assert_all_same(with_gradients(layer(x), inputs), expected)


@pytest.mark.parametrize("dims", SHAPES)
def test_without_limits_training_is_evaluation(dims: str) -> None:
    layer = renorm(dims, r_max=1e9, d_max=1e9, **FLAT)
    in_evaluation = layer.eval()(batch(dims))
    assert_same(layer.train()(batch(dims)), in_evaluation, 1e-12)


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
    found = layer.limits()
    assert [float(limit) for limit in found] == pytest.approx([r_max, d_max], rel=1e-12)
    x = batch("2d")
    r, d = corrections(layer, x, r_max, d_max)
    assert_same(layer(x), renormalised(layer, x, r, d), 1e-12)


def test_it_is_plain_batchnorm_up_to_the_first_step_of_the_ramp() -> None:
    layer, plain = renorm("2d", 4_998), PLAIN["2d"](CHANNELS, dtype=torch.float64)
    plain.load_state_dict(layer.state_dict())
    assert_layers_agree(layer, plain, [batch("2d", seed) for seed in range(3)])  # steps 4 998, 4 999 and 5 000
    plain.train()
    assert not torch.allclose(layer.train()(batch("2d")), plain(batch("2d")), atol=1e-6)  # step 5 001


def test_the_schedule_goes_on_after_a_resume_in_the_middle_of_the_ramp() -> None:
    settings: dict[str, Any] = {"r_max": 2.0, "d_max": 1.0, "r_ramp": (2, 8), "d_ramp": (1, 6), "dtype": torch.float64}
    batches = [batch("2d", seed) for seed in range(9)]
    whole = BatchRenorm2d(CHANNELS, **settings)
    expected = [whole(x) for x in batches]
    first = BatchRenorm2d(CHANNELS, **settings)
    for x in batches[:5]:
        first(x)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = BatchRenorm2d(CHANNELS, **settings)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert [float(limit) for limit in second.limits()] == pytest.approx([1 + (5 - 2) / 6, (5 - 1) / 5], rel=1e-12)
    for x, y in zip(batches[5:], expected[5:], strict=True):
        assert torch.equal(second(x), y)
    assert torch.equal(second.running_var, whole.running_var)


def test_evaluation_does_not_advance_the_schedule() -> None:
    layer = renorm("1d", 10_000)
    before = layer.limits()
    layer.eval()(batch("1d"))
    assert layer.limits() == before


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_without_running_statistics_it_is_plain_batchnorm(mode: str) -> None:
    settings = {"track_running_stats": False, "dtype": torch.float64}
    layer, plain = BatchRenorm1d(CHANNELS, **FLAT, **settings), PLAIN["1d"](CHANNELS, **settings)
    x = batch("1d")
    for _ in range(2):
        assert_same(getattr(layer, mode)()(x), getattr(plain, mode)()(x), 1e-12)
